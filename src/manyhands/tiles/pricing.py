"""What a plan costs: the predicted time of a training step, by parts, and the memory of each device.

Tiles wait for each other wherever they exchange something: at every batch normalisation, whose sums are
taken over all tiles, and at the start of every group. Between two such points the slowest tile counts.
Boxes come from `regions.py`, so that what is priced is what is computed. All but the weights' gradients is
a sum over groups, which is what lets the planner choose groups by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from manyhands.tiles.early import find_early
from manyhands.tiles.geometry import Box, cut_tiles
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.plan import TailMode, TilePlan, check_plan
from manyhands.tiles.regions import Group, group_regions
from manyhands.tiles.setting import GroupPrice, Prediction, Setting, TailPrice, TilePart, node_seconds

__all__ = ["Grid", "GroupPrice", "Prediction", "Setting", "TailPrice", "TilePart", "predict"]

INDEX_BYTES = 8  # a maximum's place, as torch keeps it
KEEPERS = frozenset({"conv", "norm", "maxpool", "avgpool"})


@dataclass(frozen=True)
class _Stretch:
    """Seconds of each tile between two points at which tiles wait for each other."""

    forward: list[float]
    backward: list[float]
    weights: list[float]

    @staticmethod
    def of(num_tiles: int) -> _Stretch:
        return _Stretch(*([0.0] * num_tiles for _ in range(3)))

    def add(self, tile: int, seconds: tuple[float, float, float]) -> None:
        forward, inputs, weights = seconds
        self.forward[tile] += forward
        self.backward[tile] += inputs + weights
        self.weights[tile] += weights


class Grid:
    """The prices of one set of cuts; groups are worked out once, however often they are asked for."""

    def __init__(
        self, setting: Setting, rows: Sequence[int], cols: Sequence[int], devices: Sequence[int]
    ) -> None:
        self.setting, self.rows, self.cols = setting, tuple(rows), tuple(cols)
        self.devices = tuple(devices)
        graph = setting.graph
        owned: dict[int, tuple[Box, ...]] = {}
        for number, node in enumerate(graph.nodes):
            boxes = cut_tiles(self.rows, self.cols, *node.sides)
            if any(not box.area for box in boxes):
                break
            owned[number] = boxes
        self.owned = owned
        self.deepest = len(owned)
        """The first node at which some tile has no pixel: tiling must end there at the latest."""
        self._groups: dict[tuple[int, int], GroupPrice] = {}
        self._seconds: dict[tuple[int, int, int], tuple[float, float, float]] = {}

    def group(self, first: int, stop: int) -> GroupPrice:
        """The price of the nodes from `first` up to `stop` as one group."""
        if (first, stop) not in self._groups:
            found = group_regions(self.setting.graph, self.owned, first, stop, set())
            self._groups[first, stop] = self._price(found)
        return self._groups[first, stop]

    def _price(self, group: Group) -> GroupPrice:
        tiles = range(len(group.shares))
        stretches = self._stretches(group)
        halo_s = norm_s = 0.0
        if group.first > 1:  # also where nothing is sent, so that the fewer of equally good groups are taken
            halo_s = max(self.setting.profiles[rank].group_s for rank in self.devices)
        if group.sends:
            meanwhile = self._early(group, stretches[0]), stretches[0].weights
            halo_s += sum(self._exchange_s(group, each) for each in meanwhile)
        # A norm that begins its group has its sums travel with the borders.
        for stretch in stretches[1:]:
            norm_s += self.setting.round_s + self.setting.wait_s(0.0, min(stretch.weights))
        return GroupPrice(
            sum(max(stretch.forward) for stretch in stretches),
            sum(max(stretch.backward) for stretch in stretches),
            halo_s,
            norm_s,
            tuple(self._kept(group, tile) for tile in tiles),
            tuple(self._held(group, tile) for tile in tiles),
            tuple(self._inner(group, tile) for tile in tiles),
        )

    def _early(self, group: Group, stretch: _Stretch) -> list[float]:
        """What each tile computes while borders travel to it; doing so in pieces is charged too."""
        found = [0.0] * len(group.shares)
        if self.setting.link.through_memory:
            return found
        for tile, share in enumerate(group.shares):
            early = find_early(self.setting.graph, self.owned, group, tile)
            if early is None:
                continue
            whole = self._node_seconds(tile, group.first, share.computed[group.first])[0]
            found[tile], *strips = (
                self._node_seconds(tile, group.first, box)[0] for box in (early.inner, *early.strips)
            )
            stretch.forward[tile] += max(0.0, found[tile] + sum(strips) - whole)
        return found

    def _stretches(self, group: Group) -> list[_Stretch]:
        """The group from one point at which all wait for all, a batch norm or the group's start, to the next.

        A norm's own time is counted with what comes before it, except where it begins the group.
        """
        tiles = range(len(group.shares))
        found = [_Stretch.of(len(tiles))]
        for number in range(group.first, group.stop):
            for tile in tiles:
                found[-1].add(tile, self._node_seconds(tile, number, group.shares[tile].computed[number]))
            is_first = number == group.first and group.sends
            if self.setting.graph.nodes[number].kind == "norm" and not is_first:
                found.append(_Stretch.of(len(tiles)))
        return found

    def tile_part(self, first: int, stop: int, tile: int) -> TilePart:
        """One tile's part in a group."""
        group = group_regions(self.setting.graph, self.owned, first, stop, set())
        bytes_ = self._kept(group, tile), self._held(group, tile), self._inner(group, tile)
        return TilePart(group.shares[tile].computed, *bytes_)

    def _node_seconds(self, tile: int, number: int, box: Box) -> tuple[float, float, float]:
        """Forward, input and weight gradient of a box, its area counted as rows of full width."""
        rank = self.devices[tile]
        key = rank, number, box.area
        if key not in self._seconds:
            self._seconds[key] = node_seconds(self.setting.graph, self.setting.profiles[rank], number, box)
        return self._seconds[key]

    def _exchange_s(self, group: Group, meanwhile: Sequence[float]) -> float:
        """Borders one way, each tile having something to do meanwhile; the slowest tile counts."""
        setting = self.setting
        sent, received = [0.0] * len(group.shares), [0.0] * len(group.shares)
        for send in group.sends:
            numbers = send.box.area * setting.graph.nodes[send.node].channels * setting.batch_size
            sent[send.source] += numbers
            received[send.target] += numbers
        return max(
            # Gloo serves one direction of a pair at a time, as measured.
            setting.wait_s((out + back) * setting.value_bytes, meanwhile[tile])
            + (out + back) * setting.value_bytes / setting.profiles[self.devices[tile]].copy_bps
            for tile, (out, back) in enumerate(zip(sent, received, strict=True))
        )

    def _bytes(self, number: int, box: Box) -> float:
        setting = self.setting
        channels = setting.graph.nodes[number].channels
        return float(box.area * channels * setting.batch_size * setting.value_bytes)

    def _inner(self, group: Group, tile: int) -> float:
        return sum(
            self._bytes(number, box) * self.keeps(number) + self._index_bytes(number, box)
            for number, box in group.shares[tile].computed.items()
        )

    def _kept(self, group: Group, tile: int) -> float:
        # What comes from outside is kept by its own group; where borders were added it is a copy.
        return self._inner(group, tile) + sum(
            self._bytes(number, box)
            for number, box in group.shares[tile].needed.items()
            if number == 0 or box.area > self.owned[number][tile].area
        )

    def _held(self, group: Group, tile: int) -> float:
        return sum(self._bytes(number, box) for number, box in group.shares[tile].needed.items())

    def _index_bytes(self, number: int, box: Box) -> float:
        if self.setting.graph.nodes[number].kind != "maxpool":
            return 0.0
        return self._bytes(number, box) / self.setting.value_bytes * INDEX_BYTES

    def keeps(self, number: int) -> bool:
        """Whether a later operation needs this one's output for its gradient."""
        nodes = self.setting.graph.nodes
        readers = self.setting.graph.readers(number)
        return any(reader >= len(nodes) or nodes[reader].kind in KEEPERS for reader in readers)

    def tail(self, end: int, mode: TailMode) -> TailPrice:
        """What is to be paid if tiling ends before operation `end`."""
        setting, graph = self.setting, self.setting.graph
        n, tiles = setting.num_devices, range(len(self.devices))
        after = range(end, len(graph.names))
        part = 1.0 if mode == "one" or n == 1 else ceil(setting.batch_size / n) / setting.batch_size
        workers = tiles if mode == "data" else tiles[:1]
        tail_s = max(sum(self._tail_seconds(tile, number, part) for number in after) for tile in workers)
        norms = sum(_is_norm(graph, number) for number in after) if mode == "data" else 0
        tail_s += 2 * norms * setting.round_s
        summed = range(1, len(graph.names) if mode == "data" else end)
        every = sum(setting.weights(number) for number in range(1, len(graph.names)))
        slot_bytes = every * setting.value_bytes * setting.optimizer_slots
        update_s = max(
            profile.calls_s + (profile.update_s + slot_bytes / profile.copy_bps) / setting.steps_per_sum
            for profile in setting.profiles
        )
        states = every * setting.value_bytes * (2 + setting.optimizer_slots)
        maps = sum(setting.map_bytes(number) for number in after) * part
        return TailPrice(
            2 * self._handoff_s(end, mode),
            tail_s,
            self._gradients_s(end, summed, part),
            update_s,
            tuple(states + (maps if tile in workers else 0.0) for tile in tiles),
        )

    def _tail_seconds(self, tile: int, number: int, part: float) -> float:
        times = self.setting.profiles[self.devices[tile]].layers[self.setting.graph.names[number]]
        work = self.setting.works[number]
        assert work is not None
        rows = work.rows * part
        return times.forward.at(rows) + times.input_gradient.at(rows) + times.weight_gradient.at(rows)

    def _handoff_s(self, end: int, mode: TailMode) -> float:
        """Every worker is given what it lacks of the maps it reads; the busiest end of a link counts."""
        setting = self.setting
        n = len(self.devices)
        sent, received = [0.0] * n, [0.0] * n
        for number in setting.graph.handoff(end):
            pieces = [self._bytes(number, box) for box in self.owned[number]]
            for tile, piece in enumerate(pieces):
                if mode == "data":
                    sent[tile] += piece * (n - 1) / n
                    received[tile] += (sum(pieces) - piece) / n
                elif tile:
                    sent[tile] += piece
                    received[0] += piece
        busiest = max(max(pair) for pair in zip(sent, received, strict=True))
        return setting.link.seconds(busiest) if n > 1 else 0.0

    def _gradients_s(self, end: int, summed: Iterable[int], part: float) -> float:
        """How long the sums of gradients go on after the backward pass, which they otherwise hide behind.

        A layer's sum starts when its gradient is there and the sum before it is done. The backward pass is
        counted without redundant work here, so that grouping does not change this part. In shared memory
        nothing is hidden: who computes is who adds up.
        """
        setting = self.setting
        if setting.link.through_memory:
            sums = (setting.sum_s(weights) for number in summed if (weights := setting.weights(number)))
            return sum(sums) / setting.steps_per_sum
        wanted = set(summed)
        now, free = 0.0, 0.0
        for number in range(len(setting.graph.names) - 1, 0, -1):
            if number >= end:
                times = setting.profiles[self.devices[0]].layers[setting.graph.names[number]]
                work = setting.works[number]
                assert work is not None
                rows = work.rows * part
                now += times.input_gradient.at(rows) + times.weight_gradient.at(rows)
            else:
                now += max(
                    sum(self._node_seconds(tile, number, box)[1:])
                    for tile, box in enumerate(self.owned[number])
                )
            if number in wanted and setting.weights(number):
                free = max(free, now) + setting.sum_s(setting.weights(number))
        return max(0.0, free - now) / setting.steps_per_sum


def _is_norm(graph: TileGraph, number: int) -> bool:
    return number < len(graph.nodes) and graph.nodes[number].kind == "norm"


def predict(
    setting: Setting, plan: TilePlan, checkpoint: bool = False, grid: Grid | None = None
) -> Prediction:
    """What a plan costs.

    Raises:
        JobError: The plan does not fit the network.
    """
    graph = setting.graph
    check_plan(graph, plan)
    grid = grid or Grid(setting, plan.rows, plan.cols, plan.devices)
    end = graph.index(plan.tail)
    starts = sorted({1, *(graph.index(start) for start in plan.group_starts)})
    groups = [grid.group(first, stop) for first, stop in pairwise([*starts, end])]
    tail = grid.tail(end, plan.tail_mode)
    forward_s = sum(group.forward_s for group in groups)
    parts = {
        "forward": forward_s,
        "backward": sum(group.backward_s for group in groups),
        "recompute": forward_s if checkpoint else 0.0,
        "halos": sum(group.halo_s for group in groups),
        "norms": sum(group.norm_s for group in groups),
        "handoff": tail.handoff_s,
        "tail": tail.tail_s,
        "gradients": tail.gradients_s,
        "update": tail.update_s,
    }
    memory = [0.0] * setting.num_devices
    for tile, rank in enumerate(plan.devices):
        if checkpoint:
            maps = sum(group.held[tile] for group in groups) + max(group.inner[tile] for group in groups)
        else:
            maps = sum(group.kept[tile] for group in groups)
        memory[rank] = tail.memory_bytes[tile] + maps
    predicted = any(profile.predicted for profile in setting.profiles)
    return Prediction(plan, checkpoint, parts, tuple(memory), predicted)
