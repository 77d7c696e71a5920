"""The networks of devices that differ in capacity, in the four forms in which they can have parts in common.

- ``stem``: each size is a network of its own that begins with the same stem.
- ``cascade``: each size contains the smaller ones whole (paper 001; see `cascade.py`).
- ``width``: each size is the largest network with fewer channels (HeteroFL; see `narrow.py`).
- ``depth``: each size is the first layers of the largest network, with an exit (DepthFL; see `exits.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from manyhands.errors import JobError
from manyhands.models.cascade import Cascade
from manyhands.models.exits import EarlyExits, cut_features
from manyhands.models.families import ImageShape, ModelSection, build, check_output, tiers_of
from manyhands.models.narrow import scale_up
from manyhands.models.tiers import choices

__all__ = ["PLAIN", "Form", "FormName", "build_in_form"]

FormName = Literal["stem", "cascade", "width", "depth"]


@dataclass(frozen=True)
class Form:
    """A form and its settings.

    Attributes:
        name: Which one.
        branch_dropout: Of a cascade.
        distillation: Of exits.
        scaler: Whether narrow networks scale up in training.
        each: Whether a cascade is trained by the sum of every size, in place of branch dropout.
    """

    name: FormName = "stem"
    branch_dropout: float = 0.5
    distillation: float = 0.0
    scaler: bool = False
    each: bool = False


PLAIN = Form()
"""Networks as they are: what devices train that have nothing in common, or everything."""


def build_in_form(
    section: ModelSection, shape: ImageShape, num_classes: int, *, seed: int, size: str, form: Form
) -> nn.Module:
    """The network of one size.

    Raises:
        JobError: The job's network does not come in this size or form.
    """
    model = _built(section, shape, num_classes, seed, size, form)
    check_output(model, section, shape, num_classes)
    return model


def _built(
    section: ModelSection, shape: ImageShape, num_classes: int, seed: int, size: str, form: Form
) -> nn.Module:
    tiers = tiers_of(section)
    held = [tier.name for tier in tiers]
    if size not in held:
        raise JobError("model.size", size, f"{section.name} comes in {choices(held)}")
    held = held[: held.index(size) + 1]
    make = partial(build, section, shape, num_classes, seed=seed)
    if form.name == "cascade":
        members = {name: _with_stem(make(size=name), section, form) for name in held}
        _check_one_stem(members, section)
        return Cascade(members, form.branch_dropout, each=form.each)
    if form.name == "depth":
        whole = _with_stem(make(size=tiers[-1].name), section, form)
        pieces = _cut(whole, section, shape, num_classes, seed)
        return EarlyExits(whole[0], {name: pieces[name] for name in held}, form.distillation)
    if form.name == "width":
        model = make(size=size, slim=True)
        width = tiers[len(held) - 1].width
        if form.scaler and width < 1:
            scale_up(model, width)
        return model
    return make(size=size)


def _cut(
    whole: nn.Sequential, section: ModelSection, shape: ImageShape, num_classes: int, seed: int
) -> dict[str, tuple[nn.Module, nn.Module]]:
    parts = dict(whole.named_children())
    cuttable = isinstance(parts.get("features"), nn.Sequential)
    if list(parts) != ["stem", "features", "classifier"] or not cuttable:
        features = type(parts.get("features")).__name__
        found = f"features is a {features}" if "features" in parts else f"its parts are {', '.join(parts)}"
        expected = (
            'form = "depth" needs an nn.Sequential of stem, features (an nn.Sequential too) and classifier'
        )
        raise JobError("model.name", section.name, f"{expected}; {found}")
    tiers = tiers_of(section)
    # Depths are those that the job names, else equal steps: halves and quarters are steps of width.
    depths = {tier.name: tier.width for tier in tiers}
    if tiers[-1].width < 1:
        expected = 'form = "depth" takes these as depths of the whole network: the last must be 1.0'
        raise JobError("model.sizes", section.sizes, expected)
    if not isinstance(section.sizes, dict):
        depths = {tier.name: (place + 1) / len(tiers) for place, tier in enumerate(tiers)}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return cut_features(whole, shape, num_classes, depths)
    except ValueError as error:
        raise JobError("model.sizes", section.sizes, f"{section.name}: {error}") from error


def _check_one_stem(members: dict[str, nn.Sequential], section: ModelSection) -> None:
    """All branches of a cascade start from the lightest network's stem, so it must be that of all."""
    (first, lightest), *others = members.items()
    stem = _shapes(lightest[0])
    for size, member in others:
        other = _shapes(member[0])
        for name in dict.fromkeys([*stem, *other]):
            a, b = stem.get(name, "missing"), other.get(name, "missing")
            if a != b:
                expected = f"stem.{name} is {a} in {first} and {b} in {size}"
                raise JobError("model.name", section.name, f'form = "cascade" needs one stem: {expected}')


def _shapes(module: nn.Module) -> dict[str, str]:
    return {name: "x".join(map(str, t.shape)) or "a number" for name, t in module.state_dict().items()}


def _with_stem(model: nn.Module, section: ModelSection, form: Form) -> nn.Sequential:
    first = next((name for name, _ in model.named_children()), None)
    if not isinstance(model, nn.Sequential) or first != "stem":
        expected = f'form = "{form.name}" needs an nn.Sequential whose first part is called stem'
        chain = isinstance(model, nn.Sequential)
        found = f"its first part is called {first}" if chain else f"this is a {type(model).__name__}"
        raise JobError("model.name", section.name, f"{expected}; {found}")
    if hasattr(model, "loss"):
        expected = f'form = "{form.name}" has a loss of its own, and this network brings one'
        raise JobError("model.name", section.name, f'{expected}; take form = "stem" or "width"')
    return model
