"""The table of network families, and the building of one network for the data at hand.

A job names a family ("lenet5") or any callable by import path ("package.module:Callable") that gives an
`nn.Module`. Either way the network is tried on the data's shape before anything is trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from manyhands.errors import JobError
from manyhands.models import (
    alexnet,
    cifar_cnn,
    dqn,
    lenet5,
    mobilenet_v2,
    squeezenet,
    two_conv,
    vgg16,
    yolov2,
)
from manyhands.models.dry import output_of
from manyhands.models.imported import call_imported, load
from manyhands.models.tiers import Sizes, Tier, choices, make_tiers, readable_sizes
from manyhands.settings import Section

__all__ = ["FAMILIES", "Family", "ModelSection", "build", "check_output", "sizes_of", "tiers_of"]

ImageShape = tuple[int, int, int]

RESERVED = ("size", "shape", "num_classes", "width", "stem_width")
"""Parameters of a family's `build` that are not options."""


class ModelSection(Section):
    """The ``[model]`` table of a job."""

    name: str
    size: str | None = None
    sizes: Sizes | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("sizes", mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        return None if value is None else readable_sizes(value)


@dataclass(frozen=True)
class Family:
    """Networks of one kind in one or more sizes.

    Attributes:
        name: What a job calls it.
        sizes: Names of its sizes, smallest first; all have the same stem.
        build: ``build(size, shape=(C, H, W), num_classes=n, **options)`` gives the network. If it takes
            `width` and `stem_width` too, it can be made in any width.
        min_side: The smallest image side that works.
        about: One line: what it is and where it comes from.
        detector: Whether it puts out boxes, [N, A·(5+C), H', W'], instead of class scores, [N, C].
        side_step: Image sides must be multiples of this.
        deep: The first of the layers that serve single classes: where it is decoupled by class, unless a job
            says otherwise.
    """

    name: str
    sizes: tuple[str, ...]
    build: Callable[..., nn.Module]
    min_side: int
    about: str
    detector: bool = False
    side_step: int = 1
    deep: str | None = None

    @property
    def any_width(self) -> bool:
        """Whether it can be made in widths that a job names."""
        return "width" in inspect.signature(self.build).parameters


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "lenet5",
            tuple(lenet5.SIZES),
            lenet5.build,
            4,
            "LeNet-5 with ReLU and max-pooling (LeCun 1998; paper 002)",
            deep="conv2",
        ),
        Family(
            "two_conv",
            two_conv.SIZES,
            two_conv.build,
            6,
            "two convolutions, two dense layers: the network of federated-learning benchmarks",
            deep="conv2",
        ),
        Family(
            "cifar_cnn",
            cifar_cnn.SIZES,
            cifar_cnn.build,
            10,
            "Keras' CIFAR-10 example and its lightweight sibling (paper 001)",
            deep="conv3",
        ),
        Family(
            "alexnet",
            alexnet.SIZES,
            alexnet.build,
            8,
            "AlexNet, for CIFAR or with its 4096-wide classifier (Krizhevsky 2012; papers 000, 002)",
            deep="conv3",
        ),
        Family(
            "vgg16",
            vgg16.SIZES,
            vgg16.build,
            4,
            "VGG-16 with batch normalisation, one dense layer (Simonyan 2015; paper 000)",
            deep="conv4_1",
        ),
        Family(
            "squeezenet",
            squeezenet.SIZES,
            squeezenet.build,
            4,
            "SqueezeNet 1.1 for small images (Iandola 2016; paper 002)",
            deep="fire6.squeeze",
        ),
        Family(
            "mobilenet_v2",
            mobilenet_v2.SIZES,
            mobilenet_v2.build,
            4,
            "MobileNet-v2 for small images (Sandler 2018; paper 002)",
            deep="block6_1.layers.expand.conv",
        ),
        Family(
            "dqn",
            dqn.SIZES,
            dqn.build,
            7,
            "deep Q-learning's network and its lightweight sibling, for games (Mnih 2015; paper 001)",
        ),
        Family(
            "yolov2",
            yolov2.SIZES,
            yolov2.build,
            32,
            "YOLOv2 detector on Darknet-19 (Redmon 2017; paper 003)",
            detector=True,
            side_step=32,
        ),
    )
}


def build(
    section: ModelSection,
    shape: ImageShape,
    num_classes: int,
    *,
    seed: int,
    size: str | None = None,
    slim: bool = False,
) -> nn.Module:
    """Builds the network that a job asks for, with first weights that depend on the seed alone.

    Args:
        section: The job's ``[model]``.
        shape: Shape of one example, (channels, height, width).
        num_classes: Number of classes in the data.
        seed: Decides the first weights; the caller's random state is left as it is.
        size: Overrides the section's size, where devices have different ones.
        slim: Give the largest network, narrowed to the size's width from the first layer on, in place of a
            smaller one that begins with the same stem.

    Raises:
        JobError: No such network, size or option; or the network does not fit the data.
    """
    tiers = {tier.name: tier for tier in tiers_of(section)}
    size = size or section.size or tuple(tiers)[-1]
    if size not in tiers:
        raise JobError("model.size", size, f"{section.name} comes in {choices(tuple(tiers))}")
    family = FAMILIES.get(section.name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
        if family is None:
            model = _build_imported(section, tiers[size], shape, num_classes, slim=slim)
        else:
            model = _build_family(family, tiers[size], shape, num_classes, section.options, slim=slim)
    check_output(model, section, shape, num_classes)
    return model


def sizes_of(section: ModelSection) -> tuple[str, ...]:
    """The names of `tiers_of`."""
    return tuple(tier.name for tier in tiers_of(section))


def tiers_of(section: ModelSection) -> tuple[Tier, ...]:
    """The sizes that the job's network comes in, smallest first.

    Raises:
        JobError: No such family or size, or nothing callable at the import path.
    """
    if section.name in FAMILIES:
        family = FAMILIES[section.name]
        if isinstance(section.sizes, int | dict) and not family.any_width:
            able = [f.name for f in FAMILIES.values() if f.any_width]
            expected = f"{family.name} comes in {choices(family.sizes)}; others can be had of {choices(able)}"
            raise JobError("model.sizes", section.sizes, expected)
        return make_tiers(section.name, section.sizes, family.sizes)
    if ":" in section.name:
        load(section.name)
        return make_tiers(section.name, section.sizes, None)
    close = get_close_matches(section.name.lower(), FAMILIES, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise JobError(
        "model.name",
        section.name,
        f"no such network; {hint}choose {choices(tuple(FAMILIES))}, or write package.module:Callable",
    )


def _build_imported(
    section: ModelSection, tier: Tier, shape: ImageShape, num_classes: int, *, slim: bool
) -> nn.Module:
    """Calls the network's maker, with its size or width where the job names several."""
    given: dict[str, Any] = {}
    if section.sizes is not None:
        given = {"size": tier.name} if tier.drawn and not slim else {"width": tier.width}
    return call_imported(section.name, {**section.options, **given}, shape, num_classes)


def _build_family(
    family: Family, tier: Tier, shape: ImageShape, num_classes: int, options: dict[str, Any], *, slim: bool
) -> nn.Module:
    """Builds a network of a family, after looking at the options and the image's sides."""
    parameters = inspect.signature(family.build).parameters
    known = tuple(name for name in parameters if name not in RESERVED)
    for option, value in options.items():
        if option not in known:
            takes = f"takes {choices(known)}" if known else "takes no options"
            raise JobError(f"model.options.{option}", value, f"{family.name} {takes}")
    if min(shape[1:]) < family.min_side or any(side % family.side_step for side in shape[1:]):
        need = f"of at least {family.min_side}x{family.min_side} pixels"
        if family.side_step > 1:
            need = f"with sides that are multiples of {family.side_step}"
        raise JobError("model.name", family.name, f"needs images {need}; the data has {_shown(shape)}")
    widths = {}
    if slim or not tier.drawn:
        widths = {"width": tier.width, "stem_width": tier.width if slim else 1.0}
    if widths and not family.any_width:
        raise JobError("model.name", family.name, "cannot be made narrower; it has sizes of its own alone")
    size = tier.name if not widths else family.sizes[-1]
    try:
        return family.build(size, shape=shape, num_classes=num_classes, **widths, **options)
    except (TypeError, ValueError) as error:
        raise JobError("model.options", options, f"{family.name} does not take this: {error}") from error


def check_output(model: nn.Module, section: ModelSection, shape: ImageShape, num_classes: int) -> None:
    """Tries the network on two empty examples, without the arithmetic where possible.

    Raises:
        JobError: It does not take them, or gives something other than class scores (of a detector, boxes).
    """
    family = FAMILIES.get(section.name)
    detector = family is not None and family.detector
    try:
        output = output_of(model, shape)
    except Exception as error:  # a network given by import path may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise JobError(
            "model.name", section.name, f"must accept the data's shape, {_shown(shape)}, but fails: {reason}"
        ) from error
    got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if detector:
        fits = isinstance(got, list) and len(got) == 4 and got[1] % (5 + num_classes) == 0
        want = f"[N, anchors * {5 + num_classes}, H, W]"
    else:
        fits, want = got == [2, num_classes], f"[N, {num_classes}]"
    if not fits:
        given = f"[N, {', '.join(map(str, got[1:]))}]" if isinstance(got, list) else f"a {got}"
        raise JobError(
            "model.name",
            section.name,
            f"must give {want} for {num_classes} classes on data of {_shown(shape)}, but gives {given}",
        )


def _shown(shape: ImageShape) -> str:
    return "x".join(map(str, shape))
