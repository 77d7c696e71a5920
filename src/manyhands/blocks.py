"""Blocks: the named parts of a network that several devices hold in common.

A *layout* says which parts of a network's state make up each block: whole tensors or rectangular
slices of them (a range of filters, a corner of a wider layer). `views` turns a layout and a state
into live views, so reading a block is reading the network and merging into it is ``copy_``.

Between local phases a network is not an ``nn.Module`` but a `Weights`: named tensors that nobody
changes any more. Devices that hold equal tensors then hold the *same* tensors, which is what lets a
thousand devices that share one network live in one process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

__all__ = [
    "HEADER_BYTES",
    "Layout",
    "Part",
    "Weights",
    "absorb",
    "covers",
    "extract",
    "private_names",
    "views",
    "whole_model",
]


HEADER_BYTES = 128
"""Room for a tensor's name, type and shape where it is sent or stored."""


class Weights(Mapping[str, torch.Tensor]):
    """Named tensors that are never changed after they were made.

    A run that is resumed repeats its control flow before its tensors are back; until then a `Weights`
    is *absent*: it knows its size but has no tensors, and touching one is an error.

    Attributes:
        nbytes: What it takes to send or store them: their data, and a header entry for each.
        lasting: Whether they will be held for long, such as a piece of a replay memory. Checkpoints store
            what is lasting once and refer to it from then on; what is soon replaced is stored each time.
    """

    __slots__ = ("__weakref__", "_tensors", "lasting", "nbytes")

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, lasting: bool = False) -> None:
        self._tensors: dict[str, torch.Tensor] | None = dict(tensors)
        self.lasting = lasting
        self.nbytes: int = sum(t.numel() * t.element_size() + HEADER_BYTES for t in tensors.values())

    @classmethod
    def absent(cls, nbytes: int) -> Weights:
        """Weights of a known size whose tensors come later, by `fill`."""
        weights = cls({})
        weights._tensors, weights.nbytes = None, nbytes
        return weights

    @property
    def is_absent(self) -> bool:
        """Whether the tensors are still missing."""
        return self._tensors is None

    def fill(self, stored: Weights) -> None:
        """Brings an absent `Weights` back as it was stored, lasting if it was so."""
        if self._tensors is not None:
            raise ValueError("these weights are not absent")
        self._tensors, self.lasting = dict(stored), stored.lasting

    def _present(self) -> dict[str, torch.Tensor]:
        if self._tensors is None:
            raise RuntimeError("these weights are absent: a resumed run has not reached its checkpoint yet")
        return self._tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._present()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._present())

    def __len__(self) -> int:
        return len(self._present())

    def __repr__(self) -> str:
        what = "absent" if self._tensors is None else f"{len(self._tensors)} tensors"
        return f"Weights({what}, {self.nbytes} bytes)"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(frozen=True)
class Part:
    """Where one tensor of a block lives: a tensor of the state, or a slice of it."""

    tensor: str
    index: tuple[slice, ...] | None = None

    def view(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The live view into the state."""
        tensor = state[self.tensor]
        return tensor if self.index is None else tensor[self.index]


Layout = Mapping[str, Mapping[str, Part]]
"""Block name -> tensor name within the block -> where it lives."""


def whole_model(state: Mapping[str, torch.Tensor], block: str = "model") -> Layout:
    """The layout with one block that holds the whole network, buffers included."""
    return {block: {name: Part(name) for name in state}}


def views(state: Mapping[str, torch.Tensor], layout: Layout) -> dict[str, dict[str, torch.Tensor]]:
    """Every block as live views into a state, for example into ``module.state_dict()``."""
    return {
        block: {name: part.view(state) for name, part in parts.items()} for block, parts in layout.items()
    }


def extract(state: Mapping[str, torch.Tensor], layout: Layout) -> dict[str, dict[str, torch.Tensor]]:
    """Every block as contiguous tensors that outlive the state; whole tensors are shared, slices copied."""
    return {
        block: {
            name: part.view(state)
            if part.index is None
            else part.view(state).clone(memory_format=torch.contiguous_format)
            for name, part in parts.items()
        }
        for block, parts in layout.items()
    }


def absorb(
    state: Mapping[str, torch.Tensor], layout: Layout, blocks: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """A new state in which the given blocks stand in the place of the old ones.

    The old state is left as it is. Whole tensors are taken over by reference; only a tensor of which
    a block holds a slice is copied. A tensor that `private_names` leaves out need not be in the old state.
    """
    new = dict(state)
    copied = set()
    for block, tensors in blocks.items():
        for name, part in layout[block].items():
            if part.index is None:
                new[part.tensor] = tensors[name]
                continue
            if part.tensor not in copied:
                new[part.tensor] = _to_fill(state, layout, part.tensor, tensors[name])
                copied.add(part.tensor)
            part.view(new).copy_(tensors[name])
    return new


def _to_fill(
    state: Mapping[str, torch.Tensor], layout: Layout, name: str, like: torch.Tensor
) -> torch.Tensor:
    """A tensor for slices to go into: a copy of the old one, or a new one that the slices will fill."""
    if name in state:
        return state[name].clone()
    slices = [part.index for parts in layout.values() for part in parts.values() if part.tensor == name]
    shape = [max(index[axis].stop for index in slices if index) for axis in range(like.dim())]
    return like.new_empty(shape)


def covers(layout: Layout, state: Mapping[str, torch.Tensor]) -> bool:
    """Whether the blocks, which never overlap, hold all of a state."""
    held = sum(part.view(state).numel() for parts in layout.values() for part in parts.values())
    return held == sum(tensor.numel() for tensor in state.values())


def private_names(state: Mapping[str, torch.Tensor], layout: Layout) -> list[str]:
    """The tensors of a state of which not all is in blocks: what a device keeps to itself."""
    shared: Counter[str] = Counter()
    for parts in layout.values():
        for part in parts.values():
            shared[part.tensor] += part.view(state).numel()
    return [name for name, tensor in state.items() if shared[name] < tensor.numel()]
