"""What each kind of layer does to pixels, as far as tiles must know; everything else is refused by name.

Only exact classes count, and only modules that nobody has hooked into: a subclass, a hook or a
parametrisation may compute something that is not known here.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import fx, nn

from manyhands.tiles.geometry import Window

__all__ = ["HOOKS", "Layer", "NotTiled", "describe", "overwrites"]

Kind = Literal["conv", "maxpool", "avgpool", "norm", "pointwise", "dropout", "cat", "unshuffle", "reshape"]
Shapes = Mapping[fx.Node, tuple[int, ...]]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

POINTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Softsign,
    nn.LogSigmoid,
)
FUNCTIONS: frozenset[Any] = frozenset(
    (
        *(operator.add, operator.iadd, operator.sub, operator.mul, operator.truediv, operator.neg),
        *(torch.add, torch.sub, torch.mul, torch.div, torch.neg),
        *(torch.relu, torch.sigmoid, torch.tanh),
        *(F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.hardtanh, F.hardswish),
        *(F.hardsigmoid, F.sigmoid, F.tanh, F.softplus),
    )
)
METHODS = frozenset(("add", "sub", "mul", "div", "neg", "relu", "sigmoid", "tanh", "add_", "relu_"))
IN_PLACE = frozenset(("add_", "relu_", operator.iadd))


class NotTiled(ValueError):
    """An operation that is not computed in tiles; the message ends a sentence that begins with its name."""


@dataclass(frozen=True)
class Layer:
    """An operation, as `graph.Node` has it, before it has a number."""

    kind: Kind
    inputs: tuple[fx.Node, ...]
    windows: tuple[Window, Window] | None = None
    parameters: int = 0
    macs_per_pixel: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def describe(traced: fx.GraphModule, node: fx.Node, shapes: Shapes) -> Layer:
    """Says what an operation is.

    Raises:
        NotTiled: It is none that is computed exactly in tiles.
    """
    if node.op == "call_module":
        layer = _module(traced.get_submodule(str(node.target)), node, shapes)
    elif node.op == "call_function":
        layer = _function(node, shapes)
    elif node.op == "call_method":
        layer = _method(node, shapes)
    else:
        raise NotTiled(f"is a {node.op}, which is not computed in tiles")
    _check_in_place(traced, node)
    if any(len(shapes[source]) < 3 for source in (*layer.inputs, node)):
        raise NotTiled("does not map maps to maps")
    return layer


def _module(module: nn.Module, node: fx.Node, shapes: Shapes) -> Layer:
    kind = getattr(type(module), "computes_as", type(module))
    shown = type(module).__name__
    if any(getattr(module, hooks) for hooks in HOOKS):
        raise NotTiled(f"has hooks, which tiles would not call ({shown})")
    inputs = tuple(arg for arg in node.args if isinstance(arg, fx.Node))
    if len(inputs) != 1 or len(node.args) != 1 or node.kwargs:
        raise NotTiled(f"is a {shown} called with more than one tensor")
    own = sum(p.numel() for p in module.parameters())
    if kind is nn.Conv2d:
        return _conv(module, inputs, own)
    if kind is nn.MaxPool2d:
        return _maxpool(inputs, {name: getattr(module, name) for name in _MAX})
    if kind is nn.AvgPool2d:
        return _avgpool(inputs, {name: getattr(module, name) for name in _AVG})
    if kind is nn.PixelUnshuffle:
        window = Window(int(module.downscale_factor), int(module.downscale_factor))  # type: ignore[arg-type]
        return Layer("unshuffle", inputs, (window, window))
    plain: Kind | None = None
    if kind is nn.BatchNorm2d:
        plain = "norm"
    elif kind in (nn.Dropout, nn.Dropout2d):
        plain = "dropout"
    elif kind in POINTWISE:
        plain = "pointwise"
    if plain is None:
        raise NotTiled(f"is a {shown}, which is not computed in tiles")
    options = {"whole_maps": kind is nn.Dropout2d} if plain == "dropout" else {}
    return Layer(plain, inputs, parameters=own, options=options)


def _conv(module: nn.Module, inputs: tuple[fx.Node, ...], own: int) -> Layer:
    assert isinstance(module, nn.Conv2d)
    if module.padding_mode != "zeros":
        raise NotTiled(f"pads with {module.padding_mode!r}, and only zeros are computed in tiles")
    windows = []
    for axis in (0, 1):
        kernel, dilation = module.kernel_size[axis], module.dilation[axis]
        padding: int | str = module.padding if isinstance(module.padding, str) else module.padding[axis]
        if padding == "same":
            padding = dilation * (kernel - 1) // 2
        elif padding == "valid":
            padding = 0
        assert isinstance(padding, int)
        if padding > dilation * (kernel - 1):
            raise NotTiled("has outputs that see nothing but padding")
        windows.append(Window(kernel, module.stride[axis], padding, dilation))
    macs = module.weight.numel()
    return Layer("conv", inputs, (windows[0], windows[1]), own, macs, {"groups": module.groups})


_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def _maxpool(inputs: tuple[fx.Node, ...], said: Mapping[str, Any]) -> Layer:
    if said.get("return_indices"):
        raise NotTiled("returns indices of pixels, which tiles number otherwise")
    return Layer("maxpool", inputs, _pool_windows(said))


def _avgpool(inputs: tuple[fx.Node, ...], said: Mapping[str, Any]) -> Layer:
    options = {
        "count_include_pad": said.get("count_include_pad", True),
        "divisor_override": said.get("divisor_override"),
    }
    return Layer("avgpool", inputs, _pool_windows(said), options=options)


def _pool_windows(said: Mapping[str, Any]) -> tuple[Window, Window]:
    kernel = _pair(said["kernel_size"])
    stride = kernel if said.get("stride") in (None, (), []) else _pair(said["stride"])
    padding, dilation = _pair(said.get("padding", 0)), _pair(said.get("dilation", 1))
    first, second = (Window(kernel[a], stride[a], padding[a], dilation[a]) for a in (0, 1))
    return first, second


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value if len(value) == 2 else (value[0], value[0])
    return int(first), int(second)


def _function(node: fx.Node, shapes: Shapes) -> Layer:
    target: Any = node.target
    if target in (F.max_pool2d, torch.max_pool2d):
        said = _named(node, ("input", *_MAX))
        return _maxpool((said["input"],), said)
    if target in (F.avg_pool2d, torch._C._nn.avg_pool2d):
        said = _named(node, ("input", *_AVG))
        return _avgpool((said["input"],), said)
    if target in (torch.cat, torch.concat):
        return _cat(node, shapes)
    if target is torch.flatten:
        return _reshape(node, shapes)
    if target in FUNCTIONS:
        return _pointwise(node, shapes)
    shown = getattr(target, "__name__", str(target))
    raise NotTiled(f"is a call of {shown}, which is not computed in tiles")


def _method(node: fx.Node, shapes: Shapes) -> Layer:
    if node.target in METHODS:
        return _pointwise(node, shapes)
    if node.target in ("unflatten", "flatten"):
        return _reshape(node, shapes)
    raise NotTiled(f"is a call of {node.target}, which is not computed in tiles")


def _named(node: fx.Node, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _pointwise(node: fx.Node, shapes: Shapes) -> Layer:
    sources = node.all_input_nodes
    if any(source.op == "get_attr" for source in sources):
        raise NotTiled("reads a tensor of the network, and only layers with weights of their own are tiled")
    if any(shapes[source] != shapes[node] for source in sources):
        raise NotTiled("joins maps of different shapes")
    return Layer("pointwise", tuple(sources))


def _cat(node: fx.Node, shapes: Shapes) -> Layer:
    said = _named(node, ("tensors", "dim"))
    sources = said["tensors"]
    dim = said.get("dim", 0)
    rank = len(shapes[node]) + 1
    dim = dim + rank if isinstance(dim, int) and dim < 0 else dim
    if not isinstance(dim, int) or not 0 < dim < rank - 2:
        raise NotTiled("joins maps along something other than channels")
    if not all(isinstance(source, fx.Node) and source.op != "get_attr" for source in sources):
        raise NotTiled("joins maps with a tensor of the network")
    return Layer("cat", tuple(sources), options={"dim": dim})


def _reshape(node: fx.Node, shapes: Shapes) -> Layer:
    """A view that takes channels apart or together and leaves rows and columns alone."""
    (source,) = node.all_input_nodes
    rank = len(shapes[source]) + 1
    before = shapes[source][-2:] if len(shapes[source]) >= 3 else None
    dims = [a for a in (*node.args[1:], *node.kwargs.values()) if isinstance(a, int)]
    touched = [dim + rank if dim < 0 else dim for dim in dims]
    if node.target in ("flatten", torch.flatten):
        said = _named(node, ("input", "start_dim", "end_dim"))
        last = said.get("end_dim", -1)
        touched = [said.get("start_dim", 0), last + rank if last < 0 else last]
    if before is None or shapes[node][-2:] != before or not all(0 < dim < rank - 2 for dim in touched):
        raise NotTiled("flattens pixels")
    return Layer("reshape", (source,))


def overwrites(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether an operation writes its result over its first input."""
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    if node.target in IN_PLACE or node.kwargs.get("inplace"):
        return True
    return (
        node.op == "call_function" and callable(node.target) and _inplace_by_position(node.target, node.args)
    )


def _check_in_place(traced: fx.GraphModule, node: fx.Node) -> None:
    """What is overwritten must have no other reader, who would see it before or after by the order alone."""
    first = node.args[0] if node.args else None
    if overwrites(traced, node) and isinstance(first, fx.Node) and len(first.users) > 1:
        raise NotTiled("overwrites its input, which others read")


def _inplace_by_position(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    try:
        bound = inspect.signature(function).bind_partial(*args)
    except (TypeError, ValueError):  # built-in functions have no signature, and no such argument
        return False
    return bool(bound.arguments.get("inplace", False))
