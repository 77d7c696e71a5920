"""What the messages of a job may hold, and the reading of bytes that may hold anything.

Everything that comes from a peer is taken for hostile. Sizes are checked before anything is allocated, then
names, shapes, dtypes and whether numbers are finite; the first thing that is wrong raises `MessageDamaged`,
and nothing else is ever raised. Tensors are views of the bytes that came, so reading costs no memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from manyhands.blocks import HEADER_BYTES, Weights
from manyhands.errors import MessageDamaged
from manyhands.exchange.packing import Packing, pack
from manyhands.wire.body import DTYPES

__all__ = ["Expected", "Spec", "expect", "read_body"]

KINDS = frozenset(
    {"round", "stop", "update", "stopped", "blocks", "consensus", "chunk", "broken"}
    | {"announce", "push", "receipt", "ask", "leave"}
)
"""What the programs of the exchange say to each other."""

PIECES = frozenset({"chunk"})
"""The kinds of message that carry pieces of blocks: flat, and named after their dtype."""


@dataclass(frozen=True)
class Spec:
    """What a tensor must be."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """How much it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Expected:
    """What the messages of a job may hold.

    Attributes:
        blocks: Block -> tensor -> what it must be.
        num_rounds: How many rounds there are; a message names one of them, or the end.
        kinds: The kinds of message that there are.
        packed: The same as `blocks` for updates, where they travel packed.
    """

    blocks: Mapping[str, Mapping[str, Spec]]
    num_rounds: int
    kinds: frozenset[str] = KINDS
    packed: Mapping[str, Mapping[str, Spec]] | None = None

    def specs(self, kind: str, block: str) -> Mapping[str, Spec]:
        """What a block must be in a message of a kind."""
        return (self.packed if self.packed is not None and kind == "update" else self.blocks)[block]

    def max_bytes(self, names: tuple[str, ...]) -> int:
        """More than a message with these blocks can take."""
        specs = [spec for name in names for spec in self.blocks[name].values()]
        # Whole numbers that go round a ring travel as float64.
        return 4096 + sum(max(spec.nbytes, 8 * math.prod(spec.shape)) + 4 * HEADER_BYTES for spec in specs)


def expect(
    blocks: Mapping[str, Mapping[str, torch.Tensor]], num_rounds: int, packing: Packing | None = None
) -> Expected:
    """What the messages about some blocks may hold, updates packed where they are."""
    specs = {block: _specs(tensors) for block, tensors in blocks.items()}
    if packing is None or packing.how == "none":
        return Expected(specs, num_rounds)
    packed = {block: _specs(pack(packing, tensors)[0]) for block, tensors in blocks.items()}
    return Expected(specs, num_rounds, packed=packed)


def _specs(tensors: Mapping[str, torch.Tensor]) -> dict[str, Spec]:
    return {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def read_body(
    data: bytearray | memoryview, kind: str, names: tuple[str, ...], expected: Expected
) -> dict[str, Weights]:
    """The blocks that some bytes hold, as views of them.

    Raises:
        MessageDamaged: They are not exactly these blocks, whole and finite.
    """
    try:
        header, begin = _header(data, expected.max_bytes(names))
        found = _tensors(data, header, begin, names)
    except (KeyError, ValueError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise MessageDamaged(f"not a body: {type(error).__name__}: {str(error)[:80]}") from None
    for block, tensors in found.items():
        specs = expected.specs(kind, block)
        problem = _misfit_of_pieces(tensors, specs) if kind in PIECES else _misfit(tensors, specs)
        if problem:
            raise MessageDamaged(f"block {block!r}: {problem}")
    return {block: Weights(tensors) for block, tensors in found.items()}


def _header(data: bytearray | memoryview, max_bytes: int) -> tuple[dict[str, Any], int]:
    (length,) = struct.unpack_from("<Q", data)
    if length % 8 or length > min(len(data) - 8, max_bytes):
        raise ValueError("the header's length cannot be")
    header = json.loads(bytes(memoryview(data)[8 : 8 + length]))
    header.pop("__metadata__", None)
    return header, 8 + length


def _tensors(
    data: bytearray | memoryview, header: Mapping[str, Any], begin: int, names: tuple[str, ...]
) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of a header that tile the bytes after it without a gap or an overlap."""
    found: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    entries = sorted(header.items(), key=lambda item: _whole(item[1]["data_offsets"], 2))
    at = 0
    for key, entry in entries:
        dtype, (start, stop) = DTYPES[entry["dtype"]], _whole(entry["data_offsets"], 2)
        shape = _whole(entry["shape"])
        count = math.prod(shape)
        if start != at or stop - start != count * dtype.itemsize or begin + stop > len(data):
            raise ValueError("the offsets do not fit")
        if (begin + start) % dtype.itemsize:
            raise ValueError("a tensor is not aligned")
        at = stop
        block, _, name = key.partition(":")
        if count:
            tensor = torch.frombuffer(data, dtype=dtype, count=count, offset=begin + start).reshape(shape)
        else:
            tensor = torch.empty(shape, dtype=dtype)
        found[block][name] = tensor
    if begin + at != len(data):
        raise ValueError("there are bytes that belong to no tensor")
    return found


def _whole(numbers: Any, count: int | None = None) -> tuple[int, ...]:
    """A list of whole numbers that could be a shape or offsets."""
    if not isinstance(numbers, list) or len(numbers) > 16 or (count is not None and len(numbers) != count):
        raise TypeError("a list of numbers is not one")
    for number in numbers:
        if type(number) is not int or not 0 <= number < 1 << 48:
            raise ValueError("a number cannot be")
    return tuple(numbers)


def _misfit(tensors: Mapping[str, torch.Tensor], specs: Mapping[str, Spec]) -> str:
    """What is wrong with a block; nothing if it fits."""
    if tensors.keys() != specs.keys():
        return f"tensor names differ: {', '.join(sorted(tensors.keys() ^ specs.keys())[:3])[:80]}"
    for name, tensor in tensors.items():
        if (tuple(tensor.shape), tensor.dtype) != (specs[name].shape, specs[name].dtype):
            return f"{name} is {tuple(tensor.shape)} {tensor.dtype}"
    return _not_finite(tensors)


def _misfit_of_pieces(tensors: Mapping[str, torch.Tensor], specs: Mapping[str, Spec]) -> str:
    """What is wrong with a piece of a block, all numbers of a dtype in one tensor; nothing if it fits."""
    room: Counter[str] = Counter()
    for spec in specs.values():
        dtype = spec.dtype if spec.dtype.is_floating_point else torch.float64
        room[str(dtype).removeprefix("torch.")] += math.prod(spec.shape)
    for name, tensor in tensors.items():
        if name not in room or str(tensor.dtype) != f"torch.{name}":
            return f"no numbers of that kind: {name[:40]} is {tensor.dtype}"
        if tensor.dim() != 1 or tensor.numel() > room[name]:
            return f"{name} is {tuple(tensor.shape)}"
    return _not_finite(tensors)


def _not_finite(tensors: Mapping[str, torch.Tensor]) -> str:
    for name, tensor in tensors.items():
        # A finite sum proves all entries finite, at a fraction of the cost of looking at each; one that
        # overflows proves nothing. In the tensor's own precision: widening takes twenty times as long.
        if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
            continue
        if not tensor.isfinite().all():
            return f"{name} holds a value that is not finite"
    return ""
