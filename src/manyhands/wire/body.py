"""A body: the tensors of a message as the bytes of one safetensors file, made only where they are read.

The tensors of a message never change, so a body is views of them and a header; reading a part of it copies
that part and no more. It is cut into leaves, each with a SHA-256 digest, and named by the digest of these:
who knows the digests can take the leaves from anybody. Equal tensors give equal bytes everywhere, so a device
that has received a body can offer it as well.
"""

from __future__ import annotations

import hashlib
import json
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from manyhands.blocks import Weights

__all__ = ["DIGEST_BYTES", "DTYPES", "MAX_LEAVES", "Body", "leaf_bytes_of", "make_body", "name_of"]

DIGEST_BYTES = 32
MIN_LEAF_BYTES = 256 << 10
MAX_LEAVES = 1024

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that travel, by their names in safetensors."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Body:
    """The bytes of some blocks.

    Attributes:
        parts: Views that make up the bytes, one after the other.
        nbytes: How many bytes they are.
    """

    parts: tuple[memoryview, ...]
    nbytes: int

    @property
    def leaf_bytes(self) -> int:
        """How large its leaves are, but for the last."""
        return leaf_bytes_of(self.nbytes)

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Views of the bytes from `start` to `stop`."""
        for number in range(bisect_right(self._ends, start), len(self.parts)):
            part, at = self.parts[number], self._ends[number] - len(self.parts[number])
            if at >= stop:
                return
            yield part[max(start - at, 0) : stop - at]

    @cached_property
    def _ends(self) -> list[int]:
        """Where each part ends; looked up, because a network of many layers has many parts."""
        return list(accumulate(map(len, self.parts)))

    def read(self, start: int, stop: int) -> bytes:
        """A copy of the bytes from `start` to `stop`."""
        return b"".join(self.pieces(start, stop))

    def digests(self, executor: Executor | None = None) -> bytes:
        """The digests of all leaves, one after the other; on several threads where there is an executor."""
        starts = range(0, self.nbytes, self.leaf_bytes)
        return b"".join((executor.map if executor else map)(self._digest, starts))

    def _digest(self, start: int) -> bytes:
        hashed = hashlib.sha256()
        for piece in self.pieces(start, min(start + self.leaf_bytes, self.nbytes)):
            hashed.update(piece)
        return hashed.digest()


def leaf_bytes_of(nbytes: int) -> int:
    """How large the leaves of a body are: 256 KiB, or more where there would be too many of them."""
    size = MIN_LEAF_BYTES
    while size * MAX_LEAVES < nbytes:
        size *= 2
    return size


def name_of(digests: bytes) -> str:
    """What a body is called by all who have it."""
    return hashlib.sha256(digests).hexdigest()


def make_body(blocks: Mapping[str, Weights]) -> Body:
    """The bytes of some blocks: tensors of large numbers first, so that all are aligned, then by name."""
    tensors = {f"{block}:{name}": tensor for block, named in blocks.items() for name, tensor in named.items()}
    header, views, at = {}, [], 0
    for key in sorted(tensors, key=lambda key: (-tensors[key].element_size(), key)):
        flat = tensors[key].detach().cpu().contiguous().reshape(-1)
        size = flat.numel() * flat.element_size()
        shape = list(tensors[key].shape)
        header[key] = {"dtype": _NAMES[flat.dtype], "shape": shape, "data_offsets": [at, at + size]}
        at += size
        if size:
            views.append(flat.view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    first = memoryview(struct.pack("<Q", len(text)) + text)
    return Body((first, *views), len(first) + at)
