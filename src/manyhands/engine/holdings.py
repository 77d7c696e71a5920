"""The tensors that are alive in a simulation: into a checkpoint now and then, and back out of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from manyhands.blocks import Weights
from manyhands.engine.checkpoint import Checkpoint, write_checkpoint
from manyhands.engine.clock import Interval
from manyhands.engine.journal import Journal

__all__ = ["Holdings", "Keeping"]


@dataclass(frozen=True)
class Keeping:
    """How a simulation keeps checkpoints.

    Attributes:
        folder: Where they go.
        job_hash: Which job they are of.
        every_s: Real seconds between them.
        before: Makes sure that the events written so far are on disk.
        at: The event at which they are taken: one after which few tensors are alive, so that they are small.
            After a merge the updates are gone; in the middle of a coordinator's round they are on their way.
    """

    folder: Path
    job_hash: str
    every_s: float
    before: Callable[[], None]
    at: str = "merged"


class Holdings:
    """What hands hold, by where it came from; what nobody holds any more is forgotten.

    Args:
        keeping: How to keep checkpoints; None for none.
        checkpoint: The tensors to go on with.
    """

    def __init__(self, keeping: Keeping | None, checkpoint: Checkpoint | None) -> None:
        self._keeping, self._checkpoint = keeping, checkpoint
        self._due = Interval(keeping.every_s if keeping else 0.0)
        self._held: WeakValueDictionary[str, Weights] = WeakValueDictionary()

    def add(self, key: str, weights: Weights) -> None:
        """Takes note of tensors; the same ones have the same key when the run is repeated."""
        self._held[key] = weights

    def keep(self, event: str, journal: Journal) -> None:
        """Writes a checkpoint of this moment, if the event is one to do so at and it is time."""
        keeping = self._keeping
        if keeping is None or event != keeping.at or not self._due.due():
            return
        journal.flush(wait=True)
        keeping.before()
        held = {key: weights for key, weights in self._held.items() if not weights.is_absent}
        write_checkpoint(keeping.folder, keeping.job_hash, journal.num_events, held)

    def bring_back(self) -> None:
        """Fills what the run has come to hold while it was repeated without arithmetic."""
        kept = self._checkpoint.holdings if self._checkpoint else {}
        for key, weights in self._held.items():
            if key in kept:
                weights.fill(kept[key])
        self._checkpoint = None
