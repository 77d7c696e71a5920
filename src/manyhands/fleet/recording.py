"""Recorded use: a table in a text file, one row a span of time, written by ``manyhands profile --record``.

Its first line is ``seconds,cores,network_bps,disk_bps``. A row says what was used on average in the time that
ended at ``seconds``, since the row before or, for the first, since 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from manyhands.fleet.use import Use

__all__ = ["COLUMNS", "MOST_CORES", "Span", "read_recording", "write_recording"]

COLUMNS = ("seconds", "cores", "network_bps", "disk_bps")
SHORTEST_S = 0.01
MOST_CORES = 0.95
"""What is used above this counts as this: a scheduler leaves nobody nothing."""


@dataclass(frozen=True)
class Span:
    """What was used until `end_s`, since the span before ended."""

    end_s: float
    use: Use


def read_recording(path: Path) -> tuple[Span, ...]:
    """The spans of a file.

    Raises:
        ValueError: It is not there, or not such a table; says what is wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        raise ValueError(f"must begin with the line {','.join(COLUMNS)}")
    spans: list[Span] = []
    for number, row in enumerate(rows[1:], 2):
        if row:
            spans.append(_span(row, number, spans[-1].end_s if spans else 0.0))
    if not spans:
        raise ValueError("has no rows")
    return tuple(spans)


def _span(row: list[str], number: int, after_s: float) -> Span:
    try:
        end_s, cores, network_bps, disk_bps = (float(cell) for cell in row)
    except ValueError:
        raise ValueError(f"line {number} must have {len(COLUMNS)} numbers") from None
    if not after_s + SHORTEST_S <= end_s < float("inf"):
        least = f"at least {after_s + SHORTEST_S:g}, {SHORTEST_S:g} after the row before"
        raise ValueError(f"line {number}: seconds must be {least}")
    if not (0 <= cores <= 1 and 0 <= network_bps < float("inf") and 0 <= disk_bps < float("inf")):
        raise ValueError(f"line {number}: cores must be from 0 to 1, network_bps and disk_bps not below 0")
    return Span(end_s, Use(min(cores, MOST_CORES), network_bps, disk_bps))


def write_recording(file: TextIO, spans: Iterable[Span]) -> None:
    """Writes spans as they come, so that a recording that is broken off is one."""
    file.write(",".join(COLUMNS) + "\n")
    for span in spans:
        cores, network_bps, disk_bps = span.use.figures
        file.write(f"{span.end_s:.3f},{cores:.4f},{network_bps:.0f},{disk_bps:.0f}\n")
        file.flush()
