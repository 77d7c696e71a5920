"""Figures as a person reads them: a number in a unit that suits its size.

A text function serves tables and sentences; a scale function gives an axis one unit for all its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "bytes_scale",
    "bytes_text",
    "count_text",
    "counted",
    "energy_scale",
    "energy_text",
    "memory_text",
    "percent_text",
    "seconds_scale",
    "seconds_text",
]

Scale = tuple[float, str]

# From small to large: how many base units make one, and its symbol.
SECONDS: Sequence[Scale] = ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h"), (86400, "days"))
BYTES: Sequence[Scale] = ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
MEMORY: Sequence[Scale] = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
JOULES: Sequence[Scale] = ((1, "J"), (1e3, "kJ"))
COUNTS: Sequence[Scale] = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
MISSING = "–"


def seconds_scale(largest: float) -> Scale:
    """The unit of a time axis that reaches to `largest` seconds."""
    # An axis to 100 s reads better in seconds than to 1.7 min.
    return _scale(largest / 2 if largest > 2 else largest, SECONDS)


def bytes_scale(largest: float) -> Scale:
    """The unit of an axis that reaches to `largest` bytes."""
    return _scale(largest, BYTES)


def energy_scale(largest: float) -> Scale:
    """The unit of an axis that reaches to `largest` joules."""
    return _scale(largest, _energy_units(largest))


def seconds_text(seconds: float | None) -> str:
    """For example ``250 ms``, ``12.3 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if abs(seconds) < 99.95:
        return "0 s" if seconds == 0 else _text(seconds, SECONDS[:2])
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{seconds / 86400:.1f} days"


def bytes_text(size: float | None) -> str:
    """Traffic, in powers of 1000: ``1.23 MB``."""
    return _text(size, BYTES)


def memory_text(size: float | None) -> str:
    """Memory, in powers of 1024: ``312 MiB``."""
    return _text(size, MEMORY)


def energy_text(joules: float | None) -> str:
    """For example ``12.3 J``, ``4.56 kJ``, ``310 Wh``."""
    return _text(joules, _energy_units(joules or 0.0))


def count_text(count: float | None) -> str:
    """For example ``512``, ``61.7 k``, ``1.63 M``."""
    return _text(count, COUNTS)


def percent_text(fraction: float | None) -> str:
    """For example ``94.1 %``."""
    return MISSING if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.1f} %"


def counted(count: float, thing: str) -> str:
    """For example ``1 round`` and ``20 rounds``."""
    return f"{count:.0f} {thing}" if round(count) == 1 else f"{count:.0f} {thing}s"


def _energy_units(joules: float) -> Sequence[Scale]:
    """Joules up to a million; what a meter in the house would show above."""
    return JOULES if joules < 1e6 else ((3600, "Wh"), (3.6e6, "kWh"), (3.6e9, "MWh"))


def _scale(value: float, units: Sequence[Scale]) -> Scale:
    fitting = [unit for unit in units if abs(value) >= unit[0]]
    return fitting[-1] if fitting else units[0]


def _text(value: float | None, units: Sequence[Scale]) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    factor, _ = _scale(value, units)
    # The second look lets 999.9 kB become 1.00 MB and not 1000 kB.
    factor, unit = _scale(max(value, float(f"{value / factor:.3g}") * factor), units)
    number = value / factor
    whole = factor == 1 and float(value).is_integer()
    text = (
        f"{number:.0f}" if whole or abs(number) >= 99.95 else f"{number:.{2 if abs(number) < 9.995 else 1}f}"
    )
    return f"{text} {unit}".rstrip()
