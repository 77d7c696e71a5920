"""What the experimenter looks at: how good networks are, and the network that the devices made together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace

import torch

from manyhands.blocks import Weights, absorb, extract
from manyhands.exchange.merge import MergeSection, merge
from manyhands.hand import Outcome, Work
from manyhands.learn.supervised import Architecture
from manyhands.lessons import Lessons
from manyhands.replica import Blocks
from manyhands.sizing import Library
from manyhands.splits import Seat, Split

__all__ = ["Looker", "averaged_network", "merged_network"]


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
    split: Split, library: Library, networks: Mapping[str, Weights], num_examples: Mapping[str, int]
) -> Weights | None:
    """The network that devices without a coordinator made together: the mean of each block, by their data.

    None where the shared blocks make no network, or nobody is left who holds one of them.
    """
    if split.merged is None:
        return None
    held: dict[str, list[tuple[float, Mapping[str, torch.Tensor]]]] = {}
    for name, weights in networks.items():
        for block, tensors in extract(weights, split.seats[name].layout).items():
            held.setdefault(block, []).append((float(num_examples[name]), tensors))
    if not split.merged.layout.keys() <= held.keys():
        return None
    blocks = {block: Weights(merge(MergeSection(), held[block])) for block in split.merged.layout}
    return merged_network(split.merged, library, blocks)
