"""CIFAR-10 and CIFAR-100 from their binary distribution, unpacked or straight out of the ``.tar.gz``.

A record is the label (CIFAR-100: the coarse, then the fine one) and 3 x 32 x 32 bytes, red, green, blue.
All records, training and test, go into one array that is made once and filled in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from manyhands.data.arrays import read_npz
from manyhands.data.examples import Array, Dataset, Progress, damaged, make_dataset

__all__ = ["CIFAR10", "CIFAR100", "Binary", "read_cifar"]

PIXELS = 3 * 32 * 32
RECORDS_AT_ONCE = 5000

FINE_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
    dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
    leopard lion lizard lobster man maple motorcycle mountain mouse mushroom oak orange orchid otter palm
    pear pickup_truck pine plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
    shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow wolf woman
    worm
"""
COARSE_CLASSES = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things
    large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals non-insect_invertebrates
    people reptiles small_mammals trees vehicles_1 vehicles_2
"""


@dataclass(frozen=True)
class Binary:
    """How one of the two is distributed."""

    name: str
    folder: str
    archive: str
    label_bytes: int
    train: dict[str, str]  # file -> MD5
    test: dict[str, str]
    classes: tuple[str, ...]
    coarse: tuple[str, ...] = ()


CIFAR10 = Binary(
    name="cifar10",
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    label_bytes=1,
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)

CIFAR100 = Binary(
    name="cifar100",
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    label_bytes=2,
    train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
    classes=tuple(FINE_CLASSES.split()),
    coarse=tuple(COARSE_CLASSES.split()),
)


def read_cifar(place: Path, kind: Binary, *, labels: str, verify: bool, progress: Progress) -> Dataset:
    """Reads the folder of ``.bin`` files, the ``.tar.gz`` or an ``.npz``.

    Args:
        place: Which of them.
        kind: `CIFAR10` or `CIFAR100`.
        labels: ``fine`` or ``coarse``.
        verify: Whether the files must have their published checksums.
        progress: Told the records read.
    """
    if place.suffix == ".npz":
        return read_npz(place, place.stem, labels=labels, progress=progress)
    files = kind.train | kind.test
    record = kind.label_bytes + PIXELS
    try:
        with _opened(place, list(files)) as streams:
            counts = _counts(place, files, {name: size for name, (size, _) in streams.items()}, record)
            total = sum(counts.values())
            x = np.empty((total, 3, 32, 32), np.uint8)
            y = np.empty((total, kind.label_bytes), np.uint8)
            starts = dict(zip(counts, np.cumsum([0, *counts.values()]), strict=False))
            done = 0
            for name, (_, stream) in streams.items():  # in the order in which they stand in the archive
                part = slice(starts[name], starts[name] + counts[name])
                md5 = _fill(stream, x[part].reshape(-1, PIXELS), y[part])
                if verify and md5 != files[name]:
                    raise damaged(
                        place if place.is_file() else place / name,
                        f"differs from the published {name} (MD5 {md5} instead of {files[name]}); "
                        "fetch it anew, or set data.verify = false if it is meant to differ",
                    )
                done += counts[name]
                progress(f"reading {kind.name}", done, total)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise damaged(place, f"cannot be read ({error})") from error
    train = sum(counts[name] for name in kind.train)
    label = y[:, 0 if labels == "coarse" else -1]
    classes = kind.coarse if labels == "coarse" else kind.classes
    return make_dataset(kind.name, (x[:train], label[:train], x[train:], label[train:]), classes, place)


@contextlib.contextmanager
def _opened(place: Path, names: list[str]) -> Iterator[dict[str, tuple[int, IO[bytes]]]]:
    """Size and stream of each file, out of a folder or an archive."""
    with contextlib.ExitStack() as stack:
        found: dict[str, tuple[int, IO[bytes]]] = {}
        if place.is_dir():
            for name in names:
                file = place / name
                if file.is_file():
                    found[name] = file.stat().st_size, stack.enter_context(file.open("rb"))
        else:
            tar = stack.enter_context(tarfile.open(place, "r:*"))
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                name = Path(member.name).name
                if stream is not None and name in names:
                    found[name] = member.size, stream
        yield found


def _counts(place: Path, files: dict[str, str], sizes: dict[str, int], record: int) -> dict[str, int]:
    """The number of records in each file, in the order of the data set."""
    for name in files:
        if name not in sizes:
            raise damaged(place, f"lacks {name}; it needs {', '.join(files)}")
        if sizes[name] % record or not sizes[name]:
            raise damaged(
                place if place.is_file() else place / name,
                f"{name} is truncated: {sizes[name]} bytes are no whole number of records of {record}",
            )
    return {name: sizes[name] // record for name in files}


def _fill(stream: IO[bytes], x: Array, y: Array) -> str:
    """Reads the records of one file into their place; returns its MD5."""
    md5 = hashlib.md5(usedforsecurity=False)
    record = y.shape[1] + PIXELS
    for start in range(0, len(y), RECORDS_AT_ONCE):
        count = min(RECORDS_AT_ONCE, len(y) - start)
        data = stream.read(count * record)
        if len(data) < count * record:
            raise EOFError("it ends too soon")
        md5.update(data)
        records = np.frombuffer(data, np.uint8).reshape(count, record)
        y[start : start + count] = records[:, : y.shape[1]]
        x[start : start + count] = records[:, y.shape[1] :]
    return md5.hexdigest()
