"""`tile`: hands back a module that computes its part of a network, together with its like elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from manyhands.errors import JobError, RunError
from manyhands.tiles.backward import backward_group
from manyhands.tiles.forward import forward_group
from manyhands.tiles.geometry import Box
from manyhands.tiles.graph import TileGraph, read_graph
from manyhands.tiles.peers import Peers
from manyhands.tiles.plan import TilePlan
from manyhands.tiles.pool import Pool
from manyhands.tiles.program import compile_tile
from manyhands.tiles.reduce import Reducer
from manyhands.tiles.regions import regions
from manyhands.tiles.step import Step
from manyhands.tiles.tail import Tail, TailRun
from manyhands.tiles.values import Part, Value

__all__ = ["TiledModule", "tile"]


def tile(
    module: nn.Module,
    plan: TilePlan,
    group: dist.ProcessGroup | None = None,
    *,
    checkpoint: bool = False,
    wire_dtype: torch.dtype | None = None,
    share_memory: bool = True,
    seed: int = 0,
) -> TiledModule:
    """Wraps a network so that the ranks of a process group compute it together, as one device would.

    Every rank calls it with the same network and plan. The weights are those of the group's first rank
    afterwards.

    Args:
        module: Any network of which the plan's layers can be computed in tiles; it is not changed, and keeps
            the parameters that are trained.
        plan: How it is cut.
        group: The ranks; all, if not given.
        checkpoint: Keep only what crosses groups, and compute the rest again on the way back, without
            messages.
        wire_dtype: A smaller type for gradients of weights on their way, such as `torch.bfloat16`.
        share_memory: Speak through memory where all ranks are processes of one machine; otherwise, and with
            False, through the process group.
        seed: Of dropout.

    Raises:
        JobError: The network cannot be computed so; names the layer.
    """
    shape = _input_shape(module, plan)
    return TiledModule(
        module,
        read_graph(module, shape),
        plan,
        group,
        checkpoint=checkpoint,
        wire_dtype=wire_dtype,
        share_memory=share_memory,
        seed=seed,
    )


class TiledModule(nn.Module):
    """One rank's part of a network in tiles.

    A training step is ``loss = tiled.loss(f, tiled(images), targets)``, ``loss.backward()``,
    ``tiled.synchronise()``, ``optimizer.step()``, on every rank.
    """

    step_type: type[Step] = Step

    def __init__(
        self,
        module: nn.Module,
        graph: TileGraph,
        plan: TilePlan,
        group: dist.ProcessGroup | None = None,
        *,
        checkpoint: bool = False,
        wire_dtype: torch.dtype | None = None,
        share_memory: bool = True,
        seed: int = 0,
        peers: Peers | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.plan, self.checkpoint, self.seed = plan, checkpoint, seed
        self.regions = regions(graph, plan)
        may_share = share_memory and _device(module).type == "cpu"
        self.peers = peers or Peers(plan.devices, group, may_share=may_share)
        self.program = compile_tile(graph, self.regions, self.peers.tile)
        self.pool = Pool(keeps=not checkpoint)
        self.reducer = Reducer(self.peers, wire_dtype)
        self.tail = Tail(self.program, self.peers, plan.tail_mode, seed)
        self.num_steps = 0
        self._anchor = torch.zeros((), requires_grad=True)
        self._agree()
        self.copy_weights()

    @property
    def input_box(self) -> Box:
        """The part of an image that this rank needs: its tile and the borders around it."""
        return self.program.box[0]

    def cut(self, images: Tensor) -> Tensor:
        """This rank's part of whole images [N, C, H, W]."""
        box = self.input_box
        return images[:, :, slice(*box.rows), slice(*box.cols)]

    def share(self, batch_size: int) -> slice:
        """The examples of a batch for which this rank has the network's output."""
        return self.tail.share(batch_size)

    def forward(self, images: Tensor) -> Tensor:
        """The network's output for this rank's examples.

        Args:
            images: Whole images [N, C, H, W], or this rank's part of them (`cut`); all ranks have the same N.
        """
        if torch.is_grad_enabled():
            if self.reducer.unfinished:
                raise RunError(
                    "tile group: call synchronise() between backward() and the next forward pass, or go back "
                    "within no_sync()"
                )
            output: Tensor = _Together.apply(self, images, self._anchor)  # type: ignore[no-untyped-call]
            return output
        part = self._part(images)
        step = self._step(part)
        maps = self._forward_groups(step, keep=False)
        output, _ = self.tail.forward(self.tail.gather(maps), len(part), step.number, keep=False)
        self._let_go(step)
        return output

    def loss(self, criterion: Callable[..., Tensor], output: Tensor, targets: Any) -> Tensor:
        """This rank's part in the mean loss of the whole batch; the parts of all ranks sum to it.

        Args:
            criterion: ``criterion(output, targets)``, a mean over examples.
            output: What `forward` gave.
            targets: Those of the whole batch, one for each example.
        """
        share = self.share(len(targets))
        count = share.stop - share.start
        if not count:
            return output.sum() * 0.0
        weight = count / len(targets) if self.plan.tail_mode == "data" else 1.0
        return criterion(output, targets[share]) * weight

    def total(self, loss: Tensor) -> Tensor:
        """The loss of the whole batch, from this rank's part; every rank must call it."""
        if self.peers.alone or self.plan.tail_mode == "channels":
            return loss.detach()
        return self.peers.total(loss.detach().reshape(1)).reshape(())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward passes only add up gradients; the first one outside sends the sum."""
        with self.reducer.holding():
            yield

    def synchronise(self) -> None:
        """Waits until all gradients of weights are summed over the ranks, and puts them into `grad`."""
        self.reducer.finish()
        if self.plan.tail_mode == "one" and not self.peers.alone:
            buffers = [b for norm in self.tail.norms if norm.training for b in norm.buffers()]
            for buffer in buffers:
                self._broadcast(buffer)

    def copy_weights(self) -> None:
        """Gives every rank the parameters and buffers of the first."""
        if not self.peers.alone:
            for tensor in (*self.module.parameters(), *self.module.buffers()):
                self._broadcast(tensor.data)

    def _broadcast(self, tensor: Tensor) -> None:
        source = self.peers.devices[0]
        plain = tensor.contiguous()
        dist.broadcast(plain, group=self.peers.group, group_src=source)
        if plain is not tensor:
            tensor.copy_(plain)

    def _agree(self) -> None:
        """Looks whether all ranks have the same plan and the same network."""
        if self.peers.alone:
            return
        said = [repr(self.plan), str(self.checkpoint), str(self.reducer.wire_dtype), str(self.seed)]
        said += [f"{n} {tuple(p.shape)} {p.stride()} {p.dtype}" for n, p in self.module.named_parameters()]
        digest = hashlib.sha256("\n".join(said).encode()).digest()[:8]
        mine = torch.tensor(list(digest), dtype=torch.int64, device=_device(self.module))
        for tile_, other in self.peers.share(mine).wait().items():
            if not torch.equal(mine, other):
                raise RunError(
                    f"tile group: tile {tile_} has another plan or network than tile {self.peers.tile}; "
                    "call tile() with the same on every rank"
                )

    def _part(self, images: Tensor) -> Tensor:
        sides, box = tuple(images.shape[-2:]), self.input_box
        if sides == self.program.graph.nodes[0].sides:
            return self.cut(images)
        if sides == (box.rows.size, box.cols.size):
            return images
        height, width = self.program.graph.nodes[0].sides
        raise JobError(
            "images",
            list(images.shape),
            f"must be whole, {height}x{width}, or this tile's part, {box.rows.size}x{box.cols.size}",
        )

    def _step(self, part: Tensor) -> Step:
        step = self.step_type(
            self.program,
            self.peers,
            self.pool,
            self.reducer,
            number=self.num_steps,
            seed=self.seed,
            like=part,
        )
        if self.training:
            self.num_steps += 1
        step.exports[0] = Value([Part(self.input_box, part)])
        return step

    def _forward_groups(self, step: Step, *, keep: bool) -> list[Tensor]:
        """Through the tiled part, to this tile's own part of the maps that are handed on."""
        groups = self.regions.groups
        with torch.no_grad():
            for number in range(len(groups)):
                forward_group(step, number)
                if not keep:
                    step.forget_inner(number, keep_imports=step.has_way_back)
        maps = []
        for node in self.regions.handoff:
            found = step.exports[node].view(self.program.owned(node))
            assert found is not None
            maps.append(found)
        return maps

    def _let_go(self, step: Step) -> None:
        for number in range(len(self.regions.groups)):
            step.release(number)

    def _backward(self, step: Step, run: TailRun, gradient: Tensor) -> Tensor | None:
        """The way back through everything; the input's gradient, where it is wanted."""
        inputs, weights = self.tail.backward(run, gradient)
        for parameter, found in zip(self.tail.parameters, weights, strict=True):
            self.reducer.add(parameter, found)
        with torch.no_grad():
            for node, tensor in zip(
                self.tail.handoff, self.tail.scatter(inputs, run.batch_size), strict=True
            ):
                if step.wanted[node]:
                    box = self.program.owned(node)
                    step.contribute(node, Part(box, tensor), ours=self.plan.tail_mode != "channels")
            for number in reversed(range(len(self.regions.groups))):
                backward_group(step, number, again=self.checkpoint)
            step.catch_up()
        if not self.reducer.is_holding:
            self.reducer.flush()
        return self._input_gradient(step) if step.wanted[0] else None

    def _input_gradient(self, step: Step) -> Tensor:
        """What all tiles together say about the images."""
        shape = (step.batch_size, *self.program.graph.nodes[0].shape)
        whole = step.like.new_zeros(shape)
        part = step.gradient(0).part
        whole[:, :, slice(*part.box.rows), slice(*part.box.cols)] = part.data
        if not self.peers.alone:
            dist.all_reduce(whole, group=self.peers.group)
        return whole


class _Together(torch.autograd.Function):
    """The whole network as one operation, whose way back is written out in `backward.py`."""

    @staticmethod
    def forward(ctx: Any, tiled: TiledModule, images: Tensor, _anchor: Tensor) -> Tensor:
        part = tiled._part(images.detach())
        step = tiled._step(part)
        step.want(images=images.requires_grad)
        ctx.given_whole = images.shape != part.shape
        maps = tiled._forward_groups(step, keep=not tiled.checkpoint)
        batch_size = len(part)
        output, run = tiled.tail.forward(tiled.tail.gather(maps), batch_size, step.number, keep=True)
        ctx.tiled, ctx.step, ctx.run = tiled, step, run
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        step, run = ctx.step, ctx.run
        if step is None:
            raise RunError("tile group: a pass can be gone back through once only")
        ctx.step = ctx.run = None
        images: Tensor | None = ctx.tiled._backward(step, run, gradients[0])
        if images is not None and not ctx.given_whole:
            images = ctx.tiled.cut(images)
        return None, images, None


def _input_shape(module: nn.Module, plan: TilePlan) -> tuple[int, int, int]:
    """The shape of images: its channels are told by the first layer that must know how many it reads."""
    unshuffled = 1
    for layer in module.modules():
        if isinstance(layer, nn.PixelUnshuffle):
            unshuffled *= layer.downscale_factor**2
        channels = layer.in_channels if isinstance(layer, nn.Conv2d) else getattr(layer, "num_features", 0)
        if channels:
            return channels // unshuffled, sum(plan.rows), sum(plan.cols)
    raise JobError("network", type(module).__name__, "has no convolution, and nothing to compute in tiles")


def _device(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))
