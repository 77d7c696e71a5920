"""Moving a network's tensors to where it computes and back.

A network is some dozens of tensors, and each copy to or from a GPU waits for the GPU; so they travel as one.
On a CPU they are simply copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

__all__ = ["copy_into", "own_copies"]


def copy_into(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies tensors from the CPU into tensors of a network, in whatever layout those have."""
    with torch.no_grad():
        if not targets or targets[0].device.type == "cpu":
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
            return
        for places in _by_dtype(targets):
            flat = torch.cat([sources[i].to(targets[i].dtype).reshape(-1) for i in places])
            there = flat.pin_memory().to(targets[places[0]].device, non_blocking=True)
            pieces = torch.split(there, [targets[i].numel() for i in places])
            for i, piece in zip(places, pieces, strict=True):
                targets[i].copy_(piece.view(targets[i].shape))


def own_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, contiguous and each for itself, that the network will not change."""
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        return {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
    names, values = list(tensors), [tensor.detach() for tensor in tensors.values()]
    copies: dict[str, torch.Tensor] = {}
    for places in _by_dtype(values):
        here = torch.cat([values[i].reshape(-1) for i in places]).cpu()
        pieces = torch.split(here, [values[i].numel() for i in places])
        # Views would keep all of the network alive for the sake of one tensor.
        copies |= {
            names[i]: piece.view(values[i].shape).clone() for i, piece in zip(places, pieces, strict=True)
        }
    return {name: copies[name] for name in names}


def _by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The positions of the tensors of each dtype."""
    places: dict[torch.dtype, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(i)
    return list(places.values())
