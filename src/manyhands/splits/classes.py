"""Which classes each device trains (paper 000, section III): plain numbers in, sets of numbers out.

Devices that have a class in common exchange its structure, so these sets are also a graph: it must be one
piece, and every class must be somebody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import networkx as nx

from manyhands.errors import JobError

__all__ = ["ClassSet", "by_speed", "check_classes", "classes_text", "mesh", "read_classes", "ring"]

ClassSet = tuple[int, ...]
"""The classes of one device, ascending."""


def ring(
    num_devices: int, num_classes: int, overlap: int | None = None, each: int | None = None
) -> list[ClassSet]:
    """Runs of neighbouring classes around a circle; each device has `overlap` in common with the next.

    The first run begins half an overlap before class 0. What is left between the last device's run and the
    first one's is the last device's too, as extra work. With four devices, ten classes, five each and two in
    common these are the lists of paper 000: 9 0 1 2 3, 2 3 4 5 6, 5 6 7 8 9 and 8 9 0 1 2.

    Args:
        num_devices: How many devices there are.
        num_classes: How many classes there are.
        overlap: How many classes neighbours share; None: as few as leave every class with two devices.
        each: How many classes a device has; None: twice the overlap, so that each class is with two devices.

    Raises:
        JobError: There is no such ring.
    """
    if overlap is None:
        overlap = max(1, -(-num_classes // num_devices) if each is None else each // 2)
    if overlap > num_classes:
        expected = f"neighbours cannot share more classes than there are, {num_classes}"
        raise JobError("split.task.overlap", overlap, expected)
    each = 2 * overlap if each is None else each
    if num_devices == 1:
        return [tuple(range(num_classes))]
    step = each - overlap
    if step < 1:
        expected = f"must be more than the {overlap} that are shared with a neighbour"
        raise JobError("split.task.classes_per_device", each, expected)
    left = num_classes - num_devices * step
    if left >= step and each < num_classes:
        needed = -(-(num_classes - step + 1) // step)
        expected = (
            f"{num_devices} devices take {num_devices * step} of {num_classes} classes in steps of {step}; "
            f"take {needed} devices or more, or a greater overlap"
        )
        raise JobError("split.task.overlap", overlap, expected)
    starts = [step * place - overlap // 2 for place in range(num_devices)]
    lengths = [each] * (num_devices - 1) + [each + max(left, 0)]
    return [
        tuple(sorted({(start + k) % num_classes for k in range(min(length, num_classes))}))
        for start, length in zip(starts, lengths, strict=True)
    ]


def mesh(num_devices: int, num_classes: int) -> list[ClassSet]:
    """Pairs of devices are dealt classes in turn, neighbours first; given enough, every two share some."""
    if num_devices == 1:
        return [tuple(range(num_classes))]
    pairs = sorted(
        combinations(range(num_devices), 2), key=lambda p: (min(p[1] - p[0], num_devices - p[1] + p[0]), p)
    )
    held: list[set[int]] = [set() for _ in range(num_devices)]
    for c in range(num_classes):
        for device in pairs[c % len(pairs)]:
            held[device].add(c)
    return [tuple(sorted(own)) for own in held]


def by_speed(
    speeds: Sequence[float],
    examples: Sequence[int],
    shared: float,
    own: float,
    fractions: Sequence[float] | None = None,
) -> list[ClassSet]:
    """Each class with two devices or more, dealt so that local phases take as nearly equal a time as can be.

    A device's phase takes its examples times the operations of its network, ``shared + own * classes``, by
    its speed; a class's examples are divided among those who hold it. Classes go one by one, those with the
    most examples first, to the device that is done first with one more; every device has one at least. Then
    pieces of the graph are joined where that costs the least time.

    Args:
        speeds: Operations a second of each device.
        examples: How many examples there are of each class.
        shared: Operations of the shared layers on an example.
        own: Operations of one class's structure on an example.
        fractions: In what proportion those who hold a class divide its examples; None: each has all of them.
    """
    devices = range(len(speeds))
    held: list[set[int]] = [set() for _ in devices]

    def seconds(device: int, more: int | None = None) -> float:
        own_classes = held[device] | ({more} if more is not None else set())
        mine = sum(examples[c] * part_of(c, device) for c in own_classes)
        return mine * (shared + own * len(own_classes)) / speeds[device]

    def part_of(c: int, device: int) -> float:
        if fractions is None:
            return 1.0
        return fractions[device] / sum(fractions[d] for d in devices if d == device or c in held[d])

    copies = min(2, len(speeds))
    order = sorted(range(len(examples)), key=lambda c: -examples[c])
    for turn in range(copies):
        for c in order[turn:] + order[:turn]:
            free = [d for d in devices if c not in held[d]]
            held[min(free, key=lambda d: (seconds(d, c), d))].add(c)
    for device in devices:
        if not held[device]:
            held[device].add(min(order, key=lambda c: seconds(device, c)))
    while len(parts := _parts(held)) > 1:
        one, other = parts[0], parts[1]
        ways = [(seconds(d, c), d, c) for d in one for e in other for c in held[e]]
        ways += [(seconds(d, c), d, c) for d in other for e in one for c in held[e]]
        _, device, shared_class = min(ways)
        held[device].add(shared_class)
    return [tuple(sorted(own_classes)) for own_classes in held]


def check_classes(held: Sequence[ClassSet], devices: Sequence[str], classes: Sequence[str]) -> None:
    """Every class is somebody's, every device has one, and all are joined by classes that they share.

    Raises:
        JobError: Names the first class that nobody holds, or the parts that have nothing in common.
    """
    for device, own in zip(devices, held, strict=True):
        if not own:
            expected = f"{device} has none: there are {len(classes)} classes for {len(devices)} devices"
            raise JobError("split.task.assign", None, f"{expected}; leave it out")
    nobody = [name for c, name in enumerate(classes) if not any(c in own for own in held)]
    if nobody:
        more = f" and {len(nobody) - 1} more" if len(nobody) > 1 else ""
        expected = f"nobody holds class {nobody[0]}{more}; every class must be on some device's list"
        raise JobError("fleet.device.classes", None, expected)
    parts = _parts(held)
    if len(parts) > 1:
        apart = " | ".join(", ".join(devices[i] for i in part[:4]) for part in parts[:6])
        expected = f"these have no class in common, and could never agree: {apart}; let them share one"
        raise JobError("fleet.device.classes", None, expected)


def _parts(held: Sequence[ClassSet] | Sequence[set[int]]) -> list[list[int]]:
    """Devices that are joined by shared classes, piece by piece."""
    graph = nx.empty_graph(len(held))
    for c in {c for own in held for c in own}:
        nx.add_path(graph, [device for device, own in enumerate(held) if c in own])
    return [sorted(part) for part in nx.connected_components(graph)]


def classes_text(classes: Sequence[int]) -> str:
    """Ascending classes in short, as ``0-3,9``: also the name of the network that has their structures."""
    runs: list[list[int]] = []
    for c in classes:
        if runs and c == runs[-1][-1] + 1:
            runs[-1].append(c)
        else:
            runs.append([c])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def read_classes(text: str) -> ClassSet:
    """The classes that `classes_text` wrote."""
    ends = [part.split("-") for part in text.split(",")]
    return tuple(c for end in ends for c in range(int(end[0]), int(end[-1]) + 1))
