"""Activations whose gradient can be told from their output, so that it may stand in their input's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

__all__ = ["Act", "find_act"]

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Act:
    """One of the activations that map zero to zero: ReLU, leaky ReLU, ReLU6."""

    kind: Literal["relu", "leaky", "relu6"]
    slope: float = 0.0

    def into(self, x: Tensor, out: Tensor) -> None:
        """Writes the activation of `x` into `out`, which may be `x`."""
        if self.kind == "relu":
            torch.clamp_min(x, 0.0, out=out)
        elif self.kind == "leaky":
            _aten.leaky_relu.out(x, self.slope, out=out)
        else:
            torch.clamp(x, 0.0, 6.0, out=out)

    def back(self, gradient: Tensor, y: Tensor, out: Tensor) -> None:
        """Writes the gradient of the input into `out`, given that of the output and the output."""
        if self.kind == "relu":
            _aten.threshold_backward.grad_input(gradient, y, 0.0, grad_input=out)
        elif self.kind == "leaky":
            _aten.leaky_relu_backward.grad_input(gradient, y, self.slope, True, grad_input=out)
        else:
            _aten.hardtanh_backward.grad_input(gradient, y, 0.0, 6.0, grad_input=out)


def find_act(traced: fx.GraphModule, node: fx.Node) -> Act | None:
    """The activation that an operation is, if it is one of these."""
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        if type(module) is nn.ReLU:
            return Act("relu")
        if type(module) is nn.ReLU6:
            return Act("relu6")
        if type(module) is nn.LeakyReLU and module.negative_slope > 0:
            return Act("leaky", module.negative_slope)
    elif node.target in (F.relu, torch.relu, "relu", "relu_"):
        return Act("relu")
    return None
