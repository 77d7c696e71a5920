"""The networks in which phases compute.

They are kept per thread and reused, because building one costs as much as a training step; a phase loads its
own weights before it begins and takes copies of them when it is done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from manyhands.errors import RunError
from manyhands.learn.gradients import Gradients
from manyhands.learn.transfer import copy_into
from manyhands.models import Cost

__all__ = ["Architecture", "Tensors", "layout_in_memory", "load", "only_own_draws", "workspace"]

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A network without weights: how to build it, and what one example costs.

    Architectures with equal keys are the same, so that devices can share the network they compute in.

    Attributes:
        key: What tells it from others.
        build: Makes one.
        cost: Of one example.
        classes: Which classes its scores are for, in order, where these are not all.
    """

    key: Hashable
    build: Callable[[], nn.Module]
    cost: Cost
    classes: tuple[int, ...] | None = None


_workspaces = threading.local()


def workspace(
    architecture: Architecture, torch_device: str, memory_format: torch.memory_format, role: str = "learner"
) -> Gradients:
    """This thread's network of an architecture, one a role; its weights are whatever was last loaded."""
    networks: dict[Hashable, Gradients] = _workspaces.__dict__.setdefault("networks", {})
    key = (architecture.key, torch_device, memory_format, role)
    if key not in networks:
        if torch_device.startswith("cuda"):
            _make_gpu_repeatable()
        module = architecture.build().to(torch_device)
        module = module.to(memory_format=memory_format)  # type: ignore[call-overload]
        networks[key] = Gradients(module, torch_device, memory_format)
    return networks[key]


def _make_gpu_repeatable() -> None:
    """Has the GPU's libraries take kernels that add up in a fixed order, as those of the CPU do."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Would write every new tensor full first, to show who reads what nobody wrote: a tenth of a step's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def load(module: nn.Module, state: Tensors) -> None:
    """Copies a state into a network."""
    own = module.state_dict()
    copy_into(list(own.values()), [state[name] for name in own])


def layout_in_memory(said: Literal["auto", "contiguous", "channels_last"]) -> torch.memory_format:
    """How to lay out images and filters in memory.

    The choice follows from the job alone, never from a timing, because it decides the last bits of a
    result. Convolutions run faster channels-last, on a CPU and on a GPU (measured in docs/results.md).
    """
    return torch.contiguous_format if said == "contiguous" else torch.channels_last


@contextmanager
def only_own_draws() -> Iterator[None]:
    """Refuses a network that draws from torch's global generator within the block.

    Raises:
        RunError: It did.
    """
    before = torch.random.get_rng_state()
    yield
    if not torch.equal(torch.random.get_rng_state(), before):
        raise RunError("the network draws random numbers in a way that cannot be repeated; use nn.Dropout")
