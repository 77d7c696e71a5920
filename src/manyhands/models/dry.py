"""Running a network without its arithmetic, to learn shapes and costs in milliseconds.

The network's tensors are replaced for one call by stand-ins on torch's meta device, which have a shape and
a type but no numbers. The network itself is not copied and not changed. A network that cannot run so
(because it reads numbers in `forward`, say) is run on the CPU instead, on copies. So is a small one: the
first use of meta loads a compiler, which takes a device longer than the arithmetic of a small network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["Shape", "dry_run", "every_module_in_mode", "flat_size", "output_of"]

Shape = tuple[int, ...]
SMALL_FLOPS = 2e8
"""For an example: what a core does in a hundredth of a second."""
T = TypeVar("T")


def dry_run(model: nn.Module, shape: Shape, batch_size: int, use: Callable[[Callable[[], object]], T]) -> T:
    """Hands `use` a function that runs the model on an input of zeros, a large one on meta if that works.

    Args:
        model: Any module that takes one batch of images; its mode and its tensors are left as they are.
        shape: Shape of one example, (channels, height, width).
        batch_size: Examples in the input.
        use: Called with the function that runs the model; runs it, and returns what it learned.

    Returns:
        What `use` returned.
    """
    if _is_small(model, shape):
        return use(_runner(model, shape, batch_size, "cpu"))
    try:
        return use(_runner(model, shape, batch_size, "meta"))
    except Exception:  # whatever the reason, the CPU run has the last word, and its message is the user's
        return use(_runner(model, shape, batch_size, "cpu"))


def _is_small(model: nn.Module, shape: Shape) -> bool:
    """A weight is used at most once for each pixel of the input, unless the network makes pictures larger."""
    if any(p.is_meta for p in model.parameters()):
        return False
    pixels = math.prod(shape[1:])
    return 2 * pixels * sum(p.numel() for p in model.parameters()) <= SMALL_FLOPS


def output_of(model: nn.Module, shape: Shape, batch_size: int = 2) -> object:
    """What the model returns in evaluation for a batch of this shape, as a rule without numbers."""

    def run(call: Callable[[], object]) -> object:
        with torch.no_grad(), every_module_in_mode(model, training=False):
            return call()

    return dry_run(model, shape, batch_size, run)


def flat_size(model: nn.Module, shape: Shape) -> int:
    """How many numbers per example the model puts out: the width that a dense layer after it needs."""
    output = output_of(model, shape)
    assert isinstance(output, Tensor)
    return output[0].numel()


@contextmanager
def every_module_in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Puts every module into one mode, and each back into its own afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def _runner(model: nn.Module, shape: Shape, batch_size: int, device: str) -> Callable[[], object]:
    """A function that runs the model on zeros with stand-ins for its parameters and buffers."""

    def call() -> object:
        stand_ins: dict[str, Tensor] = {
            name: _stand_in(tensor, device).requires_grad_(tensor.requires_grad)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        images = torch.zeros((batch_size, *shape), dtype=dtype, device=device)
        with torch.random.fork_rng(devices=[]):  # dropout must not draw from the caller's generator
            return functional_call(model, stand_ins, (images,))

    return call


def _stand_in(tensor: Tensor, device: str) -> Tensor:
    if device == "meta":
        return torch.empty_like(tensor, device=device, requires_grad=False)
    return tensor.detach().to(device, copy=True)
