"""A plan, made ready for one tile: boxes, layouts and message lists that are the same in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from manyhands.tiles.acts import Act, find_act
from manyhands.tiles.early import Early, find_early
from manyhands.tiles.geometry import Box, hull
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.layers import overwrites
from manyhands.tiles.regions import Group, Regions, conv_sight, input_box

__all__ = ["Piece", "Program", "call_again", "compile_tile"]

Piece = tuple[int, Box]
"""A node and a box of its map."""


@dataclass(frozen=True)
class Program:
    """What one tile does.

    Attributes:
        graph: The network.
        regions: Who owns, needs and computes what.
        tile: Which tile this is.
        box: Node -> what this tile computes of it; of the input, what it is given.
        extent: Node -> the same with a frame of zeros, where its reader is a convolution that pads only one
            side.
        acts: Node -> the activation it is.
        norm_acts: Batch norm -> the activation that is computed with it.
        norms_of: That activation -> the batch norm.
        modules: Node -> the network's own module that it is.
        parameters: Node -> what that module trains.
        sends: For each group, tile -> pieces that it is sent.
        receives: For each group, tile -> pieces that come from it.
        first_norms: For each group the batch norm that it begins with, if its sums travel with the borders.
        early: For each group what of its first convolution needs no border, if there is such a part.
        operations: Node -> the traced operation that it is.
    """

    graph: TileGraph
    regions: Regions
    tile: int
    box: Mapping[int, Box]
    extent: Mapping[int, Box]
    acts: Mapping[int, Act]
    norm_acts: Mapping[int, int]
    norms_of: Mapping[int, int]
    modules: Mapping[int, nn.Module]
    parameters: Mapping[int, tuple[nn.Parameter, ...]]
    sends: tuple[Mapping[int, tuple[Piece, ...]], ...]
    receives: tuple[Mapping[int, tuple[Piece, ...]], ...]
    first_norms: tuple[int | None, ...]
    early: tuple[Early | None, ...]
    operations: Mapping[int, fx.Node]

    def owned(self, node: int) -> Box:
        """This tile's own part of a map."""
        return self.regions.owned[node][self.tile]


def compile_tile(graph: TileGraph, found: Regions, tile: int) -> Program:
    """Works out what one tile does."""
    box = {0: input_box(found, tile)}
    for group in found.groups:
        box.update(group.shares[tile].computed)
    by_name = {node.name: node for node in graph.traced.graph.nodes}
    acts = {
        number: act
        for number in range(1, found.end)
        if (act := find_act(graph.traced, by_name[graph.nodes[number].fx_name])) is not None
    }
    norm_acts = _norm_acts(graph, found, box, acts)
    named = {number: name for number in range(1, found.end) if (name := graph.nodes[number].module)}
    modules = {number: graph.traced.get_submodule(name) for number, name in named.items()}
    return Program(
        graph,
        found,
        tile,
        box,
        {number: _extent(graph, found, box, number) for number in box},
        acts,
        norm_acts,
        {act: norm for norm, act in norm_acts.items()},
        modules,
        {number: tuple(module.parameters()) for number, module in modules.items()},
        tuple(_pieces(group, tile, outgoing=True) for group in found.groups),
        tuple(_pieces(group, tile, outgoing=False) for group in found.groups),
        tuple(_first_norm(graph, group) for group in found.groups),
        tuple(find_early(graph, found.owned, group, tile) for group in found.groups),
        {number: by_name[graph.nodes[number].fx_name] for number in range(found.end)},
    )


def call_again(program: Program, number: int, tensors: Sequence[Tensor]) -> Tensor:
    """Does a traced operation with other tensors, which it does not overwrite."""
    operation = program.operations[number]
    if overwrites(program.graph.traced, operation):
        tensors = [tensor.clone() for tensor in tensors]
    if operation.op == "call_module":
        result: Tensor = program.graph.traced.get_submodule(str(operation.target))(*tensors)
        return result
    by_node = dict(zip(operation.all_input_nodes, tensors, strict=True))
    args: Any = fx.map_arg(operation.args, lambda node: by_node[node])
    kwargs: Any = fx.map_arg(operation.kwargs, lambda node: by_node[node])
    if operation.op == "call_method":
        called: Any = getattr(args[0], str(operation.target))(*args[1:], **kwargs)
    else:
        target: Any = operation.target
        called = target(*args, **kwargs)
    assert isinstance(called, Tensor)
    return called


def _extent(graph: TileGraph, found: Regions, box: Mapping[int, Box], number: int) -> Box:
    own_group = next((group for group in found.groups if group.first <= number < group.stop), None)
    for reader in graph.readers(number):
        if own_group is not None and own_group.first <= reader < own_group.stop:
            node = graph.nodes[reader]
            if node.kind == "conv":
                return hull([box[number], conv_sight(node, box[reader], graph.nodes[number].sides)[0]])
    return box[number]


def _norm_acts(
    graph: TileGraph, found: Regions, box: Mapping[int, Box], acts: Mapping[int, Act]
) -> dict[int, int]:
    pairs = {}
    for group in found.groups:
        for number in range(group.first, group.stop):
            readers = graph.readers(number)
            if graph.nodes[number].kind != "norm" or len(readers) != 1 or readers[0] >= group.stop:
                continue
            if readers[0] in acts and box[readers[0]] == box[number]:
                pairs[number] = readers[0]
    return pairs


def _pieces(group: Group, tile: int, *, outgoing: bool) -> dict[int, tuple[Piece, ...]]:
    found: dict[int, list[Piece]] = {}
    for send in group.sends:
        mine, other = (send.source, send.target) if outgoing else (send.target, send.source)
        if mine == tile:
            found.setdefault(other, []).append((send.node, send.box))
    return {other: tuple(pieces) for other, pieces in sorted(found.items())}


def _first_norm(graph: TileGraph, group: Group) -> int | None:
    """The group's first node if it is a batch norm, the only one to read the only map that is imported."""
    node = graph.nodes[group.first]
    if node.kind != "norm" or group.imports != node.inputs or node.inputs == (0,):
        return None
    inside = [r for r in graph.readers(node.inputs[0]) if group.first <= r < group.stop]
    return group.first if inside == [group.first] else None
