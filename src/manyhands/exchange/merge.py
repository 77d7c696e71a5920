"""Merging: from what several devices say about a block to what the block becomes.

The rule (weighted mean, coordinate-wise median, trimmed mean, Krum) and the clipping before it are
independent of who exchanges with whom. Buffers such as BatchNorm's statistics are merged like parameters;
whole numbers (its batch counter) are rounded back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from manyhands.errors import UpdateRefused
from manyhands.settings import Section

__all__ = ["MergeSection", "Tensors", "change_norm", "check_update", "clip_change", "merge"]

Tensors = Mapping[str, torch.Tensor]


class MergeSection(Section):
    """How updates are merged (``[exchange.merge]``)."""

    rule: Literal["mean", "median", "trimmed_mean", "krum", "multi_krum"] = "mean"
    trim: float = Field(default=0.2, ge=0, lt=0.5)
    faulty: PositiveInt = 1
    clip_norm: PositiveFloat | None = None
    clip_factor: PositiveFloat | None = None


def check_update(update: Tensors, current: Tensors) -> None:
    """Refuses an update that does not fit the block or is not finite.

    Raises:
        UpdateRefused: with the first thing that is wrong.
    """
    if update.keys() != current.keys():
        odd = sorted(update.keys() ^ current.keys())
        raise UpdateRefused(f"tensor names differ: {', '.join(odd[:3])}")
    for name, tensor in update.items():
        wanted = current[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            raise UpdateRefused(
                f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
            )
    floats = {name: tensor for name, tensor in update.items() if tensor.is_floating_point()}
    # A finite sum proves all entries finite at a third of the cost of looking at each; a GPU is asked once.
    if not floats or torch.stack([tensor.sum().double() for tensor in floats.values()]).isfinite().all():
        return
    for name, tensor in floats.items():
        if not tensor.isfinite().all():
            raise UpdateRefused(f"{name} holds a value that is not finite")


def clip_change(update: Tensors, current: Tensors, max_norm: float) -> tuple[dict[str, torch.Tensor], float]:
    """Shortens the step from `current` to `update` to at most `max_norm`; also gives the step's norm."""
    steps = _steps(update, current)
    norm = _norm(steps)
    if norm <= max_norm:
        return dict(update), norm
    current = {n: current[n].to(t.device) for n, t in update.items()}
    shorter = {n: current[n] + step * (max_norm / norm) for n, step in steps.items()}
    return {n: shorter.get(n, t) for n, t in update.items()}, norm


def change_norm(update: Tensors, current: Tensors) -> float:
    """How long the step from `current` to `update` is."""
    return _norm(_steps(update, current))


def _steps(update: Tensors, current: Tensors) -> dict[str, torch.Tensor]:
    return {n: t - current[n].to(t.device) for n, t in update.items() if t.is_floating_point()}


def _norm(steps: Tensors) -> float:
    return math.sqrt(sum(float(step.double().square().sum()) for step in steps.values()))


def merge(section: MergeSection, updates: Sequence[tuple[float, Tensors]]) -> dict[str, torch.Tensor]:
    """Merges checked updates of one block.

    Args:
        section: The rule.
        updates: At least one (weight, tensors); weights matter to the mean alone, because an order
            statistic that listened to them could be outvoted by one device that claims much data.

    Returns:
        New tensors, where the first update has its own: a device that computes on a GPU leaves them there.
    """
    if section.rule in ("krum", "multi_krum"):
        updates = _krum(updates, section.faulty, many=section.rule == "multi_krum")
    total = sum(weight for weight, _ in updates)
    merged = {}
    for name, first in updates[0][1].items():
        if section.rule in ("mean", "krum", "multi_krum"):
            value = _mean([(weight / total, tensors[name].to(first.device)) for weight, tensors in updates])
        else:
            stacked = torch.stack([_as_float(tensors[name].to(first.device)) for _, tensors in updates])
            value = (
                stacked.quantile(0.5, dim=0) if section.rule == "median" else _trimmed(stacked, section.trim)
            )
        merged[name] = value.to(first.dtype) if first.is_floating_point() else value.round().to(first.dtype)
    return merged


def _krum(
    updates: Sequence[tuple[float, Tensors]], faulty: int, *, many: bool
) -> Sequence[tuple[float, Tensors]]:
    """The update in the thickest crowd (Krum), or all but the `faulty` loneliest (Multi-Krum).

    Blanchard et al., 2017: an update's score is the sum of its squared distances to its nearest n - f - 2.
    Where there are too few for that, its nearest one counts.
    """
    num_near = max(len(updates) - faulty - 2, 1)
    flat = [
        torch.cat([t.double().flatten().cpu() for _, t in sorted(tensors.items()) if t.is_floating_point()])
        for _, tensors in updates
    ]
    apart = [[float((a - b).square().sum()) for b in flat] for a in flat]
    scores = [sum(sorted(row[:n] + row[n + 1 :])[:num_near]) for n, row in enumerate(apart)]
    best = sorted(range(len(updates)), key=scores.__getitem__)
    kept = sorted(best[: max(len(updates) - faulty, 1) if many else 1])
    return [updates[n] for n in kept]


def _mean(parts: Sequence[tuple[float, torch.Tensor]]) -> torch.Tensor:
    total = _as_float(parts[0][1]) * parts[0][0]
    for share, tensor in parts[1:]:
        total.add_(_as_float(tensor), alpha=share)
    return total


def _trimmed(stacked: torch.Tensor, trim: float) -> torch.Tensor:
    """The mean without the `trim` largest and the `trim` smallest share of each entry."""
    cut = int(trim * len(stacked))
    return stacked.sort(dim=0).values[cut : len(stacked) - cut].mean(dim=0)


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_floating_point() else tensor.double()
