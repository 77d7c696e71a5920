"""Reading an unmodified network: which of its layers can be computed in tiles, and what each sees.

torch.fx gives the network's operations in the order in which they run. Those that treat every pixel alike and
see only a window of their input become nodes, up to the first that does not (the *hand-off*: a flatten, an
adaptive pooling, a dense layer, or anything this file does not know). Nothing is guessed: a layer is taken
only if it is of exactly the class known here, since a subclass may compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from manyhands.errors import JobError, did_you_mean
from manyhands.tiles.geometry import Window
from manyhands.tiles.layers import Layer, NotTiled, describe

__all__ = ["OUTPUT", "Node", "NodeKind", "TileGraph", "read_graph"]

OUTPUT = "output"
"""The name of the place after the last node."""

NodeKind = Literal[
    "input", "conv", "maxpool", "avgpool", "norm", "pointwise", "dropout", "cat", "unshuffle", "reshape"
]


@dataclass(frozen=True)
class Node:
    """One operation on maps.

    Attributes:
        name: The module's name in the network (with ``:2`` and so on where it is used again), or torch.fx's.
        kind: What it is.
        inputs: Numbers of the nodes it reads.
        windows: What an output pixel sees along rows and columns; None if just the pixel at its place.
        shape: Shape of its output without the batch; the last two are height and width.
        module: The module's name, if it is one.
        parameters: How many numbers it trains.
        macs_per_pixel: Multiplications for one pixel of its output, all channels.
        options: What else there is to know (of poolings and dropout).
        fx_name: Its name in the traced graph.
    """

    name: str
    kind: NodeKind
    inputs: tuple[int, ...]
    windows: tuple[Window, Window] | None
    shape: tuple[int, ...]
    module: str = ""
    parameters: int = 0
    macs_per_pixel: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    fx_name: str = ""

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of its maps."""
        return self.shape[-2], self.shape[-1]

    @property
    def channels(self) -> int:
        """How many maps."""
        return prod(self.shape[:-2])


@dataclass(frozen=True)
class TileGraph:
    """A network as operations.

    Attributes:
        nodes: Those that can be tiled, in the order in which they run; node 0 is the network's input.
        names: Of all operations, the input first, those after `end` too.
        shapes: Their outputs' shapes without the batch.
        readers_of: For each operation, which later ones read it; ``len(names)`` stands for the network's
            output.
        end: The first that cannot be tiled; ``len(names)`` if all can.
        reason: Why not.
        output_shape: Shape of what the network gives, without the batch.
        traced: The network as torch.fx sees it; its modules are the network's own.
    """

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    readers_of: tuple[tuple[int, ...], ...]
    end: int
    reason: str
    output_shape: tuple[int, ...]
    traced: fx.GraphModule = field(repr=False, compare=False)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate((*self.names, OUTPUT))}

    def index(self, name: str) -> int:
        """The number of the operation of this name."""
        if name not in self._numbers:
            hint = did_you_mean(name, self._numbers)
            raise JobError("plan", name, f"the network has no operation of this name{hint}")
        return self._numbers[name]

    def name(self, number: int) -> str:
        """The name of the operation of this number."""
        return OUTPUT if number == len(self.names) else self.names[number]

    def readers(self, number: int) -> tuple[int, ...]:
        """The operations that read this one."""
        return self.readers_of[number]

    def handoff(self, end: int) -> tuple[int, ...]:
        """The nodes before `end` that are read at or after it."""
        return tuple(n for n in range(end) if any(reader >= end for reader in self.readers_of[n]))

    def windowed(self, end: int) -> tuple[str, ...]:
        """The nodes before `end` that look over a tile's border wherever it is cut."""
        return tuple(
            node.name
            for node in self.nodes[1:end]
            if node.windows and any(w.padding or _reach(w) > w.stride for w in node.windows)
        )


def read_graph(module: nn.Module, shape: tuple[int, int, int]) -> TileGraph:
    """Reads a network for inputs of this shape, (channels, height, width); the module is left as it is.

    Raises:
        JobError: torch.fx cannot read it, or it does not take the shape.
    """
    traced = _trace(module)
    traced.graph.eliminate_dead_code()
    shapes = _shapes(traced, type(module).__name__, shape)
    operations = [n for n in traced.graph.nodes if n.op not in ("output", "get_attr")]
    if sum(n.op == "placeholder" for n in operations) != 1:
        raise JobError("network", type(module).__name__, "must take one tensor of images and nothing else")
    (output,) = (n for n in traced.graph.nodes if n.op == "output")
    if not isinstance(output.args[0], fx.Node):
        raise JobError("network", type(module).__name__, "must give one tensor")
    numbers = {n: number for number, n in enumerate(operations)} | {output: len(operations)}
    names = _names(operations)
    nodes = [Node(names[0], "input", (), None, shape, fx_name=operations[0].name)]
    reason = "it is the network's output"
    for number in range(1, len(operations)):
        operation = operations[number]
        try:
            layer = describe(traced, operation, shapes)
        except NotTiled as error:
            reason = f"{names[number]} {error}"
            break
        nodes.append(_node(layer, operation, names[number], numbers, shapes[operation]))
    readers = tuple(tuple(sorted(numbers[u] for u in n.users if u in numbers)) for n in operations)
    found = tuple(shapes[operation] for operation in operations)
    output_shape = shapes[output.args[0]]
    return TileGraph(tuple(nodes), names, found, readers, len(nodes), reason, output_shape, traced)


def _node(
    layer: Layer, operation: fx.Node, name: str, numbers: Mapping[fx.Node, int], shape: tuple[int, ...]
) -> Node:
    return Node(
        name,
        layer.kind,
        tuple(numbers[source] for source in layer.inputs),
        layer.windows,
        shape,
        module=str(operation.target) if operation.op == "call_module" else "",
        parameters=layer.parameters,
        macs_per_pixel=layer.macs_per_pixel,
        options=layer.options,
        fx_name=operation.name,
    )


def _reach(window: Window) -> int:
    return window.dilation * (window.kernel - 1) + 1


def _names(operations: list[fx.Node]) -> tuple[str, ...]:
    taken: dict[str, int] = {}
    names = []
    for operation in operations:
        base = str(operation.target) if operation.op in ("call_module", "placeholder") else operation.name
        base = "input" if operation.op == "placeholder" else base
        taken[base] = taken.get(base, 0) + 1
        names.append(base if taken[base] == 1 else f"{base}:{taken[base]}")
    return tuple(names)


class _Tracer(fx.Tracer):
    """Looks into every module but torch's own layers and what is made from one."""

    def __init__(self, *, childless_are_leaves: bool) -> None:
        super().__init__()
        self.childless_are_leaves = childless_are_leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one operation."""
        if isinstance(m, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            return False
        layers = (c for c in type(m).__mro__ if c.__module__.startswith("torch.nn.") and c is not nn.Module)
        return any(layers) or (self.childless_are_leaves and not any(True for _ in m.children()))


def _trace(module: nn.Module) -> fx.GraphModule:
    for childless_are_leaves in (False, True):
        tracer = _Tracer(childless_are_leaves=childless_are_leaves)
        try:
            graph = tracer.trace(module)
        except Exception as error:  # somebody else's forward may raise anything while it is traced
            failed = error
            continue
        return fx.GraphModule(tracer.root, graph)
    reason = (str(failed).strip() or type(failed).__name__).splitlines()[0]
    raise JobError(
        "network", type(module).__name__, f"cannot be cut into tiles, torch.fx cannot read it: {reason}"
    ) from failed


class _Recorder(nn.Module):
    """Runs a traced network and notes the shape of everything."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__()
        self.traced = traced
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def forward(self, x: Tensor) -> None:
        shapes = self.shapes

        class Notes(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                value = super().run_node(n)
                shapes[n] = tuple(value.shape[1:]) if isinstance(value, Tensor) and value.dim() else ()
                return value

        Notes(self.traced).run(x)


def _shapes(traced: fx.GraphModule, name: str, shape: tuple[int, int, int]) -> dict[fx.Node, tuple[int, ...]]:
    """Shapes without the batch, found on stand-ins for all tensors, without arithmetic if that works."""
    for device in ("meta", "cpu"):
        recorder = _Recorder(traced)
        tensors = (*recorder.named_parameters(), *recorder.named_buffers())
        stand_ins = {key: torch.zeros_like(tensor, device=device) for key, tensor in tensors}
        dtype = next((t.dtype for t in stand_ins.values() if t.is_floating_point()), torch.float32)
        try:
            # Two examples, because batch normalisation refuses a single one where maps are single pixels.
            images = torch.zeros((2, *shape), dtype=dtype, device=device)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                functional_call(recorder, stand_ins, (images,))
        except Exception as error:  # whatever a network raises that does not take the shape
            failed = error
            continue
        return recorder.shapes
    reason = (str(failed).strip() or type(failed).__name__).splitlines()[0]
    raise JobError("network", name, f"does not take {'x'.join(map(str, shape))}: {reason}") from failed
