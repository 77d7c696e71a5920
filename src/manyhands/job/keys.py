"""Keys as ``--set`` writes them: ``section.key``, ``list[0].key`` or ``list[NAME].key``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from manyhands.errors import JobError

__all__ = ["apply", "place_of", "put", "toml_value"]


def apply(said: dict[str, Any], change: str) -> None:
    """Carries out one ``--set section.key=value``.

    Raises:
        JobError: It does not read so, or the job has no such place.
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip(" .[]"):
        raise JobError("--set", change, "must read section.key=value, for example learn.batch_size=32")
    try:
        put(said, key, toml_value(text))
    except LookupError as error:
        raise JobError("--set", change, str(error.args[0])) from None


def toml_value(text: str) -> Any:
    """A value from the command line: as TOML or, failing that, a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def put(said: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value under a key.

    Raises:
        LookupError: There is no such place; says so in the user's words.
    """
    steps = re.findall(r"[^.\[\]]+|\[[^\[\]]+\]", key.strip())
    here: Any = said
    try:
        for step, following in pairwise(steps):
            if step.startswith("["):
                here = here[place_of(step[1:-1], here)]
            else:
                here = here.setdefault(step, [] if following.startswith("[") else {})
        last = steps[-1]
        here[place_of(last[1:-1], here) if last.startswith("[") else last] = value
    except (IndexError, KeyError, TypeError, AttributeError):
        raise LookupError(f"the job has no {key}") from None


def place_of(name: str, tables: Sequence[Mapping[str, Any]]) -> int:
    """Which of the tables is meant by its number, or by its name (without one, a device has its kind's).

    Raises:
        LookupError: None is, or more than one.
    """
    names = [table.get("name") or table.get("kind") for table in tables]
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    if names.count(name) == 1:
        return names.index(name)
    known = ", ".join(dict.fromkeys(str(name) for name in names[:10]))
    wrong = f'several are called "{name}"' if name in names else f'nothing here is called "{name}"'
    raise LookupError(f"{wrong}; choose one of {known}, or a number from 0")
