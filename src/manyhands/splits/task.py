"""Split by task: each device trains the classes that it cares for (paper 000).

The network is decoupled by class (`models.decoupled`): layers that all share, then a structure for each class
by itself. A device's network has the structures of its own classes. The shared layers are the block
``shared``; each structure is a block ``task/<class>``, which is averaged among those who hold it.
"""

from __future__ import annotations

from manyhands.blocks import Layout, Part
from manyhands.fleet import Fleet
from manyhands.splits.classes import read_classes
from manyhands.splits.seat import Networks, Seat, Split
from manyhands.splits.section import SplitSection

__all__ = ["task"]


def task(fleet: Fleet, networks: Networks, _section: SplitSection) -> Split:
    """Gives each device the network of its classes; whole, it is that of all."""
    whole = networks.sizes[-1]
    sizes = {device.name: device.size or whole for device in fleet.devices}
    layouts = {size: _layout(networks, size) for size in {*sizes.values(), whole}}
    seats = {name: Seat(size, layouts[size]) for name, size in sizes.items()}
    return Split("task", seats, Seat(whole, layouts[whole]), prepared=True)


def _layout(networks: Networks, size: str) -> Layout:
    """The shared layers, and each class's rows of all tensors that have some."""
    classes, state, by_class = read_classes(size), networks.state(size), networks.by_class(size)
    blocks = {"shared": {name: Part(name) for name in state if name not in by_class}}
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items() if name in by_class}
    for place, number in enumerate(classes):
        blocks[f"task/{number}"] = {
            name: _rows(name, shape, place, len(classes)) for name, shape in shapes.items()
        }
    return blocks


def _rows(name: str, shape: tuple[int, ...], place: int, num_classes: int) -> Part:
    """A class's rows; all of them, if there is no other class, are the tensor itself, which is not copied."""
    if num_classes == 1:
        return Part(name)
    each = shape[0] // num_classes
    return Part(name, (slice(place * each, (place + 1) * each), *(slice(0, size) for size in shape[1:])))
