"""From feature maps to a vector, without slowing down the way back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Flatten"]


class Flatten(nn.Flatten):
    """`nn.Flatten` whose gradient comes back in the memory layout of its input.

    A gradient in another layout than the activations makes every operation before this one, up to the next
    convolution, walk memory the slow way; one copy here is cheaper (a twentieth of a training step of
    `two_conv`).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Flattens all but the batch dimension."""
        if x.requires_grad and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            x.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: gradient.contiguous(memory_format=torch.channels_last)
            )
        return super().forward(x)
