"""The job file's tables of devices, and the devices that they describe.

Figures come from the catalogue, and a table may replace any of them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated

from pydantic import Field

from manyhands.errors import JobError
from manyhands.fleet.catalog import CATALOG, FIGURES, Kind
from manyhands.fleet.device import Device
from manyhands.settings import Section

__all__ = ["DeviceSection", "make_devices"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
TORCH_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")
# A device's name is also a file's name and an address; these two are taken.
RESERVED_NAMES = frozenset({"coordinator", "global"})
SHARE_TOLERANCE = 1e-6

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class DeviceSection(Section):
    """One ``[[fleet.device]]`` table: a kind of the catalogue, and what differs from it."""

    kind: str
    name: str | None = None
    count: Count = 1
    share: float | None = None
    flops: Positive | None = None
    cores: Count | None = None
    memory_bytes: Count | None = None
    bandwidth_bps: Positive | None = None
    latency_s: NotNegative | None = None
    active_watts: Positive | None = None
    idle_watts: NotNegative | None = None
    interaction_rate: Positive | None = None
    torch_device: str | None = None
    size: str | None = None
    time_budget_s: Positive | None = None
    classes: Annotated[tuple[int | str, ...], Field(min_length=1)] | None = None
    group: str | None = None


def make_devices(sections: Sequence[DeviceSection], together: str | None = None) -> tuple[Device, ...]:
    """The participants that the tables of a job describe, with every share filled in.

    Args:
        sections: The tables. Those with the same `group` describe one participant, a tile group.
        together: The name of the one group that all of them form, whatever they say; None: as they say.

    Raises:
        JobError: A kind, name, share, group or figure is not possible.
    """
    templates = [_make_template(i, section) for i, section in enumerate(sections)]
    origin = _make_names(sections)
    groups: dict[str, list[tuple[Device, int]]] = {}
    for name, i in origin.items():
        group = together or sections[i].group
        groups.setdefault(f"group {group}" if group else name, []).append(
            (replace(templates[i], name=name), i)
        )
    hands = [
        _form_group(key.removeprefix("group "), members, origin)
        if key.startswith("group ")
        else members[0][0]
        for key, members in groups.items()
    ]
    return _fill_shares(hands, [members[0][1] for members in groups.values()])


def _key(table: int, field: str) -> str:
    return f"fleet.device[{table}].{field}"


def _make_template(table: int, section: DeviceSection) -> Device:
    """The device of a table, still without its final name."""
    kind = _find_kind(table, section.kind)
    optional = ("share", "interaction_rate", "torch_device", "size", "time_budget_s", "classes")
    figures = {figure: getattr(kind, figure) for figure in FIGURES}
    given = {field: getattr(section, field) for field in (*FIGURES, *optional)}
    device = Device(
        **{
            "name": kind.name,
            "kind": kind.name,
            "torch_device": kind.torch_device,
            **figures,
            **{field: value for field, value in given.items() if value is not None},
        }
    )
    if device.idle_watts > device.active_watts:
        raise JobError(
            _key(table, "idle_watts"),
            device.idle_watts,
            f"must not be above active_watts, which is {device.active_watts:g}",
        )
    if not TORCH_DEVICE.fullmatch(device.torch_device):
        expected = 'must be "cpu", "mps", "cuda", or one card of several such as "cuda:1"'
        raise JobError(_key(table, "torch_device"), device.torch_device, expected)
    return device


def _find_kind(table: int, name: str) -> Kind:
    if name in CATALOG:
        return CATALOG[name]
    close = get_close_matches(name.lower(), CATALOG, n=1)
    hint = f'; did you mean "{close[0]}"?' if close else "."
    expected = f"no such kind of device{hint} The kinds are: {', '.join(CATALOG)}"
    raise JobError(_key(table, "kind"), name, expected)


def _make_names(sections: Sequence[DeviceSection]) -> dict[str, int]:
    """Every device's name and the table it comes from, in the job's order."""
    unnamed: Counter[str] = Counter()
    for section in sections:
        if section.name is None:
            unnamed[section.kind] += section.count
    numbers = {kind: itertools.count(1) for kind in unnamed}
    origin: dict[str, int] = {}
    folded: dict[str, int] = {}
    for i, section in enumerate(sections):
        if section.name is None:  # numbered through all tables of this kind
            stem, number, several = section.kind, numbers[section.kind], unnamed[section.kind] > 1
        else:
            stem, number, several = section.name, itertools.count(1), section.count > 1
        for k in itertools.islice(number, section.count):
            name = f"{stem}-{k}" if several else stem
            _check_name(i, name)
            # Case is ignored because names become files, and some file systems ignore it.
            if folded.setdefault(name.casefold(), i) != i:
                first = folded[name.casefold()]
                expected = f"every device needs a name of its own; fleet.device[{first}] has it already"
                raise JobError(_key(i, "name"), name, expected)
            origin[name] = i
    return origin


def _check_name(table: int, name: str, field: str = "name") -> None:
    if not NAME.fullmatch(name):
        raise JobError(
            _key(table, field),
            name,
            "must begin with a letter or digit and hold only letters, digits and _ . - (at most 64)",
        )
    if name.casefold() in RESERVED_NAMES:
        taken = " and ".join(f'"{word}"' for word in sorted(RESERVED_NAMES))
        raise JobError(_key(table, field), name, f"{taken} are names manyhands uses itself; take another")


def _form_group(name: str, members: Sequence[tuple[Device, int]], taken: Mapping[str, int]) -> Device:
    """The participant that several devices make together.

    What it does takes them as long as a plan says; until there is one, its figures are sums. It speaks with
    others over the best link that any of them has.
    """
    devices, tables = [device for device, _ in members], [table for _, table in members]
    table = tables[0]
    _check_name(table, name, "group")
    if name.casefold() in {other.casefold() for other in taken}:
        raise JobError(_key(table, "group"), name, "a device has this name already; take another")
    if len(devices) < 2:
        expected = f"a tile group needs two devices or more, and {devices[0].name} is alone in it"
        raise JobError(_key(table, "group"), name, expected)
    for field in ("size", "time_budget_s", "classes", "torch_device", "interaction_rate"):
        for device, other in zip(devices, tables, strict=True):
            if getattr(device, field) != getattr(devices[0], field):
                expected = f"all devices of the tile group {name} need the same, which trains one network"
                raise JobError(_key(other, field), getattr(device, field), expected)
    kinds = Counter(device.kind for device in devices)
    shares = [device.share for device in devices if device.share is not None]
    speaker = max(devices, key=lambda device: device.bandwidth_bps)
    return replace(
        speaker,
        name=name,
        kind=" + ".join(f"{count} x {kind}" for kind, count in kinds.items()),
        flops=sum(device.flops for device in devices),
        cores=sum(device.cores for device in devices),
        memory_bytes=sum(device.memory_bytes for device in devices),
        active_watts=sum(device.active_watts for device in devices),
        idle_watts=sum(device.idle_watts for device in devices),
        share=sum(shares) if len(shares) == len(devices) else None,
        executors=tuple(devices),
    )


def _fill_shares(devices: Sequence[Device], tables: Sequence[int]) -> tuple[Device, ...]:
    """Equal shares where none is given; otherwise the given ones, once they are known to make a whole."""
    if all(device.share is None for device in devices):
        return tuple(replace(device, share=1 / len(devices)) for device in devices)
    total = 0.0
    for device, table in zip(devices, tables, strict=True):
        if device.share is None:
            expected = f'"{device.name}" has no share but others have; give every device one, or none'
            raise JobError(_key(table, "share"), None, expected)
        if not 0 < device.share <= 1:
            expected = f'the share of "{device.name}" must be above 0 and at most 1, a fraction of all data'
            raise JobError(_key(table, "share"), device.share, expected)
        total += device.share
    if abs(total - 1) > SHARE_TOLERANCE:
        each = (
            "; in a table with a count, each device has that share" if len(set(tables)) < len(tables) else ""
        )
        expected = f"the shares of all devices must sum to 1, and these sum to {total:.6g}{each}"
        raise JobError("fleet.device.share", None, expected)
    return tuple(devices)
