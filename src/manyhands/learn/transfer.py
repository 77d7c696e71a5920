"""Bringing tensors to where a network computes, and keeping what came of them.

What was trained on a GPU stays there: the next phase, the merge and the evaluation find it in place. Only
what comes from elsewhere travels, and as one, because each copy to a GPU waits for the GPU and a network is
some dozens of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from manyhands.data import Examples

__all__ = ["copy_into", "moved", "own_copies", "settled_on"]

MOST_MEMORY = 0.25
"""The part of a GPU's free memory that one device's examples may take for good."""


def copy_into(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies tensors into those of a network, in whatever layout these have."""
    with torch.no_grad():
        away: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for target, source in zip(targets, sources, strict=True):
            if source.device == target.device:
                target.copy_(source)
            else:
                away.setdefault(target.dtype, []).append((target, source))
        for pairs in away.values():
            flat = torch.cat([source.cpu().to(target.dtype).reshape(-1) for target, source in pairs])
            there = moved(flat, str(pairs[0][0].device))
            pieces = torch.split(there, [target.numel() for target, _ in pairs])
            for (target, _), piece in zip(pairs, pieces, strict=True):
                target.copy_(piece.view(target.shape))


def own_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies, contiguous and each for itself, that the network will not change."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


def settled_on(examples: Examples, torch_device: str) -> Examples:
    """The examples where a network computes, if they fit there for good; else as they are."""
    if not torch_device.startswith("cuda"):
        return examples
    free, _ = torch.cuda.mem_get_info(torch_device)
    if examples.x.nbytes > MOST_MEMORY * free:
        return examples
    return Examples(examples.x.to(torch_device), examples.y.to(torch_device))


def moved(tensor: torch.Tensor, torch_device: str) -> torch.Tensor:
    """The tensor where a network computes."""
    if tensor.device.type != "cpu" or torch_device == "cpu":
        return tensor.to(torch_device)
    return tensor.pin_memory().to(torch_device, non_blocking=True)
