"""Tile groups in words: how each was cut, and its predicted step beside the measured one."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from manyhands.report.markup import card, table
from manyhands.report.reading import Result, number
from manyhands.report.units import MISSING, seconds_text

__all__ = ["group_lines", "groups_card"]

Group = Mapping[str, Any]


def group_lines(result: Result) -> list[str]:
    """A line for each group: ``crew (3 devices): 12.1 ms a step, 11.8 ms predicted``."""
    lines = []
    for group in _groups(result):
        predicted, measured = number(group, "step_seconds"), number(group, "measured_step_seconds")
        took = f"{seconds_text(predicted)} a step, as predicted"
        if measured is not None and predicted:
            took = (
                f"{seconds_text(measured)} a step, {seconds_text(predicted)} predicted "
                f"({measured / predicted:.2f} x)"
            )
        lines.append(f"{group.get('name', '?')} ({len(group.get('devices') or [])} devices): {took}")
    return lines


def groups_card(result: Result) -> str:
    """A table of the groups for the report; nothing where there are none."""
    groups = _groups(result)
    if not groups:
        return ""
    rows = (
        f'<th scope="row">{escape(str(group.get("name", "?")))}</th>'
        f"<td>{escape(', '.join(map(str, group.get('devices') or [])))}</td>"
        f"<td>{escape(_cut(group))}</td>"
        f"<td>{seconds_text(number(group, 'step_seconds'))}</td>"
        f"<td>{seconds_text(number(group, 'measured_step_seconds'))}</td>"
        f'<td class="long">{escape(_parts(group))}</td>'
        for group in groups
    )
    heads = ("Group", "Devices", "Cut", "Step, predicted", "Step, measured", "Prediction by parts")
    return card("Tile groups", table(heads, rows, style="texts"))


def _groups(result: Result) -> list[Group]:
    return [group for group in result.get("groups") or [] if isinstance(group, Mapping)]


def _cut(group: Group) -> str:
    rows, cols = (" + ".join(map(str, group.get(key) or [])) or MISSING for key in ("rows", "cols"))
    stacks = 1 + len(group.get("group_starts") or [])
    again = "; maps computed again on the way back" if group.get("checkpoint") else ""
    tail = f"; from {group.get('tail')} on: {group.get('tail_mode')}"
    return f"rows {rows}, columns {cols}; {stacks} {'stack' if stacks == 1 else 'stacks'}{tail}{again}"


def _parts(group: Group) -> str:
    parts = group.get("parts") or {}
    return ", ".join(f"{name} {seconds_text(number(parts, name))}" for name in parts if number(parts, name))
