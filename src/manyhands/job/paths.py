"""The files and folders that a job names: from the root, so that it runs from any folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["root_paths"]

_KEYS = (("data", "path"), ("split", "task", "pretrained"), ("live", "profile"))


def root_paths(said: dict[str, Any], folder: Path) -> None:
    """Names every file from the root, in place; those that are relative are so to the folder."""
    for table, key in _places(said):
        if isinstance(table, dict) and isinstance(table.get(key), str | Path):
            table[key] = str((folder / Path(table[key]).expanduser()).resolve())


def _places(said: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """The tables that may name a file, as they were written, and the key under which they do."""
    for *names, key in _KEYS:
        table: Any = said
        for name in names:
            table = table.get(name) if isinstance(table, dict) else None
        yield table, key
    contention = said.get("contention")
    for table in contention if isinstance(contention, list) else ():
        yield table, "path"
