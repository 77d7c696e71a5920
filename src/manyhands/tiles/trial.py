"""What each layer takes inside a step: one tile's part is run as it will be, with others that say nothing.

A layer timed alone finds its input in the cache, writes where it has just written, and pays for none of the
calls around it. So passes are run here through the very code that trains, at several heights of the tile, and
the clock is read between layers. What others would send are zeros.
"""

from __future__ import annotations

import copy
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils.benchmark import timer

from manyhands.tiles.backward import backward_group
from manyhands.tiles.forward import forward_group
from manyhands.tiles.geometry import Box, cut_tiles
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.module import TiledModule
from manyhands.tiles.peers import Peers, Pending
from manyhands.tiles.plan import TilePlan
from manyhands.tiles.pool import Pool
from manyhands.tiles.program import Program, compile_tile
from manyhands.tiles.reduce import Reducer
from manyhands.tiles.regions import regions
from manyhands.tiles.step import Step
from manyhands.tiles.values import Part, Value

__all__ = ["Trial", "try_step", "try_tiles"]

Pass = Literal["forward", "input_gradient", "weight_gradient", "waiting"]
PASSES: tuple[Pass, ...] = get_args(Pass)[:3]
TrialTimes = dict[tuple[Pass, int | None], float]


class _Mute(Peers):
    """Others who answer with zeros, as soon as all have met."""

    def __init__(self, count: int, meet: Callable[[], None] | None = None) -> None:
        self.devices, self.group, self.rank, self.tile = tuple(range(count)), None, 0, 0
        self.alone, self.nearby, self.far = meet is None, None, False
        self.others = self.devices[1:]
        self.meet = meet or (lambda: None)

    def _over_network(
        self, outgoing: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor
    ) -> Pending:
        def wait() -> dict[int, Tensor]:
            self.meet()
            return {tile: like.new_zeros(size) for tile, size in sizes.items()}

        return Pending(wait)


class _Watched(Step):
    """A pass that notes how long each node took."""

    passing: Pass = "forward"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seconds: TrialTimes = defaultdict(float)
        self._now: tuple[Pass, int | None] = self.passing, None
        self._since = timer()

    def at(self, number: int | None) -> None:
        """From here on it is this node's time."""
        self._turn((self.passing, number))

    def later(self, work: Callable[[], None]) -> None:
        """Puts off, to be noted for the node that is computed now."""
        number = self._now[1]

        def watched() -> None:
            before = self._now
            self._turn(("weight_gradient", number))
            work()
            self._turn(before)

        super().later(watched)

    def off_the_clock(self, call: Callable[[], object]) -> None:
        """Does something that is nobody's time."""
        before = self._now
        self._turn(("waiting", None))
        call()
        self._turn(before)

    def _turn(self, to: tuple[Pass, int | None]) -> None:
        now = timer()
        self.seconds[self._now] += now - self._since
        self._now, self._since = to, now


@dataclass(frozen=True)
class Trial:
    """What one tile took.

    Attributes:
        program: What it computed.
        seconds: Of each node in each pass, the median of several; those of None went into beginning groups.
    """

    program: Program
    seconds: Mapping[tuple[Pass, int | None], float]

    @property
    def num_exchanges(self) -> int:
        """How many groups begin with a message."""
        return sum(bool(group.sends) for group in self.program.regions.groups)

    def rows(self, number: int) -> float:
        """Rows of full width that the tile computed of a node."""
        return self.program.box[number].area / self.program.graph.nodes[number].sides[1]

    def node_seconds(self, number: int) -> tuple[float, ...] | None:
        """Forward, input gradient and weight gradient; None if the tile did not come that far.

        What was computed together with a batch norm is the norm's.
        """
        program = self.program
        if number >= program.regions.end:
            return None
        if number in program.norms_of:
            return 0.0, 0.0, 0.0
        both = (number, program.norm_acts.get(number))
        return tuple(
            sum(self.seconds.get((each, node), 0.0) for node in both if node is not None) for each in PASSES
        )

    @property
    def wait_s(self) -> float:
        """How long others were waited for, each time: at every norm and every message, both ways."""
        norms = sum(node.kind == "norm" for node in self.program.graph.nodes[: self.program.regions.end])
        return self.seconds.get(("waiting", None), 0.0) / (2 * (norms + self.num_exchanges))

    def begin_s(self, batch_size: int, copy_bps: float) -> float:
        """Of each group that begins with a message, what the calls take, both ways, copies left out."""
        nodes = self.program.graph.nodes
        both_ways = (*self.program.sends, *self.program.receives)
        pieces = [piece for group in both_ways for found in group.values() for piece in found]
        num_bytes = 4.0 * batch_size * sum(nodes[node].channels * box.area for node, box in pieces)
        taken = self.seconds["forward", None] + self.seconds["input_gradient", None]
        return max(0.0, taken - 2 * num_bytes / copy_bps) / self.num_exchanges


def try_tiles(
    graph: TileGraph,
    batch_size: int,
    parts: Sequence[float],
    num_passes: int,
    most_bytes: float = inf,
    meet: Callable[[], object] = lambda: None,
) -> Iterable[Trial]:
    """Tries a tile of each of some heights.

    Args:
        graph: The network.
        batch_size: Images a pass.
        parts: Of the image's height.
        num_passes: Of which the median is taken.
        most_bytes: Tiles that would keep more are left out, but for the first.
        meet: Called wherever a message would be waited for. Devices of one machine that meet there compute
            the same layers at the same time, as they will, and take the memory's bandwidth from each other.
    """
    graph = replace(graph, traced=copy.deepcopy(graph.traced).train())
    for number, plan in enumerate(_plans(graph, parts)):
        program = compile_tile(graph, regions(graph, plan), 0)
        if number == 0 or _kept_bytes(program, batch_size) <= most_bytes:
            yield Trial(program, _tried(program, plan, batch_size, num_passes, meet))


def _plans(graph: TileGraph, parts: Sequence[float]) -> Iterable[TilePlan]:
    """The first of two tiles, as deep as both have a pixel, or all of the image."""
    height, width = graph.nodes[0].sides
    smallest = min(node.sides[0] for node in graph.nodes)
    unit = height // smallest if height % smallest == 0 else 1
    for cut in sorted({min(height, unit * max(1, round(height * part / unit))) for part in parts}):
        rows = (cut, height - cut) if cut < height else (height,)
        boxes = (cut_tiles(rows, (width,), *node.sides) for node in graph.nodes)
        end = next((n for n, found in enumerate(boxes) if not all(box.area for box in found)), graph.end)
        if end > 1:
            starts = graph.windowed(end)
            yield TilePlan(rows, (width,), starts, graph.name(end), "one", tuple(range(len(rows))))


def _kept_bytes(program: Program, batch_size: int) -> float:
    """No less than what a pass keeps."""
    nodes = program.graph.nodes
    return 4.0 * batch_size * sum(nodes[number].channels * box.area for number, box in program.box.items())


def _tried(
    program: Program, plan: TilePlan, batch_size: int, num_passes: int, meet: Callable[[], object]
) -> TrialTimes:
    pool = Pool()
    passes = [_once(program, plan.num_tiles, pool, batch_size, meet) for _ in range(num_passes + 1)][1:]
    keys = {key for found in passes for key in found}
    return {key: statistics.median(found.get(key, 0.0) for found in passes) for key in keys}


def _once(
    program: Program, num_tiles: int, pool: Pool, batch_size: int, meet: Callable[[], object]
) -> TrialTimes:
    peers = _Mute(num_tiles, lambda: step.off_the_clock(meet))
    reducer = Reducer(peers, None)
    reducer.is_holding = True
    step = _Watched(program, peers, pool, reducer, number=0, seed=0, like=torch.empty(batch_size))
    step.exports[0] = Value([Part(program.box[0], _random(step, 0, program.box[0]))])
    step.want(images=False)
    groups = range(len(program.regions.groups))
    ends = {node: _random(step, node, program.owned(node)) for node in program.regions.handoff}
    step.at(None)
    step.seconds.clear()
    with torch.no_grad():
        for group in groups:
            forward_group(step, group)
        step.passing = "input_gradient"
        step.at(None)
        for node, gradient in ends.items():
            if step.wanted[node]:
                step.contribute(node, Part(program.owned(node), gradient), ours=True)
        for group in reversed(groups):
            backward_group(step, group, again=False)
        step.catch_up()
        step.at(None)
    return step.seconds


class _WatchedModule(TiledModule):
    """Notes the time of the nodes of its last pass, both ways."""

    step_type = _Watched
    last: _Watched

    def _step(self, part: Tensor) -> Step:
        step = super()._step(part)
        assert isinstance(step, _Watched)
        self.last = step
        return step


def try_step(graph: TileGraph, num_passes: int) -> tuple[float, float]:
    """Seconds of a whole step of two images beside the tiled layers, and of the optimizer (SGD).

    That is the layers after the tiles, and all calls that are made once a step however large it is. The loss
    is a stand-in.
    """
    traced = copy.deepcopy(graph.traced).train()
    height, width = graph.nodes[0].sides
    plan = TilePlan((height,), (width,), (), graph.name(graph.end), "one", (0,))
    tiled = _WatchedModule(traced, replace(graph, traced=traced), plan, peers=_Mute(1))
    optimizer = torch.optim.SGD(traced.parameters(), lr=0.0)
    images = torch.rand(2, *graph.nodes[0].shape).contiguous(memory_format=torch.channels_last)
    beside, updates = [], []
    for _ in range(num_passes + 1):
        optimizer.zero_grad()
        start = timer()
        tiled(images).square().mean().backward()
        tiled.synchronise()
        middle = timer()
        optimizer.step()
        updates.append(timer() - middle)
        nodes = sum(seconds for (_, node), seconds in tiled.last.seconds.items() if node is not None)
        beside.append(middle - start - nodes)
    return statistics.median(beside[1:]), statistics.median(updates[1:])


def _random(step: Step, node: int, box: Box) -> Tensor:
    tensor = torch.rand(step.shape(node, box))
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
