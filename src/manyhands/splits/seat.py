"""What every split hands out: a seat for each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from pydantic import Field, NonNegativeFloat, model_validator

from manyhands.blocks import Layout
from manyhands.models.forms import PLAIN, Form, FormName
from manyhands.settings import Section

__all__ = ["Networks", "Seat", "Split", "SplitSection"]


_READERS = {
    "stem": "stem",
    "branch_dropout": "cascade",
    "supervise": "cascade",
    "distillation": "depth",
    "scaler": "width",
}
"""Settings, and the form that reads each."""


class SplitSection(Section):
    """How the job is split (``[split]``)."""

    by: str = "homogeneous"
    form: FormName = "cascade"
    stem: tuple[str, ...] = Field(default=("stem",), min_length=1)
    branch_dropout: float = Field(default=0.5, ge=0, lt=1)
    supervise: Literal["sum", "each"] = "sum"
    distillation: NonNegativeFloat = 0.0
    scaler: bool = False

    @model_validator(mode="before")
    @classmethod
    def _a_form_is_of_capacity(cls, said: Any) -> Any:
        return {"by": "capacity", **said} if isinstance(said, dict) and "form" in said else said

    @model_validator(mode="after")
    def _fits_the_form(self) -> SplitSection:
        for key, form in _READERS.items():
            if getattr(self, key) != SplitSection.model_fields[key].default and self.form != form:
                raise ValueError(f'{key} is read by by = "capacity", form = "{form}" alone')
        if (
            self.supervise == "each"
            and self.branch_dropout != SplitSection.model_fields["branch_dropout"].default
        ):
            raise ValueError('branch_dropout is read by supervise = "sum" alone')
        return self

    def under(self, label: str) -> SplitSection:
        """The same settings for another split, named by itself or by a form of the split by capacity."""
        if label not in get_args(FormName):
            return self.model_copy(update={"by": label})
        kept = {key: getattr(self, key) for key, form in _READERS.items() if form == label}
        return SplitSection(by="capacity", form=cast(FormName, label), **kept)

    @property
    def label(self) -> str:
        """The split, or the form of it, in a word: one of those that `under` takes."""
        return self.form if self.by == "capacity" else self.by

    @property
    def network_form(self) -> Form:
        """The form in which networks are built: a split that cuts none apart takes them as they are."""
        if self.by != "capacity":
            return PLAIN
        return Form(self.form, self.branch_dropout, self.distillation, self.scaler, self.supervise == "each")


@dataclass(frozen=True)
class Networks:
    """The networks that a job's model section offers.

    Attributes:
        sizes: From the smallest to the largest.
        state: A size's tensors by name; shapes are all that a split may look at.
        buffers: Which of them are counted and not trained, such as batch normalisation's statistics.
    """

    sizes: tuple[str, ...]
    state: Callable[[str], Mapping[str, torch.Tensor]]
    buffers: Callable[[str], frozenset[str]]


@dataclass(frozen=True)
class Seat:
    """What one device trains: a size of the network, and the blocks of it that others hold too."""

    size: str
    layout: Layout


@dataclass(frozen=True)
class Split:
    """A seat for each device, and the network that the merged blocks make by themselves, if they do."""

    name: str
    seats: Mapping[str, Seat]
    merged: Seat | None = None

    @property
    def exchanges(self) -> bool:
        """Whether anything is shared at all."""
        return any(seat.layout for seat in self.seats.values())
