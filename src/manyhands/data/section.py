"""The ``[data]`` table of a job file."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from manyhands.settings import Section

__all__ = ["NAMES", "DataSection"]

NAMES = (
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "speech_commands",
    "images",
    "npz",
)


class DataSection(Section):
    """What is learned from, and how it is dealt out to the devices.

    Attributes:
        name: One of `NAMES`.
        path: The folder or file that holds it; without it, ``$MANYHANDS_DATA`` and the cache folder.
        download: Fetch it from its canonical address when it is not there.
        verify: Refuse a file that has the name of a published one but not its checksum.
        limit: At most so many training examples, drawn with the job's seed.
        shares: How examples are dealt out; the size of a share is the device's. With ``own`` nothing is: each
            device trains on all that it finds, which on a host of its own is its own.
        alpha: Of the Dirichlet distribution; the smaller, the more unlike the devices.
        classes_per_device: For ``by_class``; without it, as few as cover every class.
        validation: The part of its own examples that each device keeps for validation.
        labels: For cifar100: its 100 fine or its 20 coarse classes.
        words: For speech_commands: these words, in this order; without it, all there are.
        side: For images: height and width to which they are cut and scaled.
        grey: For images: one channel in place of three.
        test_fraction: For images without a ``test`` folder: the part kept for testing.
    """

    name: str = "digits"
    path: Path | None = None
    download: bool = False
    verify: bool = True
    limit: int | None = Field(default=None, gt=0)
    shares: Literal["iid", "dirichlet", "by_class", "own"] = "iid"
    alpha: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    classes_per_device: int | None = Field(default=None, gt=0)
    validation: float = Field(default=0.2, ge=0, lt=1)
    labels: Literal["fine", "coarse"] = "fine"
    words: tuple[str, ...] | None = Field(default=None, min_length=2)
    side: int = Field(default=32, ge=4, le=4096)
    grey: bool = False
    test_fraction: float = Field(default=0.2, gt=0, lt=1)

    @field_validator("name")
    @classmethod
    def _name_is_known(cls, name: str) -> str:
        if name in NAMES:
            return name
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        raise ValueError(f"must be one of {', '.join(NAMES)}{hint}")

    @field_validator("words")
    @classmethod
    def _words_differ(cls, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if words is not None and len(set(words)) < len(words):
            raise ValueError("must not name a word twice")
        return words
