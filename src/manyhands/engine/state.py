"""What a hand has saved, on disk: a device that is killed at any moment goes on from here.

A state is what programs save: a dataclass of `KINDS`, in which weights, mappings, tuples and plain values
may lie. Its tensors go into a checkpoint (`engine.checkpoint`), its shape as JSON into the checkpoint's note.
What is lasting, such as a piece of a replay memory, is written once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from manyhands.blocks import Weights
from manyhands.engine.checkpoint import read_checkpoint, write_checkpoint
from manyhands.errors import RunError
from manyhands.exchange.coordination import Progress
from manyhands.exchange.neighbours import Standing
from manyhands.exchange.push import PushStanding
from manyhands.exchange.sum_weights import Book, Flight
from manyhands.replica import Replica

__all__ = ["KINDS", "StateFolder"]

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Replica, Progress, Standing, PushStanding, Book, Flight)
}
"""What programs may save, by name."""


class StateFolder:
    """The newest state of one hand.

    Args:
        folder: Where it lies; nothing else does.
        job_hash: Which job it is of.
    """

    def __init__(self, folder: Path, job_hash: str) -> None:
        self._folder, self._job_hash = folder, job_hash
        self._number = 0
        self._num_lasting = 0
        self._lasting: WeakKeyDictionary[Weights, str] = WeakKeyDictionary()

    def write(self, state: Any) -> None:
        """Puts a state in the place of the one before; returns when it is on disk."""
        held: dict[str, Weights] = {}
        note = json.dumps(self._note(state, "state", held), allow_nan=False)
        self._number += 1
        write_checkpoint(self._folder, self._job_hash, self._number, held, note)

    def read(self) -> Any:
        """The newest state, None if there is none.

        Raises:
            RunError: It is damaged, or of another job.
        """
        stored = read_checkpoint(self._folder) if self._folder.is_dir() else None
        if stored is None:
            return None
        if stored.job_hash != self._job_hash:
            raise RunError(f"{self._folder}: holds the state of another job; take another folder")
        self._number = stored.num_events
        for name, weights in stored.holdings.items():
            if weights.lasting:
                self._lasting[weights] = name
                self._num_lasting = max(self._num_lasting, int(name.removeprefix("lasting-")))
        try:
            return _restored(json.loads(stored.note), stored.holdings)
        except (KeyError, ValueError, TypeError) as error:
            raise RunError(f"{self._folder}: is not a state ({error}); delete it to start anew") from error

    def _note(self, value: Any, name: str, held: dict[str, Weights]) -> Any:
        """A value as JSON; the weights in it go into `held`."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Weights):
            own_name = self._name_lasting(value) if value.lasting else name
            held[own_name] = value
            return {"weights": own_name}
        if type(value).__name__ in KINDS:
            inside = {f.name: getattr(value, f.name) for f in fields(value)}
            return {
                "kind": type(value).__name__,
                "of": {key: self._note(part, f"{name}.{key}", held) for key, part in inside.items()},
            }
        if isinstance(value, Mapping):
            # As pairs: JSON would make words of keys that are numbers.
            return {"map": [[key, self._note(part, f"{name}.{key}", held)] for key, part in value.items()]}
        if isinstance(value, frozenset):
            return {"set": sorted(value)}
        if isinstance(value, tuple):
            return {"tuple": [self._note(part, f"{name}.{i}", held) for i, part in enumerate(value)]}
        raise TypeError(f"a hand saved a {type(value).__name__}, which cannot be kept on disk")

    def _name_lasting(self, weights: Weights) -> str:
        if weights not in self._lasting:
            self._num_lasting += 1
            self._lasting[weights] = f"lasting-{self._num_lasting}"
        return self._lasting[weights]


def _restored(note: Any, holdings: Mapping[str, Weights]) -> Any:
    if not isinstance(note, dict):
        return note
    if "weights" in note:
        return holdings[note["weights"]]
    if "map" in note:
        return {key: _restored(part, holdings) for key, part in note["map"]}
    if "set" in note:
        return frozenset(note["set"])
    if "tuple" in note:
        return tuple(_restored(part, holdings) for part in note["tuple"])
    inside = {key: _restored(part, holdings) for key, part in note["of"].items()}
    return KINDS[note["kind"]](**inside)
