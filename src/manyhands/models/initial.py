"""First weights of the networks that have no better habit: He's, with a timid output layer.

Deep ReLU networks without batch normalisation stand still for epochs with torch's default weights, whose
variance is a sixth of what ReLU needs; and large first logits make the first steps jump.
"""

from __future__ import annotations

from torch import nn

__all__ = ["he_initial"]


def he_initial(model: nn.Module, output: nn.Conv2d | nn.Linear) -> None:
    """Draws the weights from He et al.'s normal distribution (2015), those of `output` from N(0, 0.01²).

    Sets every tensor of a network of convolutions, dense layers and batch normalisation, so that such a
    network may come without any (from the meta device, say).
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        if not isinstance(module, nn.Conv2d | nn.Linear):
            continue
        if module is output:
            nn.init.normal_(module.weight, std=0.01)
        else:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
