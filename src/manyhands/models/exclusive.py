"""How exclusively each filter of a network serves each class, and which filters a class is given for its own.

The score follows from one pass over labelled examples. For an example of class *c* and a filter with
activations *a*, the first-order effect on the score of *c* of leaving the filter out is
``|sum(a * d score / d a)|``, summed over the map. Averaged over the examples of a class this is the filter's
*worth* to it. Worths are scaled so that every class has the same total in a layer; a filter's *exclusiveness*
for a class is then the part of its worth that is that class's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.models.decoupled import Choose, Sets

__all__ = ["assign", "chooser", "worth_of_filters"]


def worth_of_filters(
    model: nn.Module, layers: Sequence[str], batches: Iterable[tuple[Tensor, Tensor]], num_classes: int
) -> dict[str, Tensor]:
    """The worth of every filter of the named layers to every class: layer -> [classes, filters].

    Args:
        model: A trained network, which is run in evaluation mode.
        layers: Convolutions or dense layers by name.
        batches: Inputs as the network takes them, and labels.
        num_classes: How many classes there are.
    """
    if not layers:
        return {}
    modules = dict(model.named_modules())
    outputs: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            outputs[name] = output

        return hook

    counts = torch.zeros(num_classes, dtype=torch.float64)
    hooks = [modules[name].register_forward_hook(keep(name)) for name in layers]
    was_training = model.training
    model.eval()
    try:
        for x, y in batches:
            own = model(x).gather(1, y[:, None]).sum()
            gradients = torch.autograd.grad(own, [outputs[name] for name in layers])
            counts += torch.bincount(y.cpu(), minlength=num_classes)
            for name, gradient in zip(layers, gradients, strict=True):
                effect = outputs[name].detach() * gradient
                effect = effect.flatten(2).sum(2) if effect.dim() > 2 else effect
                total = sums.setdefault(name, torch.zeros(num_classes, effect.shape[1], dtype=torch.float64))
                total.index_add_(0, y.cpu(), effect.abs().double().cpu())
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return {name: total / counts.clamp(min=1)[:, None] for name, total in sums.items()}


def assign(worth: Tensor, each: int) -> Sets:
    """For each class its own filters, the most exclusive ones; ascending.

    Where there are enough filters no two classes have the same: of all ways to give every class `each` of
    them, the one with the greatest exclusiveness in sum. Where there are not, each class takes its best.
    """
    classes, filters = worth.shape
    scaled = worth / worth.sum(1, keepdim=True).clamp(min=1e-300)
    exclusive = (scaled / scaled.sum(0).clamp(min=1e-300)).numpy()
    if classes * each > filters:
        return tuple(torch.from_numpy(np.sort(np.argsort(-row, kind="stable")[:each])) for row in exclusive)
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (read by one split alone)

    places, chosen = linear_sum_assignment(np.repeat(exclusive, each, axis=0), maximize=True)
    owner = places // each
    return tuple(torch.from_numpy(np.sort(chosen[owner == c])) for c in range(classes))


def chooser(given: Mapping[str, Tensor], classes: Sequence[int]) -> Choose:
    """What `decouple` asks: the filters that these classes have in each layer, of those of all classes."""
    return lambda layer, _channels: tuple(given[layer][c] for c in classes)
