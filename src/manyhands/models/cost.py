"""What a network costs to train: operations, parameters, memory.

`cost_of` watches a training step that is run without numbers (see `dry.py`): operations come from torch's
formulas, memory from what autograd says it keeps. `layer_costs` counts convolutions and dense layers by
their closed forms instead, layer by layer, for planners; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from manyhands.models.dry import Shape, dry_run, every_module_in_mode

__all__ = ["Cost", "LayerCost", "cost_of", "layer_costs"]


@dataclass(frozen=True)
class Cost:
    """The cost of one example, except for parameters, which are there once.

    Attributes:
        forward_flops: Operations of the forward pass; a multiplication and its addition count as two.
        train_flops: Forward and backward: gradients of all weights, and of all inputs but the first.
        parameters: How many numbers are trained or could be.
        parameter_bytes: Their size, buffers (such as batch normalisation's statistics) included.
        activation_bytes: What autograd keeps of one example between forward and backward.
    """

    forward_flops: int
    train_flops: int
    parameters: int
    parameter_bytes: int
    activation_bytes: int

    def memory_bytes(self, batch_size: int, optimizer_slots: int) -> int:
        """Memory of a training step: parameters, gradients, optimizer state and kept activations.

        Buffers are counted as if they had gradients (below one percent), and what a kernel needs while it
        runs is not counted.

        Args:
            batch_size: Examples per step.
            optimizer_slots: Numbers kept per parameter: 0 for SGD, 1 with momentum, 2 for Adam.
        """
        return self.parameter_bytes * (2 + optimizer_slots) + self.activation_bytes * batch_size


@dataclass(frozen=True)
class LayerCost:
    """One layer's part in the forward pass of one example.

    Attributes:
        name: The module's name in the network, for example ``features.conv2``.
        kind: The module's class, for example ``Conv2d``.
        macs: Multiply-accumulates; 0 for layers that are neither convolution nor dense.
        parameters: Its own parameters; 0 where an earlier layer holds the same module.
        output_shape: Shape of its output without the batch.
    """

    name: str
    kind: str
    macs: int
    parameters: int
    output_shape: Shape


def cost_of(model: nn.Module, shape: Sequence[int]) -> Cost:
    """Measures the cost of training a network on examples of this shape, without doing the arithmetic.

    Args:
        model: Any module that maps a batch of examples to one tensor.
        shape: Shape of one example, (channels, height, width).
    """
    forward, train = _flops(model, tuple(shape))
    parameters = list(model.parameters())
    return Cost(
        forward_flops=forward,
        train_flops=train,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(t.numel() * t.element_size() for t in (*parameters, *model.buffers())),
        activation_bytes=_activation_bytes(model, tuple(shape)),
    )


def layer_costs(model: nn.Module, shape: Sequence[int]) -> list[LayerCost]:
    """The innermost modules in the order in which they run, each with its closed-form cost.

    What a network computes outside of modules (an addition in its `forward`) does not appear.
    """
    names = {module: name for name, module in model.named_modules() if not list(module.children())}
    costs: list[LayerCost] = []
    seen: set[nn.Module] = set()

    def note(module: nn.Module, _inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            return
        own = 0 if module in seen else sum(p.numel() for p in module.parameters())
        seen.add(module)
        macs = output[0].numel() * _macs_per_output(module)
        costs.append(LayerCost(names[module], type(module).__name__, macs, own, tuple(output.shape[1:])))

    def run(call: Callable[[], object]) -> None:
        costs.clear()
        seen.clear()
        call()

    hooks = [module.register_forward_hook(note) for module in names]
    try:
        with torch.no_grad(), every_module_in_mode(model, training=False):
            dry_run(model, tuple(shape), 1, run)
    finally:
        for hook in hooks:
            hook.remove()
    return costs


def _macs_per_output(module: nn.Module) -> int:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.in_channels // module.groups * prod(module.kernel_size)
    return module.in_features if isinstance(module, nn.Linear) else 0


def _flops(model: nn.Module, shape: Shape) -> tuple[int, int]:
    """Operations per example of the forward pass, and of the forward and the backward pass."""

    def run(call: Callable[[], object]) -> tuple[int, int]:
        with _Counter() as counter:
            output = call()
            forward = counter.flops
            assert isinstance(output, Tensor)
            if output.requires_grad:
                torch.autograd.backward(output.sum())
        return forward // 2, counter.flops // 2

    # Two examples, because batch normalisation refuses a single one where maps are single pixels.
    with torch.enable_grad(), every_module_in_mode(model, training=True):
        return dry_run(model, shape, 2, run)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of everything that is called; torch's own counter would load its compiler.

    That takes seconds where a device is slow, and all others wait for it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        convolved = shape_wrapper(_convolution_backward_flops)  # type: ignore[no-untyped-call]
        own = {torch.ops.aten.convolution_backward: convolved}
        self._formulas: dict[Any, Callable[..., int]] = flop_registry | own
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = self._formulas.get(func._overloadpacket)
        if formula is None:
            with self:  # an operation that is made of others counts as these
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        output = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=output)
        return output


def _activation_bytes(model: nn.Module, shape: Shape) -> int:
    """Bytes per example that autograd keeps for the backward pass."""

    def run(call: Callable[[], object]) -> int:
        kept: dict[int, torch.UntypedStorage] = {}  # holds the storages, so that no address is used twice

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            call()
        return sum(storage.nbytes() for storage in kept.values())

    # What is kept whatever the batch size (weights, batch statistics) falls out of the difference.
    with torch.enable_grad(), every_module_in_mode(model, training=True):
        return (dry_run(model, shape, 4, run) - dry_run(model, shape, 2, run)) // 2


def _convolution_backward_flops(
    output_grad: Shape, inputs: Shape, weight: Shape, *rest: Any, out_shape: Any = None, **_: Any
) -> int:
    """Operations of a convolution's backward pass; torch's own count takes grouped weights for full ones."""
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = rest[:8]
    pixels = prod((inputs if transposed else output_grad)[2:])
    return 2 * output_grad[0] * pixels * prod(weight) * sum(map(int, wanted[:2]))
