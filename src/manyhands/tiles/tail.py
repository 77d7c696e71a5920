"""The layers after the tiled part, and the way of maps from tiles to them and of gradients back.

By ``data`` every device computes them for some of the examples, by ``one`` the first tile's device for all.
By ``channels`` every device has all examples, and the rows of each dense layer are shared out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from manyhands.errors import RunError
from manyhands.tiles.geometry import scale_cuts
from manyhands.tiles.peers import Peers
from manyhands.tiles.plan import TailMode
from manyhands.tiles.program import Program
from manyhands.tiles.stand_ins import Pass, shared_out, stand_in
from manyhands.tiles.values import unpacked

__all__ = ["Tail", "TailRun"]


@dataclass
class TailRun:
    """What a pass through the tail leaves for its way back."""

    batch_size: int
    inputs: list[Tensor]
    output: Tensor


class Tail:
    """The tail of one device."""

    def __init__(self, program: Program, peers: Peers, mode: TailMode, seed: int) -> None:
        self.program, self.peers, self.mode = program, peers, mode
        self.handoff = program.regions.handoff
        self.passing = Pass(peers, seed)
        self.network = _network(program, mode, self.passing)
        self.output_shape = program.graph.output_shape
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.norms = [m for m in self.network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.shared_out = set(shared_out(self.network))

    def share(self, batch_size: int, tile: int | None = None) -> slice:
        """The examples of a batch that a device computes the tail for."""
        tile = self.peers.tile if tile is None else tile
        if self.mode == "channels":
            return slice(0, batch_size)
        if self.mode == "one":
            return slice(0, batch_size if tile == 0 else 0)
        cuts = scale_cuts([1] * len(self.peers.devices), batch_size)
        return slice(cuts[tile], cuts[tile + 1])

    def gather(self, tiles: Sequence[Tensor]) -> list[Tensor]:
        """From tiles of maps of all examples to whole maps of this device's examples."""
        peers, regions = self.peers, self.program.regions
        batch_size = tiles[0].shape[0]
        mine = self.share(batch_size)
        count = mine.stop - mine.start
        outgoing = {tile: [t[self.share(batch_size, tile)] for t in tiles] for tile in peers.others}
        shapes = {tile: [self._shape(node, count, tile) for node in self.handoff] for tile in peers.others}
        received = peers.exchange(
            outgoing, {t: sum(map(prod, s)) for t, s in shapes.items()}, tiles[0]
        ).wait()
        pieces = {t: unpacked(received[t], shapes[t]) for t in received} | {
            peers.tile: [t[mine] for t in tiles]
        }
        wholes = []
        for place, node in enumerate(self.handoff):
            shape = (count, *self.program.graph.nodes[node].shape)
            whole = torch.empty(shape, dtype=tiles[0].dtype, device=tiles[0].device)
            if len(shape) == 4:
                whole = whole.contiguous(memory_format=torch.channels_last)
            for tile, found in pieces.items():
                rows, cols = (slice(*part) for part in regions.owned[node][tile])
                whole[..., rows, cols] = found[place]
            wholes.append(whole)
        return wholes

    def scatter(self, wholes: Sequence[Tensor], batch_size: int) -> list[Tensor]:
        """From gradients of whole maps back to those of this device's tiles."""
        peers, owned = self.peers, self.program.regions.owned

        def cut(tile: int) -> list[Tensor]:
            boxes = [owned[node][tile] for node in self.handoff]
            return [w[..., slice(*b.rows), slice(*b.cols)] for w, b in zip(wholes, boxes, strict=True)]

        if self.mode == "channels":
            return cut(peers.tile)
        shares = {tile: self.share(batch_size, tile) for tile in range(len(peers.devices))}
        outgoing = {tile: cut(tile) for tile in peers.others}
        shapes = {
            tile: [
                self._shape(node, shares[tile].stop - shares[tile].start, peers.tile) for node in self.handoff
            ]
            for tile in peers.others
        }
        received = peers.exchange(
            outgoing, {t: sum(map(prod, s)) for t, s in shapes.items()}, wholes[0]
        ).wait()
        pieces = {t: unpacked(received[t], shapes[t]) for t in received} | {peers.tile: cut(peers.tile)}
        tiles = []
        for place, node in enumerate(self.handoff):
            whole = wholes[0].new_zeros(self._shape(node, batch_size, peers.tile))
            whole = whole.contiguous(memory_format=torch.channels_last) if whole.dim() == 4 else whole
            for tile, found in pieces.items():
                whole[shares[tile]] = found[place]
            tiles.append(whole)
        return tiles

    def forward(
        self, wholes: Sequence[Tensor], batch_size: int, step: int, *, keep: bool
    ) -> tuple[Tensor, TailRun]:
        """Computes the tail for this device's examples; with `keep`, so that there is a way back."""
        mine = self.share(batch_size)
        count = mine.stop - mine.start
        self.passing.step, self.passing.first_example = step, mine.start
        self.passing.counts = [
            self.share(batch_size, t).stop - self.share(batch_size, t).start
            for t in range(len(self.peers.devices))
        ]
        learning = any(norm.training for norm in self.norms)
        if self.mode == "data" and learning and min(self.passing.counts) == 0:
            raise RunError(
                f"tile group: a batch of {batch_size} leaves a device without an example for the batch norms "
                'of the tail; take a larger batch or the tail mode "one"'
            )
        inputs = [whole.detach().requires_grad_(keep) for whole in wholes]
        if count == 0:
            output = wholes[0].new_zeros((0, *self.output_shape))
        else:
            with torch.set_grad_enabled(keep):
                output = self.network(*inputs)
        return output.detach(), TailRun(batch_size, inputs, output)

    def backward(self, run: TailRun, gradient: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of the tail's inputs and of its parameters, zeros where there are none."""
        wanted = [*run.inputs, *self.parameters]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if run.output.requires_grad:
            found = torch.autograd.grad(run.output, wanted, gradient, allow_unused=True)
        filled = [torch.zeros_like(w) if f is None else f for w, f in zip(wanted, found, strict=True)]
        inputs, weights = filled[: len(run.inputs)], filled[len(run.inputs) :]
        if self.mode == "channels" and self.peers.tile:
            # Everybody has found the same gradient of what is not shared out; it counts once.
            pairs = zip(self.parameters, weights, strict=True)
            weights = [g if p in self.shared_out else torch.zeros_like(g) for p, g in pairs]
        return inputs, weights

    def _shape(self, node: int, count: int, tile: int) -> tuple[int, ...]:
        box = self.program.regions.owned[node][tile]
        return (count, *self.program.graph.nodes[node].shape[:-2], box.rows.size, box.cols.size)


def _network(program: Program, mode: TailMode, passing: Pass) -> fx.GraphModule:
    """The operations from the hand-off on as a network; its modules are the original's or stand-ins."""
    traced, end = program.graph.traced, program.regions.end
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    parts: dict[str, Any] = {}
    number = -1
    later = {n for place, n in enumerate(_operations(traced)) if place >= end}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            if any(user in later or user.op == "output" for user in node.users):
                copied[node] = graph.node_copy(node)
                parts[str(node.target)] = _attribute(traced, str(node.target))
            continue
        if node.op == "output":
            graph.output(copied[node.args[0]])
            continue
        number += 1
        if number in program.regions.handoff:
            copied[node] = graph.placeholder(f"map{number}")
        elif number >= end:
            copied[node] = graph.node_copy(node, lambda n: copied[n])
            if node.op == "call_module":
                name = str(node.target)
                parts[name] = stand_in(traced.get_submodule(name), name, mode, passing)
    return fx.GraphModule(parts, graph)


def _operations(traced: fx.GraphModule) -> list[fx.Node]:
    return [n for n in traced.graph.nodes if n.op not in ("output", "get_attr")]


def _attribute(traced: fx.GraphModule, path: str) -> Any:
    found: Any = traced
    for name in path.split("."):
        found = getattr(found, name)
    return found
