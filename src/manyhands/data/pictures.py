"""A folder of pictures, one sub-folder a class, in any format that Pillow reads.

Pictures are turned upright as their camera noted, cut to a centred square and scaled. With ``train`` and
``test`` sub-folders, each of which holds the classes, the split is theirs; otherwise it is drawn with the
job's seed, class by class.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from manyhands.data import cache
from manyhands.data.examples import Array, Dataset, Progress, damaged, make_dataset
from manyhands.seeds import numpy_generator

__all__ = ["read_images"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}


def read_images(
    place: Path, *, side: int, grey: bool, test_fraction: float, seed: int, progress: Progress
) -> Dataset:
    """Reads the folder.

    Args:
        place: The folder.
        side: Height and width to scale to.
        grey: One channel in place of three.
        test_fraction: The part of each class kept for testing where there is no ``test`` folder.
        seed: Of the job, for that split.
        progress: Told the pictures read.
    """
    if (place / "train").is_dir() and (place / "test").is_dir():
        classes = _classes(place / "train")
        unknown = set(_classes(place / "test")) - set(classes)
        if unknown:
            raise damaged(place / "test" / min(unknown), "is a class that the train folder does not have")
        train, test = _files(place / "train", classes), _files(place / "test", classes)
        files, for_test = train + test, np.arange(len(train) + len(test)) >= len(train)
    else:
        classes = _classes(place)
        files = _files(place, classes)
        for_test = _drawn(files, test_fraction, seed)
    paths, y = [file for file, _ in files], np.array([label for _, label in files], np.int64)
    form = (side, side), "L" if grey else "RGB"
    key = f"images-1-{cache.fingerprint(paths, form)}"
    x = cache.remembered(key, lambda: {"x": _load(paths, form, progress)})["x"]
    parts = x[~for_test], y[~for_test], x[for_test], y[for_test]
    return make_dataset(place.name, parts, classes, place)


def _classes(folder: Path) -> list[str]:
    classes = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    if len(classes) < 2:
        raise damaged(folder, "must hold a sub-folder of pictures for each of two classes or more")
    return classes


def _files(folder: Path, classes: list[str]) -> list[tuple[Path, int]]:
    found = []
    for label, name in enumerate(classes):
        inside = (folder / name).rglob("*") if (folder / name).is_dir() else ()
        files = sorted(f for f in inside if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))
        if not files and folder.name != "test":
            raise damaged(folder / name, f"holds no picture ({', '.join(sorted(SUFFIXES))})")
        found += [(file, label) for file in files]
    return found


def _drawn(files: list[tuple[Path, int]], test_fraction: float, seed: int) -> Array:
    """Which pictures are for testing: their fraction of each class, and one at least."""
    labels = np.array([label for _, label in files])
    rng = numpy_generator(seed, "data", "test")
    for_test = np.zeros(len(files), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < 2:
            raise damaged(files[members[0]][0].parent, "must hold two pictures or more, one to test with")
        count = round(len(members) * test_fraction)
        for_test[members[: min(max(count, 1), len(members) - 1)]] = True
    return for_test


def _load(files: list[Path], form: tuple[tuple[int, int], str], progress: Progress) -> Array:
    size, mode = form
    channels = len(mode)
    x = np.empty((len(files), channels, *size), np.uint8)
    for i, file in enumerate(files):
        x[i] = _picture(file, size, mode).reshape(*size, channels).transpose(2, 0, 1)
        if i % 100 == 99 or i + 1 == len(files):
            progress("reading pictures", i + 1, len(files))
    return x


def _picture(file: Path, size: tuple[int, int], mode: str) -> Array:
    try:
        # Pillow warns of pictures beyond 90 megapixels and refuses those beyond 180, which is enough.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file) as picture:
                picture.draft(mode, size)  # lets JPEG decode at a fraction of its size
                upright = ImageOps.exif_transpose(picture).convert(mode)
                return np.asarray(ImageOps.fit(upright, size, Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise damaged(file, f"is no readable picture ({error})") from error
