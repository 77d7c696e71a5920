"""Gradients of a batch, and on a GPU the recording that makes them cheap.

A training step of a small network is some fifty short kernels, and starting them one by one from Python
takes far longer than running them. On a GPU the forward and the backward pass of a full batch are therefore
recorded once as a CUDA graph and replayed. A network that cannot be recorded is computed in the ordinary way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from manyhands.learn.randomness import own_randomness

__all__ = ["Gradients", "as_input"]

_recording = threading.Lock()
"""Other threads may compute while one records, but not record too."""


def as_input(x: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """Bytes as numbers from 0 to 1, laid out as the network wants them."""
    return x.to(torch.float32, memory_format=memory_format).div_(255)


class Gradients:
    """Computes the gradients of one network that lives on one torch device.

    Attributes:
        generator: Where the network's own draws (dropout) come from; seed it before use.
        outputs: What the network made of the last batch; valid until the next one.
    """

    def __init__(self, module: nn.Module, torch_device: str, memory_format: torch.memory_format) -> None:
        self._module, self._memory_format = module, memory_format
        self._loss_of: Callable[..., torch.Tensor] = getattr(module, "loss", None) or F.cross_entropy
        self._graphs: dict[torch.Size, _Recording | None] = {}
        self._records = torch_device.startswith("cuda")
        self.generator = torch.Generator(device=torch_device)
        self.outputs: object = None

    def prepare(self, shape: torch.Size) -> None:
        """Records the computation for batches of this shape; the network's weights and counts are lost."""
        if self._records and shape not in self._graphs:
            self._graphs[shape] = _recording_of(self, shape)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Leaves the gradients of a batch (of bytes) in the network's parameters and gives the loss."""
        recording = self._graphs.get(x.shape)
        if recording is None:
            return self.compute(x, y)
        self.outputs = recording.outputs
        return recording.replay(x, y)

    def compute(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The same, without a recording."""
        for parameter in self._module.parameters():
            parameter.grad = None
        with own_randomness(self.generator):
            outputs = self._module(as_input(x, self._memory_format))
        loss = self._loss_of(outputs, y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.outputs = outputs.detach() if isinstance(outputs, torch.Tensor) else None
        return loss.detach()

    @property
    def module(self) -> nn.Module:
        """The network."""
        return self._module


class _Recording:
    """One forward and backward pass that a GPU can repeat by itself, on inputs at fixed places."""

    def __init__(self, gradients: Gradients, x: torch.Tensor, y: torch.Tensor) -> None:
        self._x, self._y = x, y
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(gradients.generator)
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = gradients.compute(x, y)
        self.outputs = gradients.outputs
        self._found = [(parameter, parameter.grad) for parameter in gradients.module.parameters()]

    def replay(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The pass on new inputs; the loss is valid until the next one."""
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        for parameter, gradient in self._found:
            parameter.grad = gradient
        return self._loss


def _recording_of(gradients: Gradients, shape: torch.Size) -> _Recording | None:
    """Records, after the first passes in which torch chooses kernels and takes memory; None if it cannot."""
    device = gradients.generator.device
    x = torch.zeros(shape, dtype=torch.uint8, device=device)
    y = torch.zeros(shape[0], dtype=torch.int64, device=device)
    with _recording, torch.cuda.device(device):
        here = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside):
                for _ in range(3):
                    gradients.compute(x, y)
            here.wait_stream(aside)
            return _Recording(gradients, x, y)
        except RuntimeError:
            # A recording that broke off leaves its stream the current one, and its generator unusable.
            torch.cuda.set_stream(here)
            torch.cuda.synchronize()
            gradients.generator = torch.Generator(device)
            return None
