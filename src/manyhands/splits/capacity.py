"""Split by capacity: each device trains the network it can afford, and all have parts in common (paper 001).

Devices of one size are a group: they share its branch, the block ``branch/<size>``, wholly. Between sizes
knowledge flows through what the form gives them in common: the ``stem``, and beyond it, in a cascade or with
exits, the branches of all smaller sizes, or in nested widths the entries of all narrower networks. A block
that only one device holds is not exchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

import torch

from manyhands.blocks import Layout, Part, covers
from manyhands.errors import JobError
from manyhands.fleet import Fleet
from manyhands.splits.seat import Networks, Seat, Split
from manyhands.splits.section import SplitSection

__all__ = ["capacity"]

State = Mapping[str, torch.Tensor]
Corner = tuple[int, ...]


def capacity(fleet: Fleet, networks: Networks, section: SplitSection) -> Split:
    """Gives each device the network of its size, in the job's form."""
    sizes = {device.name: device.size or networks.sizes[-1] for device in fleet.devices}
    used = [size for size in networks.sizes if size in sizes.values()]
    layouts = (
        _nested_widths(networks, used) if section.form == "width" else _branches(networks, used, section)
    )
    num_holders = Counter(block for size in sizes.values() for block in layouts[size])
    shared: dict[str, Layout] = {
        size: {block: parts for block, parts in layout.items() if num_holders[block] > 1}
        for size, layout in layouts.items()
    }
    seats = {name: Seat(size, shared[size]) for name, size in sizes.items()}
    return Split("capacity", seats, _merged(networks, shared))


def _merged(networks: Networks, shared: Mapping[str, Layout]) -> Seat | None:
    """The largest network that is made of shared blocks alone."""
    for size in reversed(networks.sizes):
        if size in shared and covers(shared[size], networks.state(size)):
            return Seat(size, shared[size])
    return None


def _branches(networks: Networks, used: list[str], section: SplitSection) -> dict[str, Layout]:
    """The stem that all have, and whole branches."""
    layouts: dict[str, Layout] = {}
    for size in used:
        blocks: dict[str, dict[str, Part]] = {"stem": {}}
        for name in networks.state(size):
            if any(name.startswith(f"{module}.") for module in section.stem):
                blocks["stem"][name] = Part(name)
            elif section.form == "stem":
                blocks.setdefault(f"branch/{size}", {})[name] = Part(name)
            else:
                _, branch, rest = name.split(".", 2)
                blocks.setdefault(f"branch/{branch}", {})[rest] = Part(name)
        layouts[size] = blocks
    _check_stem(networks, used, layouts, section)
    return layouts


def _check_stem(
    networks: Networks, used: list[str], layouts: Mapping[str, Layout], section: SplitSection
) -> None:
    """Sizes that are said to share their stem must have the same tensors there."""
    first, *others = used
    stem = {name: networks.state(first)[name] for name in layouts[first]["stem"]}
    for module in section.stem:
        if not any(name.startswith(f"{module}.") for name in stem):
            parts = ", ".join(dict.fromkeys(name.split(".")[0] for name in networks.state(first)))
            raise JobError(
                "split.stem", module, f"{first} has no such part with weights; its parts are {parts}"
            )
    for size in others:
        other = {name: networks.state(size)[name] for name in layouts[size]["stem"]}
        for name in [*stem, *(name for name in other if name not in stem)]:
            a, b = (_shape_of(tensors.get(name)) for tensors in (stem, other))
            if a != b:
                expected = f"{first} and {size} do not share it: {name} is {a} in {first} and {b} in {size}"
                raise JobError("split.stem", ", ".join(section.stem), expected)


def _shape_of(tensor: torch.Tensor | None) -> str:
    return "missing" if tensor is None else "x".join(map(str, tensor.shape)) or "a number"


def _nested_widths(networks: Networks, used: list[str]) -> dict[str, Layout]:
    """Each size adds a shell around the next smaller one; statistics of activations stay within a size.

    What batch normalisation has counted depends on the width of the layers before, so a narrower network's
    counts are no corner of a wider one's.
    """
    layouts: dict[str, Layout] = {}
    shells: dict[str, dict[str, Part]] = {}
    smaller: State = {}
    for size in used:
        state, counted = networks.state(size), networks.buffers(size)
        trained = {name: tensor for name, tensor in state.items() if name not in counted}
        if smaller:
            _check_nested(smaller, trained, used[used.index(size) - 1], size)
        shells[f"branch/{size}"] = {
            f"{name}[{number}]": Part(name, index)
            for name, tensor in trained.items()
            for number, index in enumerate(_shell(_corner(smaller.get(name)), tuple(tensor.shape)))
        }
        statistics = {f"statistics/{size}": {name: Part(name) for name in counted}} if counted else {}
        layouts[size] = {**_plain(shells, trained), **statistics}
        smaller = trained
    return layouts


def _plain(shells: Mapping[str, Mapping[str, Part]], state: State) -> dict[str, dict[str, Part]]:
    """The shells of a state; a slice that is all of its tensor is the tensor itself, which is not copied."""

    def simplest(part: Part) -> Part:
        return Part(part.tensor) if part.view(state).shape == state[part.tensor].shape else part

    return {block: {name: simplest(part) for name, part in parts.items()} for block, parts in shells.items()}


def _check_nested(smaller: State, larger: State, small: str, large: str) -> None:
    """A narrower network must fit into the corner of a wider one."""
    for name in [*smaller, *(name for name in larger if name not in smaller)]:
        a, b = smaller.get(name), larger.get(name)
        if (
            a is None
            or b is None
            or a.dim() != b.dim()
            or any(n > m for n, m in zip(a.shape, b.shape, strict=True))
        ):
            shapes = f"{name} is {_shape_of(a)} in {small} and {_shape_of(b)} in {large}"
            expected = f"{small} is no slice of {large}: {shapes}"
            raise JobError("split.form", "width", expected)


def _corner(tensor: torch.Tensor | None) -> Corner | None:
    return None if tensor is None else tuple(tensor.shape)


def _shell(inner: Corner | None, outer: Corner) -> Iterator[tuple[slice, ...]]:
    """Rectangles that fill the outer corner without the inner one, and do not overlap.

    One for each dimension: along it beyond the inner corner, within that along those before, and whole along
    those after.
    """
    if inner is None:
        yield tuple(slice(0, end) for end in outer)
        return
    for axis, (start, end) in enumerate(zip(inner, outer, strict=True)):
        index = (
            *(slice(0, stop) for stop in inner[:axis]),
            slice(start, end),
            *(slice(0, stop) for stop in outer[axis + 1 :]),
        )
        if prod(part.stop - part.start for part in index):
            yield index
