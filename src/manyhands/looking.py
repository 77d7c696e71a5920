"""What the experimenter looks at: how good networks are, and the network that the devices made together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace

import torch

from manyhands.blocks import Weights, absorb
from manyhands.exchange.member import looks
from manyhands.exchange.merge import MergeSection, Tensors, merge
from manyhands.hand import Outcome, Work
from manyhands.job import Job
from manyhands.learn.supervised import Architecture
from manyhands.lessons import Lessons
from manyhands.replica import Blocks
from manyhands.sizing import Library
from manyhands.splits import Seat, Split

__all__ = ["Looker", "Together", "averaged_network", "merged_network"]

BEHIND = 3
"""Rounds that a device lags behind when it is no longer waited for."""


class Looker:
    """Measures networks; those that are the same tensors are measured once."""

    def __init__(self, lessons: Lessons, most: int = 4) -> None:
        self._lessons = lessons
        self._most = most  # of networks that are remembered
        self._lock = threading.Lock()
        # Keeping the tensors keeps their identity from being given to others.
        self._known: dict[tuple[int, ...], tuple[Future[Outcome], tuple[torch.Tensor, ...]]] = {}

    def work(self, architecture: Architecture, weights: Callable[[], Weights], torch_device: str) -> Work:
        """The work of looking at the weights that a function gives."""
        return Work("evaluate", lambda: self._look(architecture, weights(), torch_device))

    def _look(self, architecture: Architecture, weights: Weights, torch_device: str) -> Outcome:
        tensors = tuple(weights.values())
        key = tuple(map(id, tensors))
        with self._lock:
            known = self._known.get(key)
            if known is None:
                future: Future[Outcome] = Future()
                self._known[key] = (future, tensors)
                while len(self._known) > self._most:
                    del self._known[next(iter(self._known))]
        if known is not None:
            return replace(known[0].result())
        try:
            future.set_result(Outcome(self._lessons.look(architecture, weights, torch_device)))
        except BaseException as error:
            future.set_exception(error)
            raise
        return future.result()


def merged_network(merged: Seat, library: Library, blocks: Blocks) -> Weights:
    """The network that merged blocks make by themselves."""
    own = {name: blocks[name] for name in merged.layout}
    return Weights(absorb(library(merged.size).first, merged.layout, own))


def averaged_network(
    split: Split, library: Library, held: Mapping[str, Mapping[str, Tensors]], num_examples: Mapping[str, int]
) -> tuple[Weights | None, list[str]]:
    """The network that devices without a coordinator made together: the mean of each block, by their data.

    Args:
        split: Who holds what.
        library: The job's networks.
        held: Device -> block -> its tensors there.
        num_examples: Device -> how much data it trains on.

    Returns:
        The network, and the blocks that nobody holds any more. Their first version takes their place if it
        was prepared; otherwise, or where shared blocks make no network, there is none.
    """
    if split.merged is None:
        return None, []
    layout = split.merged.layout
    if not held:
        return None, list(layout)
    said: dict[str, list[tuple[float, Tensors]]] = {}
    for name, blocks in held.items():
        for block in blocks.keys() & layout.keys():
            said.setdefault(block, []).append((float(num_examples[name]), blocks[block]))
    lost = [block for block in layout if block not in said]
    if lost and not split.prepared:
        return None, lost
    merged = {block: Weights(merge(MergeSection(), said[block])) for block in layout if block in said}
    first = library(split.merged.size).first
    return Weights(absorb(first, layout, merged)), lost


class Together:
    """What devices without a coordinator have made together while they train.

    Told each device's blocks after every round, it measures their mean whenever the last of them has come to
    a further round. Who is too far behind, or gone, is not waited for, and counts only for blocks that nobody
    else holds.
    """

    def __init__(
        self,
        job: Job,
        split: Split,
        library: Library,
        looker: Looker,
        num_examples: Mapping[str, int],
        torch_device: str,
    ) -> None:
        self._split, self._library, self._looker = split, library, looker
        self._num_examples, self._torch_device = num_examples, torch_device
        self._every, self._last = job.run.evaluate_every, job.exchange.rounds
        self._measured = 0
        self._rounds = dict.fromkeys(split.seats, 0)
        self._blocks: dict[str, Blocks] = {}

    def after(self, device: str, number: int, blocks: Blocks) -> tuple[int, Work] | None:
        """Takes note of a device's blocks after a round; if all have come further, to where, and a look."""
        merged = self._split.merged
        self._rounds[device], self._blocks[device] = number, blocks
        newest = max(self._rounds.values())
        together = {name for name, reached in self._rounds.items() if reached > newest - BEHIND}
        everybody = min(self._rounds[name] for name in together)
        if merged is None or everybody <= self._measured:
            return None
        self._measured = everybody
        held = self._held(together)
        known = {block for blocks in held.values() for block in blocks}
        if not looks(everybody, self._every, self._last) or not (
            self._split.prepared or merged.layout.keys() <= known
        ):
            return None

        def weights() -> Weights:
            network, _ = averaged_network(self._split, self._library, held, self._num_examples)
            assert network is not None
            return network

        architecture = self._library(merged.size).architecture
        return everybody, self._looker.work(architecture, weights, self._torch_device)

    def _held(self, together: Collection[str]) -> dict[str, Blocks]:
        """The blocks of those who are together; of others, what these do not hold, the newest first."""
        held = {name: self._blocks[name] for name in self._rounds if name in together}
        known = {block for blocks in held.values() for block in blocks}
        for name in sorted(self._blocks.keys() - held.keys(), key=lambda n: (-self._rounds[n], n)):
            held[name] = {block: w for block, w in self._blocks[name].items() if block not in known}
            known |= held[name].keys()
        return held
