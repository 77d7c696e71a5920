"""Dropout and other draws of a network from a generator of one's own.

``nn.Dropout`` draws from torch's global generator, which threads share: with two devices training at the
same time their masks would depend on who came first. `own_randomness` is local to its thread and sends
every draw of the network inside it to a given generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["own_randomness"]

_TAKE_A_GENERATOR: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.rand,
        torch.randn,
        torch.randint,
        torch.randperm,
        torch.bernoulli,
        torch.multinomial,
        torch.normal,
        torch.Tensor.bernoulli,
        torch.Tensor.bernoulli_,
        torch.Tensor.multinomial,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        torch.Tensor.random_,
        torch.Tensor.exponential_,
        torch.Tensor.geometric_,
        torch.Tensor.cauchy_,
        torch.Tensor.log_normal_,
    }
)

_DROPOUTS: dict[Callable[..., Any], bool] = {
    F.dropout: False,
    F.dropout1d: True,
    F.dropout2d: True,
    F.dropout3d: True,
}
"""Which dropout functions there are, and whether they drop whole channels."""


_LIKE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
    torch.randint_like: torch.randint,
}
"""Functions that take no generator, and those that do the same with one."""


class own_randomness(TorchFunctionMode):  # noqa: N801 - reads as a statement: `with own_randomness(generator):`
    """Within the block, and on this thread only, the network's draws come from `generator`."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every function of its Python interface."""
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return self._dropout(*args, channels=_DROPOUTS[func], **kwargs)
        if func in _LIKE:
            like, rest = args[0], args[1:]
            kwargs = {"dtype": like.dtype, "device": like.device, "generator": self._generator, **kwargs}
            return _LIKE[func](*rest, like.shape, **kwargs)
        if func in _TAKE_A_GENERATOR and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)

    def _dropout(
        self, x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, channels: bool
    ) -> torch.Tensor:
        if not training or p == 0:
            return x
        shape = (*x.shape[:2], *([1] * (x.dim() - 2))) if channels else x.shape
        mask = torch.empty(shape, dtype=x.dtype, device=x.device)
        if not channels and x.dim() == 4:
            # Same layout as the input, or the product below falls back to a slow walk over both.
            mask = torch.empty_like(x)
        mask.bernoulli_(1 - p, generator=self._generator)
        if p < 1:
            mask.div_(1 - p)
        return x.mul_(mask) if inplace else x * mask
