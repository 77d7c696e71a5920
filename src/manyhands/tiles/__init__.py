"""One network over several devices, each computing a tile of every map, exactly as one device would.

`read_graph` reads a network, a `TilePlan` says how it is cut, `regions` works out who needs what from whom,
and `tile` hands back a module that computes it over `torch.distributed`.
"""

from __future__ import annotations

from manyhands.tiles.geometry import Box, Interval, Window
from manyhands.tiles.graph import OUTPUT, Node, TileGraph, read_graph
from manyhands.tiles.module import TiledModule, tile
from manyhands.tiles.plan import TailMode, TilePlan, check_plan, even_plan
from manyhands.tiles.regions import Group, Regions, Send, Share, input_box, regions

__all__ = [
    "OUTPUT",
    "Box",
    "Group",
    "Interval",
    "Node",
    "Regions",
    "Send",
    "Share",
    "TailMode",
    "TileGraph",
    "TilePlan",
    "TiledModule",
    "Window",
    "check_plan",
    "even_plan",
    "input_box",
    "read_graph",
    "regions",
    "tile",
]
