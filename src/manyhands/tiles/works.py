"""What each operation of a network does for a batch: arithmetic, weights, maps read and written."""

from __future__ import annotations

from math import prod

from torch import Tensor, fx

from manyhands.tiles.graph import TileGraph
from manyhands.tiles.profile import LayerWork

__all__ = ["all_operations", "operation_works"]


def all_operations(graph: TileGraph) -> list[fx.Node]:
    """The traced operations in the order of `graph.names`, the input first."""
    return [node for node in graph.traced.graph.nodes if node.op not in {"output", "get_attr"}]


def operation_works(graph: TileGraph, batch_size: int, value_bytes: int = 4) -> tuple[LayerWork, ...]:
    """Of every operation but the input, those after the hand-off too."""
    operations = all_operations(graph)
    numbers = {operation: number for number, operation in enumerate(operations)}
    works = []
    for number, operation in enumerate(operations[1:], start=1):
        shape = graph.shapes[number]
        pixels = prod(shape[-2:]) if len(shape) >= 3 else 1
        weights, macs_per_pixel = 0, 0
        if operation.op == "call_module":
            module = graph.traced.get_submodule(str(operation.target))
            weights = sum(p.numel() for p in module.parameters())
            weight = getattr(module, "weight", None)
            # Of a convolution and of a dense layer; a batch norm's few operations are its maps' traffic.
            macs_per_pixel = weight.numel() if isinstance(weight, Tensor) and weight.dim() > 1 else 0
        sources = [numbers[source] for source in operation.all_input_nodes if source in numbers]
        read = sum(prod(graph.shapes[source]) for source in sources)
        works.append(
            LayerWork(
                name=graph.names[number],
                rows=shape[-2] if len(shape) >= 3 else 1,
                forward_flops=2.0 * macs_per_pixel * pixels * batch_size,
                weight_bytes=float(weights * value_bytes),
                map_bytes=float((read + prod(shape)) * batch_size * value_bytes),
                has_input_gradient=sources != [0],
            )
        )
    return tuple(works)
