"""Data sets in an ``.npz``: ``x_train``, ``y_train``, ``x_test``, ``y_test``, perhaps ``class_names``.

Pictures are uint8: [N, H, W], [N, C, H, W], or [N, H, W, C] where C is at most 4 and the second axis is
longer than that. An ``.npz`` can also hold the packed form that `packed` explains; it is unpacked once and
remembered. Nothing is ever unpickled.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from manyhands.data import cache, packed
from manyhands.data.examples import Array, Dataset, Progress, damaged, make_dataset, silent

__all__ = ["read_npz"]

UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,  # zipfile, of an encrypted member or a compression it does not know
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def read_npz(file: Path, name: str, *, labels: str = "fine", progress: Progress = silent) -> Dataset:
    """Reads one file.

    Args:
        file: The ``.npz``.
        name: What to call the data set.
        labels: ``coarse`` takes ``coarse_train`` and ``coarse_test`` in place of ``y_…``.
        progress: Told how far the unpacking is, where there is something to unpack.
    """
    prefix, names_key = ("coarse", "coarse_names") if labels == "coarse" else ("y", "class_names")
    wanted = ["x_train", f"{prefix}_train", "x_test", f"{prefix}_test"]
    try:
        with file.open("rb") as stream:  # np.load(file) would leave it open when it is no .npz
            members = np.load(stream, allow_pickle=False)
            if not isinstance(members, np.lib.npyio.NpzFile):
                raise damaged(file, "is no .npz but a single array")
            pictures = _unpacked(file, members, progress) if packed.is_packed(members.files) else {}
            missing = [key for key in wanted if key not in members.files and key not in pictures]
            if missing:
                raise damaged(file, f"lacks the array {missing[0]}; it needs {', '.join(wanted)}")
            x_train, y_train, x_test, y_test = (
                pictures[key] if key in pictures else members[key] for key in wanted
            )
            names = members[names_key] if names_key in members.files else None
    except UNREADABLE as error:
        raise damaged(file, f"cannot be read as .npz ({_first_line(error)})") from error
    for key, y in ((wanted[1], y_train), (wanted[3], y_test)):
        if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) == 0:
            raise damaged(file, f"{key} must be whole numbers in one dimension, not {y.dtype} {y.shape}")
    classes = [
        str(c) for c in (names if names is not None else range(int(max(y_train.max(), y_test.max())) + 1))
    ]
    parts = _pictures(file, "x_train", x_train), y_train, _pictures(file, "x_test", x_test), y_test
    return make_dataset(name, parts, classes, file)


def _pictures(file: Path, key: str, x: Array) -> Array:
    """As [N, C, H, W]."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or 0 in x.shape[1:]:
        raise damaged(
            file, f"{key} must be uint8 of shape [N, H, W] or [N, C, H, W], not {x.dtype} {x.shape}"
        )
    if x.ndim == 3:
        return x[:, None]
    if x.shape[3] <= 4 < x.shape[1]:
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _unpacked(file: Path, members: Mapping[str, Array], progress: Progress) -> dict[str, Array]:
    """x_train and x_test of a packed file, from the cache if they are there."""
    expected = str(members["x_sha256"])
    key = f"unpacked-{expected[:24]}"

    def build() -> dict[str, Array]:
        # An NpzFile reads a member anew each time it is asked for it, so ask once.
        return {"x": packed.unpack({name: members[name] for name in members}, progress)}

    x = cache.remembered(key, build)["x"]
    if packed.digest(x) != expected:
        cache.forget(key)  # a damaged cache is mended once; a damaged file stays so
        x = cache.remembered(key, build)["x"]
        if packed.digest(x) != expected:
            cache.forget(key)
            raise damaged(file, "is damaged: its unpacked pictures have a wrong SHA-256")
    count = len(members["y_train"])
    return {"x_train": x[:count], "x_test": x[count:]}


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
