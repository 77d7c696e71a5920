"""Files that are there in full or not at all, whenever the program is stopped."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Writes a file beside its place and moves it there when it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        return partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
