"""One forward and backward pass of one tile: what is held of which map, and what is still to be done."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor, nn

from manyhands.tiles.geometry import Box
from manyhands.tiles.norm import Statistics
from manyhands.tiles.peers import Peers
from manyhands.tiles.pool import Pool
from manyhands.tiles.program import Program
from manyhands.tiles.reduce import Reducer
from manyhands.tiles.values import Gradient, Part, Value

__all__ = ["Step"]


class Step:
    """The state of a pass.

    Attributes:
        number: Counts the passes in training, for dropout.
        seed: For dropout.
        like: The input, for the type and the place of what is made.
        values: For each group, the maps it reads and makes; the batch's own numbers live here.
        saved: Node -> what its way back needs beside maps.
        statistics: Batch norm -> what it was computed with.
        gradients: Node -> its gradient so far.
        taken: For each group, memory of the pool that it holds.
        wanted: Node -> whether anybody wants its gradient.
    """

    def __init__(
        self,
        program: Program,
        peers: Peers,
        pool: Pool,
        reducer: Reducer,
        *,
        number: int,
        seed: int,
        like: Tensor,
    ) -> None:
        self.program, self.peers, self.pool, self.reducer = program, peers, pool, reducer
        self.number, self.seed, self.like, self.batch_size = number, seed, like, like.shape[0]
        count = len(program.regions.groups)
        self.values: list[dict[int, Value]] = [{} for _ in range(count)]
        self.taken: list[list[Tensor]] = [[] for _ in range(count)]
        self.saved: dict[int, Any] = {}
        self.statistics: dict[int, Statistics] = {}
        self.exports: dict[int, Value] = {}
        self.gradients: dict[int, Gradient] = {}
        self.wanted: dict[int, bool] = {}
        self.group = 0
        self.inside: dict[int, Gradient] = {}
        self.has_way_back = False
        self._later: list[Callable[[], None]] = []
        self._done: list[int] = []

    def module(self, number: int) -> nn.Module:
        """The network's own module that a node is."""
        return self.program.modules[number]

    def read(self, number: int, box: Box) -> Tensor:
        """The tensor of a box of a map that the current group holds."""
        return self.values[self.group][number].whole(box, self.pool, self.taken[self.group])

    def keep(self, number: int, part: Part) -> None:
        """Holds a map that the current group has made."""
        self.values[self.group][number] = Value([part])

    def framed(self, number: int, like: Tensor) -> Part:
        """Memory for a map, as its reader wants it; a frame has its zeros, the rest has anything."""
        box, extent = self.program.box[number], self.program.extent[number]
        channels = self.program.graph.nodes[number].channels
        part = Part(extent, self.take((like.shape[0], channels, extent.rows.size, extent.cols.size), like))
        if extent != box:
            rows, cols = box.within(extent)
            for axis, inner, size in ((2, rows, extent.rows.size), (3, cols, extent.cols.size)):
                if inner.start:
                    part.data.narrow(axis, 0, inner.start).zero_()
                if inner.stop < size:
                    part.data.narrow(axis, inner.stop, size - inner.stop).zero_()
        return part

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that the current group holds until its way back is done."""
        return self.pool.take(shape, like, self.taken[self.group])

    def shape(self, number: int, box: Box) -> tuple[int, ...]:
        """The shape of a box of a map."""
        return (self.batch_size, *self.program.graph.nodes[number].shape[:-2], box.rows.size, box.cols.size)

    def size(self, number: int, box: Box) -> int:
        """How many numbers a box of a map holds."""
        return prod(self.shape(number, box))

    def gradient(self, number: int) -> Gradient:
        """The gradient of what this tile computed of a map, all of it."""
        found = self.gradients.pop(number, None)
        box = self.program.box[number]
        if found is None:
            return Gradient(Part(box, self.like.new_zeros(self.shape(number, box))), ours=True)
        if found.part.box == box:
            return found
        return Gradient(Part(box, found.part.view(box)), found.ours, found.pooled)

    def contribute(self, number: int, part: Part, *, ours: bool, pooled: Tensor | None = None) -> None:
        """Adds to the gradient of a map; the part may have a frame, which is ignored."""
        self._add(self.gradients, number, self.program.box[number], Gradient(part, ours, pooled))

    def hand_back(self, number: int, part: Part, *, ours: bool, pooled: Tensor | None = None) -> None:
        """Adds to the gradient of a map that the current group reads, its own or one from before it."""
        if not self.wanted[number]:
            return
        group = self.program.regions.groups[self.group]
        if number >= group.first:
            self.contribute(number, part, ours=ours, pooled=pooled)
        else:
            needed = group.shares[self.program.tile].needed[number]
            self._add(self.inside, number, needed, Gradient(part, ours, pooled))

    def inside_view(self, number: int, box: Box) -> Tensor:
        """The gradient, as far as this group has made it, of a box of a map that it was given."""
        if number not in self.inside:
            return self.like.new_zeros(self.shape(number, box))
        return self.inside[number].part.view(box)

    def _add(self, held: dict[int, Gradient], number: int, box: Box, new: Gradient) -> None:
        if number not in held and box.inside(new.part.box):
            held[number] = new
            return
        data = new.part.data
        if number not in held or not held[number].ours:
            made = Part(box, data.new_zeros((*data.shape[:-2], box.rows.size, box.cols.size)))
            if number in held:
                made.data.copy_(held[number].part.view(box))
            held[number] = Gradient(made, ours=True)
        shared = new.part.box.and_(box)
        if shared.area:
            held[number].part.view(shared).add_(new.part.view(shared))

    def later(self, work: Callable[[], None]) -> None:
        """Puts off what nobody waits for (gradients of weights) until there is time to kill."""
        self._later.append(work)

    def catch_up(self) -> None:
        """Does what was put off."""
        works, self._later = self._later, []
        for work in works:
            work()
        done, self._done = self._done, []
        for group in done:
            self.release(group)

    def at(self, number: int | None) -> None:
        """Called before each node, and with None between groups; who measures listens (`trial.py`)."""

    def done(self, group: int) -> None:
        """Marks a group whose memory is free once all that was put off is done."""
        self._done.append(group)

    def want(self, *, images: bool) -> None:
        """Finds out whose gradients are wanted: of all that comes after something that is trained."""
        nodes = self.program.graph.nodes
        self.has_way_back = True
        self.wanted = {0: images}
        for number in range(1, self.program.regions.end):
            node = nodes[number]
            own = any(p.requires_grad for p in self.program.parameters.get(number, ()))
            self.wanted[number] = own or any(self.wanted[source] for source in node.inputs)

    def forget_inner(self, group: int, *, keep_imports: bool) -> None:
        """Drops what a group has made, but for what leaves it and, if asked, what it was given."""
        found = self.program.regions.groups[group]
        self.release(group, but=set(found.exports))
        imports = {n: v for n, v in self.values[group].items() if n in found.imports}
        self.values[group] = imports if keep_imports else {}
        for number in range(found.first, found.stop):
            self.saved.pop(number, None)

    def release(self, group: int, *, but: set[int] | None = None) -> None:
        """Gives the memory of a group back to the pool, but for some maps'."""
        kept = {
            part.data.untyped_storage().data_ptr()
            for number in but or ()
            for part in self.values[group].get(number, Value([])).parts
        }
        for tensor in self.taken[group]:
            if tensor.untyped_storage().data_ptr() not in kept:
                self.pool.give(tensor)
        self.taken[group] = [t for t in self.taken[group] if t.untyped_storage().data_ptr() in kept]
