"""The ``[split]`` table of a job, and its ``[split.task]`` and ``[split.data]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from manyhands.models.forms import PLAIN, Form, FormName
from manyhands.settings import Section

__all__ = ["DataSplitSection", "SpaceSection", "SplitSection", "TaskSection"]

_READERS = {
    "stem": "stem",
    "branch_dropout": "cascade",
    "supervise": "cascade",
    "distillation": "depth",
    "scaler": "width",
}
"""Settings, and the form that reads each."""


class TaskSection(Section):
    """How a network is decoupled by class, and who trains which classes (``[split.task]``).

    A job may have it under other splits too, to compare: with "isolated" each device trains its own classes
    alone, with "homogeneous" all train the whole network, on the same data.
    """

    first: str | None = None
    part: float | None = Field(default=None, gt=0, le=1)
    pretrained: Path | None = None
    pretrain_epochs: NonNegativeInt = 2
    settle_epochs: NonNegativeInt = 1
    learning_rate: PositiveFloat | None = None
    assign: Literal["ring", "mesh", "auto"] = "ring"
    overlap: PositiveInt | None = None
    classes_per_device: PositiveInt | None = None
    data: Literal["dealt", "whole"] = "dealt"

    @model_validator(mode="after")
    def _fits_the_assignment(self) -> TaskSection:
        for key in ("overlap", "classes_per_device"):
            if getattr(self, key) is not None and self.assign != "ring":
                raise ValueError(f'{key} is read by assign = "ring" alone')
        default = type(self).model_fields["pretrain_epochs"].default
        if self.pretrained is not None and self.pretrain_epochs != default:
            raise ValueError("pretrain_epochs: a network that is read from a file, pretrained, has none")
        return self


class DataSplitSection(Section):
    """How much of its data a device goes through in an epoch, and what of it first (``[split.data]``)."""

    balance: bool = True
    epoch_part: float = Field(default=1.0, gt=0, le=1)
    order: Literal["effect", "mixed", "turns", "sampled", "recalled", "random"] = "sampled"
    aggregation: Literal["svd_kmeans", "isvd_lsh", "hash_kmeans"] = "svd_kmeans"
    aggregation_ratio: PositiveInt = 10
    renew: float = Field(default=0.09, gt=0, le=1)
    weigh: Literal["seen", "held"] = "seen"
    window_s: PositiveFloat = 2.0
    patience: NonNegativeFloat = 0.25
    least_throughput: PositiveFloat = 0.001
    failure_threshold: float = Field(default=0.1, ge=0, lt=1)
    replicas: NonNegativeInt = 0


class SpaceSection(Section):
    """How the devices of a tile group compute one network together (``[split.space]``)."""

    grid: Literal["auto"] | tuple[PositiveInt, PositiveInt] = "auto"
    grouping: Literal["planned", "none", "fused"] = "planned"
    tail: Literal["auto", "one", "data", "channels"] = "auto"
    checkpoint: Literal["auto", "never", "always"] = "auto"
    wire_dtype: Literal["float32", "bfloat16"] = "float32"
    profile: Literal["catalogue", "measured"] = "catalogue"
    patience_s: PositiveFloat = 10.0


class SplitSection(Section):
    """How the job is split (``[split]``)."""

    by: str = "homogeneous"
    form: FormName = "cascade"
    stem: tuple[str, ...] = Field(default=("stem",), min_length=1)
    branch_dropout: float = Field(default=0.5, ge=0, lt=1)
    supervise: Literal["sum", "each"] = "sum"
    distillation: NonNegativeFloat = 0.0
    scaler: bool = False
    task: TaskSection | None = None
    data: DataSplitSection | None = None
    space: SpaceSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _what_goes_without_saying(cls, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        for key, by in (("form", "capacity"), ("task", "task"), ("data", "data"), ("space", "space")):
            if "by" not in said and key in said:
                said = {"by": by, **said}
        return {said["by"]: {}, **said} if said.get("by") in ("task", "data", "space") else said

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
        if self.task is not None and self.by == "capacity":
            raise ValueError("task: a split by capacity takes no classes apart; leave one of them out")
        if self.data is not None and (self.by == "capacity" or self.task is not None):
            other = "task" if self.task is not None else "capacity"
            raise ValueError(f"data: a split by {other} goes through all data; leave one of them out")
        if self.task is not None and self.by == "space":
            raise ValueError("task: a split by space takes no classes apart; leave one of them out")
        return self

    def under(self, label: str) -> SplitSection:
        """The same settings for another split, named by itself or by a form of the split by capacity."""
        if label == "capacity":
            return self.model_copy(update={"by": label, "task": None, "data": None})
        if label == "space":
            return self.model_copy(update={"by": label, "task": None, "data": None, "space": self.tiling})
        if label not in get_args(FormName):
            task = self.task or (TaskSection() if label == "task" else None)
            data = self.data or (DataSplitSection() if label == "data" else None)
            return self.model_copy(update={"by": label, "task": task, "data": data})
        kept = {key: getattr(self, key) for key, form in _READERS.items() if form == label}
        return SplitSection(by="capacity", form=cast(FormName, label), space=self.space, **kept)

    @property
    def tiling(self) -> SpaceSection:
        """How tile groups compute, whatever the split among participants is."""
        return self.space or SpaceSection()

    @property
    def label(self) -> str:
        """The split, or the form of it, in a word: one of those that `under` takes."""
        return self.form if self.by == "capacity" else self.by

    @property
    def decouples(self) -> bool:
        """Whether each device trains the structures of its own classes."""
        return self.task is not None and self.by != "homogeneous"

    @property
    def paces(self) -> bool:
        """Whether devices keep pace by going through a part of their data."""
        return self.by == "data"

    @property
    def network_form(self) -> Form:
        """The form in which networks are built: a split that cuts none apart takes them as they are."""
        if self.by != "capacity":
            return PLAIN
        return Form(self.form, self.branch_dropout, self.distillation, self.scaler, self.supervise == "each")
