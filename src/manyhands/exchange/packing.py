"""Updates in fewer bytes: as half-precision numbers, as bytes with a scale, or only the largest entries.

What packing leaves out of one update is remembered and added to the next (error feedback: Seide et al., 2014;
Karimireddy et al., 2019), so that it is late rather than lost. Pure: tensors in, tensors out. A packed block
is named tensors like any other, so it is sent, checked and charged as what it is:

| how | a tensor ``w`` of n numbers becomes | bytes |
|---|---|---|
| fp16 | ``w``, float16 | 2 n |
| int8 | ``w``, int8, and ``w#scale`` | n + 4 |
| topk | ``w#at`` and ``w#value``, the `keep` largest of them | 8 `keep` n |

Whole numbers, such as BatchNorm's counter, travel as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from manyhands.blocks import Weights
from manyhands.errors import UpdateRefused
from manyhands.exchange.merge import Tensors
from manyhands.hand import Outcome, Work

__all__ = ["Packing", "PackingName", "pack", "pack_work", "packed_blocks", "residual_blocks", "unpack"]

PackingName = Literal["none", "fp16", "int8", "topk"]

LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Packing:
    """How updates travel.

    Attributes:
        how: See above.
        keep: For ``topk``, the part of the entries that is sent.
    """

    how: PackingName = "none"
    keep: float = 0.1

    def num_kept(self, count: int) -> int:
        """How many of so many entries ``topk`` sends."""
        return math.ceil(self.keep * count)


def pack(
    packing: Packing, tensors: Tensors, left_over: Tensors | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Packs a block; gives what is sent, and what it leaves out, to be given to the next call."""
    sent: dict[str, torch.Tensor] = {}
    left: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not _packs(packing, tensor):
            sent[name] = tensor
            continue
        wanted = tensor if left_over is None else tensor + left_over[name].to(tensor.device)
        parts = _pack_one(packing, name, wanted)
        sent |= parts
        left[name] = wanted - _unpack_one(packing, name, parts, tensor)
    return sent, left


def unpack(packing: Packing, packed: Tensors, like: Tensors) -> dict[str, torch.Tensor]:
    """The block that was packed, with what packing left out missing.

    Raises:
        UpdateRefused: It is not a packed block of that kind.
    """
    names: set[str] = set()
    whole = {}
    for name, tensor in like.items():
        if not _packs(packing, tensor):
            parts: tuple[str, ...] = (name,)
        elif packing.how == "topk":
            parts = (f"{name}#at", f"{name}#value")
        else:
            parts = (name, f"{name}#scale") if packing.how == "int8" else (name,)
        names.update(parts)
        if any(part not in packed for part in parts):
            raise UpdateRefused(f"tensor names differ: {name}")
        whole[name] = _unpack_one(packing, name, packed, tensor) if _packs(packing, tensor) else packed[name]
    if odd := sorted(packed.keys() - names):
        raise UpdateRefused(f"tensor names differ: {', '.join(odd[:3])}")
    return whole


def pack_work(packing: Packing, blocks: Mapping[str, Weights], left_over: Mapping[str, Weights]) -> Work:
    """Packs some blocks: gives the weights ``packed/<block>`` and ``left/<block>``."""

    def run() -> Outcome:
        weights = {}
        for name, tensors in blocks.items():
            sent, left = pack(packing, tensors, left_over.get(name))
            weights[f"packed/{name}"], weights[f"left/{name}"] = Weights(sent), Weights(left)
        return Outcome({}, weights)

    return Work("pack", run, 4 * sum(w.nbytes / 4 for w in blocks.values()))


def packed_blocks(outcome: Outcome) -> dict[str, Weights]:
    """What is to be sent."""
    return _under("packed/", outcome)


def residual_blocks(outcome: Outcome) -> dict[str, Weights]:
    """What was left out."""
    return _under("left/", outcome)


def _under(prefix: str, outcome: Outcome) -> dict[str, Weights]:
    return {name.removeprefix(prefix): w for name, w in outcome.weights.items() if name.startswith(prefix)}


def _packs(packing: Packing, tensor: torch.Tensor) -> bool:
    return packing.how != "none" and tensor.is_floating_point() and tensor.numel() > 0


def _pack_one(packing: Packing, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    if packing.how == "fp16":
        return {name: tensor.clamp(-LARGEST_HALF, LARGEST_HALF).half()}
    if packing.how == "int8":
        scale = tensor.abs().max().float() / 127
        steps = tensor.float() / scale if float(scale) > 0 else torch.zeros_like(tensor, dtype=torch.float32)
        return {name: steps.round().clamp(-127, 127).to(torch.int8), f"{name}#scale": scale}
    flat = tensor.reshape(-1)
    at = flat.abs().topk(packing.num_kept(flat.numel()), sorted=False).indices.sort().values
    return {f"{name}#at": at.to(torch.int32), f"{name}#value": flat[at].float()}


def _unpack_one(packing: Packing, name: str, packed: Tensors, like: torch.Tensor) -> torch.Tensor:
    if packing.how == "fp16":
        return _checked(name, packed[name], like.shape, torch.float16).to(like.dtype)
    if packing.how == "int8":
        steps = _checked(name, packed[name], like.shape, torch.int8)
        scale = _checked(name, packed[f"{name}#scale"], torch.Size(()), torch.float32)
        return (steps.float() * scale).to(like.dtype)
    size = torch.Size((packing.num_kept(like.numel()),))
    at = _checked(name, packed[f"{name}#at"], size, torch.int32)
    value = _checked(name, packed[f"{name}#value"], size, torch.float32)
    if int(at.min()) < 0 or int(at.max()) >= like.numel():
        raise UpdateRefused(f"{name} has an entry where there is none")
    flat = torch.zeros(like.numel(), dtype=like.dtype, device=value.device)
    flat[at.long()] = value.to(like.dtype)
    return flat.reshape(like.shape)


def _checked(name: str, tensor: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    if tensor.shape != shape or tensor.dtype != dtype:
        raise UpdateRefused(f"{name} is packed as {tuple(tensor.shape)} {tensor.dtype}")
    return tensor
