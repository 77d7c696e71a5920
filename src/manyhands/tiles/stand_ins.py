"""Layers of the tail that must know of the other devices: dropout, batch norm and shared-out dense layers.

A stand-in keeps the original module and its parameters; only what is computed around them differs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.errors import JobError
from manyhands.tiles.geometry import Box, Interval, scale_cuts
from manyhands.tiles.masks import keep_mask
from manyhands.tiles.norm import (
    gradient_sums,
    local_moments,
    merged_statistics,
    through_statistics,
    uses_batch,
)
from manyhands.tiles.peers import Peers
from manyhands.tiles.plan import TailMode

__all__ = ["Pass", "shared_out", "stand_in"]


class Pass:
    """What changes from one pass to the next: its number, and whose examples these are."""

    def __init__(self, peers: Peers, seed: int) -> None:
        self.peers, self.seed = peers, seed
        self.step = 0
        self.first_example = 0
        self.counts: list[int] = []


def stand_in(module: nn.Module, name: str, mode: TailMode, passing: Pass) -> nn.Module:
    """The module itself, or what computes in its place."""
    for inner in module.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm) and inner is not module and mode == "data":
            raise JobError("plan.tail_mode", mode, f'cannot look into {name} for its batch norm; take "one"')
    if type(module) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d):
        return _Dropout(module, name, passing)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and mode == "data":
        if type(module) not in (nn.BatchNorm2d, nn.BatchNorm1d):
            raise JobError(
                "plan.tail_mode", mode, f'cannot share out {name}, a {type(module).__name__}; take "one"'
            )
        return _Norm(module, passing)
    if type(module) is nn.Linear and mode == "channels" and not passing.peers.alone:
        return _Linear(module, passing)
    return module


def shared_out(network: nn.Module) -> list[nn.Parameter]:
    """The parameters of which every device computes its own rows' gradient."""
    return [p for module in network.modules() if isinstance(module, _Linear) for p in module.parameters()]


class _Dropout(nn.Module):
    def __init__(self, module: nn.Module, name: str, passing: Pass) -> None:
        super().__init__()
        self.original, self.name, self.passing = module, name, passing

    def forward(self, x: Tensor) -> Tensor:
        rate: Any = self.original.p
        if not self.original.training or not rate:
            return x
        passing = self.passing
        shape = tuple(x.shape)
        if isinstance(self.original, nn.Dropout1d | nn.Dropout2d):
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        padded = (*shape, *(1 for _ in range(4 - len(shape)))) if len(shape) < 4 else shape
        box = Box(Interval(0, padded[-2]), Interval(0, padded[-1]))
        key = (passing.seed, passing.step, self.name)
        kept = keep_mask(
            padded, box, rate, key, first_example=passing.first_example, device=x.device, width=padded[-1]
        )
        return x * kept.view(shape).to(x.dtype).mul_(0.0 if rate == 1 else 1 / (1 - rate))


class _Norm(nn.Module):
    """Batch norm over the examples of all devices."""

    def __init__(self, module: nn.Module, passing: Pass) -> None:
        super().__init__()
        self.original, self.passing = module, passing

    def forward(self, x: Tensor) -> Tensor:
        norm: Any = self.original
        if not uses_batch(norm):
            result: Tensor = norm(x)
            return result
        wide = x if x.dim() == 4 else x.reshape(*x.shape[:2], -1, 1)
        y: Tensor = _SharedNorm.apply(wide, norm.weight, norm.bias, norm, self.passing)  # type: ignore[no-untyped-call]
        return y.reshape(x.shape)


class _SharedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, norm: Any, passing: Pass) -> Tensor:
        moments = local_moments(x)
        peers = passing.peers
        parts = peers.in_order(moments, peers.share(moments).wait()) if not peers.alone else [moments]
        pixels = x.shape[2] * x.shape[3]
        statistics = merged_statistics(norm, parts, [count * pixels for count in passing.counts])
        ctx.save_for_backward(x)
        ctx.statistics, ctx.peers, ctx.affine = statistics, peers, norm.affine
        return torch.addcmul(statistics.shift, x, statistics.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        sums = gradient_sums(gradient, x, ctx.statistics)
        total = sums if ctx.peers.alone else ctx.peers.total(sums)
        factor, constant = through_statistics(ctx.statistics, total)
        dx = gradient * ctx.statistics.scale + x * factor + constant
        # Its own part only: the reducer sums over the devices.
        by_x, plain = sums.chunk(2) if ctx.affine else (None, None)
        return dx, by_x, plain, None, None


class _Linear(nn.Module):
    """A dense layer of which every device computes some rows."""

    def __init__(self, module: nn.Linear, passing: Pass) -> None:
        super().__init__()
        self.original, self.passing = module, passing

    def forward(self, x: Tensor) -> Tensor:
        original = self.original
        assert isinstance(original, nn.Linear)
        y: Tensor = _SharedLinear.apply(x, original.weight, original.bias, self.passing.peers)  # type: ignore[no-untyped-call]
        return y


class _SharedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, peers: Peers) -> Tensor:
        cuts = scale_cuts([1] * len(peers.devices), weight.shape[0])
        sizes = [b - a for a, b in pairwise(cuts)]
        rows = slice(cuts[peers.tile], cuts[peers.tile + 1])
        mine = F.linear(x, weight[rows], None if bias is None else bias[rows])
        lines = mine.numel() // max(1, sizes[peers.tile]) if sizes[peers.tile] else x.numel() // x.shape[-1]
        flat = mine.contiguous().view(-1)
        pending = peers.exchange(
            {tile: [flat] for tile in peers.others},
            {tile: sizes[tile] * lines for tile in peers.others},
            flat,
        )
        received = pending.wait()
        parts = [
            mine if tile == peers.tile else received.get(tile, flat[:0]).view(*x.shape[:-1], sizes[tile])
            for tile in range(len(sizes))
        ]
        ctx.save_for_backward(x, weight)
        ctx.rows, ctx.peers, ctx.has_bias = rows, peers, bias is not None
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = ctx.rows
        mine = gradients[0][..., rows]
        dx = ctx.peers.total(mine @ weight[rows])
        dw = torch.zeros_like(weight)
        flat = mine.flatten(end_dim=-2)  # of a tile that has none of the rows, empty
        dw[rows] = flat.t() @ x.flatten(end_dim=-2)
        db = None
        if ctx.has_bias:
            db = weight.new_zeros(weight.shape[0])
            db[rows] = flat.sum(0)
        return dx, dw, db, None
