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
from pydantic import Field
from torch import Tensor, nn

from manyhands.errors import JobError
from manyhands.models import (
    alexnet,
    cifar_cnn,
    lenet5,
    mobilenet_v2,
    squeezenet,
    two_conv,
    vgg16,
    yolov2,
)
from manyhands.models.dry import output_of
from manyhands.models.imported import call_imported, load
from manyhands.settings import Section

__all__ = ["FAMILIES", "Family", "ModelSection", "build", "sizes_of"]

ImageShape = tuple[int, int, int]


class ModelSection(Section):
    """The ``[model]`` table of a job."""

    name: str
    size: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Networks of one kind in one or more sizes.

    Attributes:
        name: What a job calls it.
        sizes: Names of its sizes, smallest first; all have the same stem.
        build: ``build(size, shape=(C, H, W), num_classes=n, **options)`` gives the network.
        min_side: The smallest image side that works.
        about: One line: what it is and where it comes from.
        detector: Whether it puts out boxes, [N, A·(5+C), H', W'], instead of class scores, [N, C].
        side_step: Image sides must be multiples of this.
    """

    name: str
    sizes: tuple[str, ...]
    build: Callable[..., nn.Module]
    min_side: int
    about: str
    detector: bool = False
    side_step: int = 1


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "lenet5",
            tuple(lenet5.SIZES),
            lenet5.build,
            4,
            "LeNet-5 with ReLU and max-pooling (LeCun 1998; paper 002)",
        ),
        Family(
            "two_conv",
            two_conv.SIZES,
            two_conv.build,
            6,
            "two convolutions, two dense layers: the network of federated-learning benchmarks",
        ),
        Family(
            "cifar_cnn",
            cifar_cnn.SIZES,
            cifar_cnn.build,
            10,
            "Keras' CIFAR-10 example and its lightweight sibling (paper 001)",
        ),
        Family(
            "alexnet",
            alexnet.SIZES,
            alexnet.build,
            8,
            "AlexNet, for CIFAR or with its 4096-wide classifier (Krizhevsky 2012; papers 000, 002)",
        ),
        Family(
            "vgg16",
            vgg16.SIZES,
            vgg16.build,
            4,
            "VGG-16 with batch normalisation, one dense layer (Simonyan 2015; paper 000)",
        ),
        Family(
            "squeezenet",
            squeezenet.SIZES,
            squeezenet.build,
            4,
            "SqueezeNet 1.1 for small images (Iandola 2016; paper 002)",
        ),
        Family(
            "mobilenet_v2",
            mobilenet_v2.SIZES,
            mobilenet_v2.build,
            4,
            "MobileNet-v2 for small images (Sandler 2018; paper 002)",
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
    section: ModelSection, shape: ImageShape, num_classes: int, *, seed: int, size: str | None = None
) -> nn.Module:
    """Builds the network that a job asks for, with first weights that depend on the seed alone.

    Args:
        section: The job's ``[model]``.
        shape: Shape of one example, (channels, height, width).
        num_classes: Number of classes in the data.
        seed: Decides the first weights; the caller's random state is left as it is.
        size: Overrides the section's size, where devices have different ones.

    Raises:
        JobError: No such network, size or option; or the network does not fit the data.
    """
    sizes = sizes_of(section)
    size = size or section.size or sizes[-1]
    if size not in sizes:
        raise JobError("model.size", size, f"{section.name} comes in {_choices(sizes)}")
    family = FAMILIES.get(section.name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
        if family is None:
            model = call_imported(section.name, section.options, shape, num_classes)
        else:
            model = _build_family(family, size, shape, num_classes, section.options)
    _check_output(model, section, shape, num_classes, detector=family is not None and family.detector)
    return model


def sizes_of(section: ModelSection) -> tuple[str, ...]:
    """The sizes that the job's network comes in, smallest first; ("full",) for one given by import path.

    Raises:
        JobError: No such family, or nothing callable at the import path.
    """
    if section.name in FAMILIES:
        return FAMILIES[section.name].sizes
    if ":" in section.name:
        load(section.name)
        return ("full",)
    close = get_close_matches(section.name.lower(), FAMILIES, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise JobError(
        "model.name",
        section.name,
        f"no such network; {hint}choose {_choices(tuple(FAMILIES))}, or write package.module:Callable",
    )


def _build_family(
    family: Family, size: str, shape: ImageShape, num_classes: int, options: dict[str, Any]
) -> nn.Module:
    """Builds a network of a family, after looking at the options and the image's sides."""
    parameters = inspect.signature(family.build).parameters
    known = tuple(name for name in parameters if name not in ("size", "shape", "num_classes"))
    for option, value in options.items():
        if option not in known:
            takes = f"takes {_choices(known)}" if known else "takes no options"
            raise JobError(f"model.options.{option}", value, f"{family.name} {takes}")
    if min(shape[1:]) < family.min_side or any(side % family.side_step for side in shape[1:]):
        need = f"of at least {family.min_side}x{family.min_side} pixels"
        if family.side_step > 1:
            need = f"with sides that are multiples of {family.side_step}"
        raise JobError("model.name", family.name, f"needs images {need}; the data has {_shown(shape)}")
    try:
        return family.build(size, shape=shape, num_classes=num_classes, **options)
    except (TypeError, ValueError) as error:
        raise JobError("model.options", options, f"{family.name} does not take this: {error}") from error


def _check_output(
    model: nn.Module, section: ModelSection, shape: ImageShape, num_classes: int, *, detector: bool
) -> None:
    """Tries the network on two empty examples, without the arithmetic where possible."""
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


def _choices(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" or {names[-1]}"


def _shown(shape: ImageShape) -> str:
    return "x".join(map(str, shape))
