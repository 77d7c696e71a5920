"""What the ranks of `test_profile.py` do; a module of its own, so that their processes can import it."""

from __future__ import annotations

from typing import Any

from manyhands.tiles.measure import measure_link


def link_of(_rank: int, group: Any) -> tuple[float, float]:
    link = measure_link(group, num_messages=10)
    return link.latency_s, link.bytes_per_s
