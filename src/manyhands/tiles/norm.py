"""Batch normalisation over all tiles: sums over owned pixels only, the same bits on every device.

Forward, each tile says the mean and the summed squares of its own pixels, and what is merged from them (Chan
et al. 1979) is what one device would have found. Backward, the gradient of the statistics needs Σdy and
Σdy·x̂ over all tiles; since tiles that compute the same pixel each hold a part of its gradient, these are
summed over all that a tile computed. What flows back through the statistics is added once a pixel, by its
owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "Statistics",
    "gradient_sums",
    "local_moments",
    "merged_statistics",
    "running_statistics",
    "through_statistics",
    "uses_batch",
]

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Statistics:
    """Of each channel: mean, 1/deviation, and the line y = scale·x + shift that they make; pixels behind it.

    `count` is 0 where they are the running ones, which have no gradient. `back` is what the way back needs in
    double precision: the mean, -scale·invstd/count and -scale/count.
    """

    mean: Tensor
    invstd: Tensor
    scale: Tensor
    shift: Tensor
    count: int
    back: tuple[Tensor, Tensor, Tensor] | None = None


def uses_batch(norm: nn.BatchNorm2d) -> bool:
    """Whether a layer normalises with what it sees, rather than with what it has seen."""
    return norm.training or norm.running_mean is None


def local_moments(x: Tensor) -> Tensor:
    """Means and summed squared deviations of a tile's own pixels, one after the other."""
    if not _dense(x) and x.shape[0] > 1:
        # Rows of one example lie side by side in memory, those of several do not.
        parts = [local_moments(example) for example in torch.split(x, 1)]
        pixels = x.shape[2] * x.shape[3]
        mean, variance = _merged(parts, [pixels] * len(parts))
        return torch.cat((mean, variance * pixels * len(parts))).to(x.dtype)
    x = x if _dense(x) else x.contiguous(memory_format=torch.channels_last)
    mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    return torch.cat((mean, variance * (x.numel() // x.shape[1])))


def merged_statistics(norm: nn.BatchNorm2d, parts: Sequence[Tensor], counts: Sequence[int]) -> Statistics:
    """What one device would have found, from the moments of every tile; the running buffers are moved too."""
    mean, variance = _merged(parts, counts)
    count = sum(counts)
    if norm.training and norm.track_running_stats and norm.running_mean is not None:
        _move_running(norm, mean, variance, count)
    return _statistics(norm, mean, variance, parts[0].dtype, count)


def running_statistics(norm: nn.BatchNorm2d) -> Statistics:
    """What the layer has seen so far."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    dtype = norm.running_mean.dtype
    return _statistics(norm, norm.running_mean.double(), norm.running_var.double(), dtype, 0)


def gradient_sums(gradient: Tensor, x: Tensor, statistics: Statistics) -> Tensor:
    """Σdy·x̂ and Σdy of each channel, one after the other."""
    if not _dense(x):
        x = x.contiguous(memory_format=torch.channels_last)
    if gradient.stride() != x.stride():
        gradient = torch.empty_like(x).copy_(gradient)
    _, by_x, plain = _aten.native_batch_norm_backward(
        gradient,
        x,
        statistics.mean,  # where the weight belongs, of which only the size counts here
        None,
        None,
        statistics.mean,
        statistics.invstd,
        True,
        0.0,
        [False, True, True],
    )
    return torch.cat((by_x, plain))


def through_statistics(statistics: Statistics, sums: Tensor) -> tuple[Tensor, Tensor]:
    """What flows back through the statistics, as a line of the layer's input: factor and constant."""
    assert statistics.back is not None
    mean, by_x_slope, plain_slope = statistics.back
    by_x, plain = sums.double().chunk(2)
    factor = by_x * by_x_slope
    constant = (plain * plain_slope).addcmul_(factor, mean, value=-1)
    return factor.to(sums.dtype).view(-1, 1, 1), constant.to(sums.dtype).view(-1, 1, 1)


def _merged(parts: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of all, in double precision."""
    means, squares = torch.stack(tuple(parts)).double().chunk(2, dim=1)
    count = sum(counts)
    weights = _weights(tuple(counts), means.device)
    mean = (means * weights).sum(0).div_(count)
    variance = (means - mean).square_().mul_(weights).add_(squares).sum(0).div_(count)
    return mean, variance


@lru_cache(maxsize=1024)
def _weights(counts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(counts, dtype=torch.float64, device=device).view(-1, 1)


def _statistics(
    norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, dtype: torch.dtype, count: int
) -> Statistics:
    invstd = (variance + norm.eps).rsqrt()
    scale = invstd if norm.weight is None else invstd * norm.weight.detach().double()
    shift = -mean * scale if norm.bias is None else norm.bias.detach().double() - mean * scale
    back = (mean, (scale * invstd).div_(-count), scale / -count) if count else None
    return Statistics(
        mean.to(dtype),
        invstd.to(dtype),
        scale.to(dtype).view(-1, 1, 1),
        shift.to(dtype).view(-1, 1, 1),
        count,
        back,
    )


def _move_running(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1.0 / float(norm.num_batches_tracked)
    unbiased = variance * (count / max(1, count - 1))
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)


def _dense(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) or x.is_contiguous()
