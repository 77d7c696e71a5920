"""MNIST and Fashion-MNIST from their idx files, compressed or not.

An idx file is a big-endian header (two zero bytes, the type 0x08 for uint8, the number of dimensions,
then each dimension) and the values. Checksums are those of the *uncompressed* files, so that a copy
which was compressed anew (Debian's, for one) is still recognised as the published data.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from manyhands.data.arrays import read_npz
from manyhands.data.examples import Array, Dataset, damaged, make_dataset

__all__ = ["FASHION_CLASSES", "FASHION_MD5", "FILES", "MNIST_MD5", "find_idx", "read_idx_set"]

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MOST_DEFLATED = 1100  # deflate shrinks by at most about 1032


def find_idx(folder: Path) -> Mapping[str, Path] | None:
    """The four files of a folder by their published names, or None unless all are there."""
    found = {}
    for name in FILES:
        dotted = name.replace("-idx", ".idx")  # as some archives have it
        spellings = [folder / spelling for spelling in (name, f"{name}.gz", dotted, f"{dotted}.gz")]
        there = [file for file in spellings if file.is_file()]
        if not there:
            return None
        found[name] = there[0]
    return found


def read_idx_set(place: Path, name: str, classes: tuple[str, ...], md5: Mapping[str, str] | None) -> Dataset:
    """Reads the folder of the four files, or an ``.npz`` of the same content.

    Args:
        place: The folder or the ``.npz``.
        name: What to call the data set.
        classes: The name of each label.
        md5: The checksums that the four files must have, by name; None: any will do.
    """
    if not place.is_dir():
        whole = read_npz(place, name)
        for part, (images, labels) in ((whole.train, FILES[:2]), (whole.test, FILES[2:])):
            _check(place, images, part.x.numpy().squeeze(1) if part.x.shape[1] == 1 else part.x.numpy(), md5)
            _check(place, labels, part.y.numpy().astype(np.uint8), md5)
        if len(whole.classes) > len(classes):
            raise damaged(place, f"has {len(whole.classes)} classes where {name} has {len(classes)}")
        return Dataset(name, whole.train, whole.test, classes)
    files = find_idx(place)
    if files is None:
        raise damaged(place, f"must hold {', '.join(FILES)} (or the same with .gz)")
    arrays = {}
    for file in FILES:
        arrays[file] = _read(files[file], 3 if "images" in file else 1)
        _check(files[file], file, arrays[file], md5)
    x_train, y_train, x_test, y_test = arrays.values()
    return make_dataset(name, (x_train[:, None], y_train, x_test[:, None], y_test), classes, place)


def _check(source: Path, file: str, array: Array, md5: Mapping[str, str] | None) -> None:
    if md5 is not None and (found := _md5(array)) != md5[file]:
        raise damaged(
            source,
            f"differs from the published {file} (MD5 {found} instead of {md5[file]}); "
            "fetch it anew, or set data.verify = false if it is meant to differ",
        )


def _read(file: Path, dimensions: int) -> Array:
    try:
        with _opened(file) as stream:
            header = stream.read(4 + 4 * dimensions)
            if header[:4] != bytes((0, 0, 8, dimensions)) or len(header) < 4 + 4 * dimensions:
                raise damaged(
                    file, f"is no idx file of bytes in {dimensions} dimension(s): wrong first bytes"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            expected = int(np.prod([int(n) for n in shape], dtype=object))
            # Believe a header only as far as the file could bear it out, before memory is set aside.
            if expected > file.stat().st_size * (MOST_DEFLATED if file.suffix == ".gz" else 1):
                raise damaged(file, f"is truncated: its header promises {expected} values")
            array = np.empty(shape, np.uint8)
            got = _fill(stream, array)
            if got < expected:
                raise damaged(file, f"is truncated: {got} values where its header promises {expected}")
            if stream.read(1):
                raise damaged(file, "goes on after its last value: damaged, or no idx file")
            return array
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(file, f"cannot be read ({error})") from error


def _opened(file: Path) -> io.BufferedIOBase:
    return gzip.GzipFile(file, "rb") if file.suffix == ".gz" else file.open("rb")


def _fill(stream: io.BufferedIOBase, array: Array) -> int:
    view, got = array.data.cast("B") if array.size else memoryview(b""), 0
    while got < len(view):
        count = stream.readinto(view[got : got + (1 << 20)])
        if not count:
            break
        got += count
    return got


def _md5(array: Array) -> str:
    """MD5 of the idx file that would hold the array."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    md5 = hashlib.md5(header, usedforsecurity=False)
    md5.update(np.ascontiguousarray(array).data)
    return md5.hexdigest()
