"""How much data each device has, where that is known only when the devices meet."""

from __future__ import annotations

from collections.abc import Mapping

from manyhands.exchange.mixing import mixing_rows
from manyhands.fleet import Fleet

__all__ = ["Counts"]


class Counts:
    """How much data each device has: what merging weighs by.

    Where each has its own (``data.shares = "own"``), nobody knows beforehand: it is what they tell.
    """

    def __init__(self, fleet: Fleet, num_examples: Mapping[str, int]) -> None:
        self.num_examples = dict(num_examples)
        self._fleet = fleet
        self._holds: Mapping[str, tuple[str, ...]] = {}
        self._rows: dict[str, dict[str, dict[str, float]]] = {}

    def rows(self, holds: Mapping[str, tuple[str, ...]]) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """The weights among neighbours (`mixing_rows`), which change with the counts."""
        self._holds = holds
        self._rows = mixing_rows(self._fleet, holds, self.num_examples)
        return self._rows

    def correct(self, device: str, num_examples: int) -> None:
        """Takes what a device tells of itself."""
        if device not in self.num_examples or self.num_examples[device] == num_examples:
            return
        self.num_examples[device] = num_examples
        for name, rows in mixing_rows(self._fleet, self._holds, self.num_examples).items():
            for block, row in rows.items():
                self._rows[name][block].update(row)
