"""What every source of data comes out as: pictures as uint8, labels as int64, nothing else.

The arrays stay uint8 from the file to the device, which is a quarter of the memory floats would take;
the local phase scales a batch when it needs it. Checks that all sources have in common live here too,
so that a damaged file is refused with its name, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyhands.errors import JobError

__all__ = ["Array", "Dataset", "Examples", "Progress", "damaged", "make_dataset", "silent"]

Array = np.ndarray[Any, np.dtype[Any]]

Progress = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and of how much (None: nobody knows)."""


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of those who do not want to know."""


@dataclass(frozen=True)
class Examples:
    """Pictures and their labels.

    Attributes:
        x: uint8 [N, C, H, W].
        y: int64 [N].
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Sequence[int] | Array | torch.Tensor) -> Examples:
        """A copy of the examples at these places, in this order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return Examples(self.x[index], self.y[index])

    def of_classes(self, classes: Sequence[int]) -> Examples:
        """Those of some classes, labelled by their places among these."""
        largest = int(self.y.max()) if len(self) else 0
        place = torch.full((max(largest, *classes) + 1,), -1)
        place[list(classes)] = torch.arange(len(classes))
        labels = place[self.y]
        index = (labels >= 0).nonzero().flatten()
        return Examples(self.x[index], labels[index])

    def spread(self, limit: int) -> Examples:
        """At most so many, evenly spaced, so that a sorted set is not cut to its first classes."""
        if limit >= len(self):
            return self
        return self.take(np.linspace(0, len(self) - 1, limit).astype(np.int64))


@dataclass(frozen=True)
class Dataset:
    """A training set, of which devices hold shares, and a test set, which none of them sees."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a picture."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width


def damaged(file: Path | str, why: str) -> JobError:
    """The error for a file that is there but not what it should be."""
    # The path stands in the sentence, not in the value, because a value is cut when it is long.
    return JobError("data.path", None, f"{file}: {why}")


def make_dataset(
    name: str,
    parts: tuple[Array, Array, Array, Array],
    classes: Sequence[str],
    file: Path,
) -> Dataset:
    """Checks x_train, y_train, x_test, y_test against each other and joins them.

    Args:
        name: The name of the set.
        parts: uint8 [N, C, H, W] and integer [N], for training and for testing.
        classes: The name of each label.
        file: What to name when something is wrong.
    """
    x_train, y_train, x_test, y_test = parts
    for which, x, y in (("training", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise damaged(file, f"has {len(x)} {which} pictures but {len(y)} labels")
        if len(x) == 0:
            raise damaged(file, f"has no {which} examples")
        if y.min() < 0 or y.max() >= len(classes):
            bad = y.min() if y.min() < 0 else y.max()
            raise damaged(file, f"has a {which} label {bad}, but labels run from 0 to {len(classes) - 1}")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise damaged(file, f"training pictures are {x_train.shape[1:]}, test pictures {x_test.shape[1:]}")
    train = Examples(torch.from_numpy(x_train), torch.from_numpy(y_train.astype(np.int64)))
    test = Examples(torch.from_numpy(x_test), torch.from_numpy(y_test.astype(np.int64)))
    return Dataset(name, train, test, tuple(classes))
