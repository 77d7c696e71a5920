"""Optimizers: torch's own update rules, with their memory held by us.

The rules are the functional forms under ``torch.optim``. Its classes are not used: making one loads torch's
compiler (seconds, and a hundred megabytes), and their state would have to be taken apart after every local
phase and put together before the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from manyhands.learn.transfer import copy_into, own_copies
from manyhands.settings import Section

__all__ = ["OptimizerSection", "Slots", "first_slots", "num_slots", "restored_slots", "saved_slots", "step"]

Slots = dict[str, list[torch.Tensor]]
"""What an optimizer remembers: for each slot, one tensor a parameter."""


class OptimizerSection(Section):
    """The part of ``[learn]`` that says how a step is made."""

    optimizer: Literal["sgd", "adam", "rmsprop"] = "sgd"
    learning_rate: PositiveFloat = 0.05
    momentum: float = Field(default=0.9, ge=0, lt=1)
    decay: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0


def _names(section: OptimizerSection) -> tuple[str, ...]:
    if section.optimizer == "sgd":
        return ("momentum",) if section.momentum else ()
    return ("mean", "square", "step") if section.optimizer == "adam" else ("square", "step")


def num_slots(section: OptimizerSection) -> int:
    """How many tensors of a parameter's size are kept."""
    return sum(name != "step" for name in _names(section))


def first_slots(section: OptimizerSection, parameters: Sequence[torch.Tensor]) -> Slots:
    """The memory of an optimizer that has not made a step."""
    return {
        name: [
            torch.zeros((), device=p.device) if name == "step" else torch.zeros_like(p) for p in parameters
        ]
        for name in _names(section)
    }


def saved_slots(slots: Slots) -> dict[str, torch.Tensor]:
    """The memory as named tensors of its own."""
    return own_copies(
        {f"{index}/{name}": tensor for name, tensors in slots.items() for index, tensor in enumerate(tensors)}
    )


def restored_slots(
    section: OptimizerSection, parameters: Sequence[torch.Tensor], saved: Mapping[str, torch.Tensor]
) -> Slots:
    """The memory that `saved_slots` wrote, laid out like the parameters."""
    slots = first_slots(section, parameters)
    keys = [(name, index) for name, tensors in slots.items() for index in range(len(tensors))]
    copy_into(
        [slots[name][index] for name, index in keys], [saved[f"{index}/{name}"] for name, index in keys]
    )
    return slots


def step(section: OptimizerSection, parameters: Sequence[torch.Tensor], slots: Slots, num_steps: int) -> None:
    """One step along the parameters' gradients, after so many steps before it.

    With `decay` the rate falls with the inverse of time, as in the Keras of paper 001; RMSProp's smoothing
    and epsilon are also from there.
    """
    values = [p.detach() for p in parameters if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    used = {
        n: [t for t, p in zip(ts, parameters, strict=True) if p.grad is not None] for n, ts in slots.items()
    }
    rate = section.learning_rate / (1 + section.decay * num_steps)
    together = bool(values) and values[0].is_cuda  # all tensors in one kernel, which on a CPU gains nothing
    if section.optimizer == "sgd":
        sgd(
            values,
            gradients,
            list(used.get("momentum", [None] * len(values))),
            lr=rate,
            momentum=section.momentum,
            weight_decay=section.weight_decay,
            dampening=0,
            nesterov=False,
            maximize=False,
            foreach=together,
        )
    elif section.optimizer == "adam":
        adam(
            values,
            gradients,
            used["mean"],
            used["square"],
            [],
            used["step"],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=section.weight_decay,
            amsgrad=False,
            maximize=False,
            foreach=False,
            fused=True,  # a third faster than one operation after the other
        )
    else:
        rmsprop(
            values,
            gradients,
            used["square"],
            [],
            [],
            used["step"],
            lr=rate,
            alpha=0.9,
            eps=1e-7,
            weight_decay=section.weight_decay,
            momentum=0,
            centered=False,
            foreach=together,
        )
