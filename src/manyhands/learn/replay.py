"""What a learner remembers of its games, each frame once.

Memory is in pieces, one a local phase, that are never changed once the phase is over; the phase under way
fills another. A piece holds, for each frame in the order in which they were seen:

- ``frames`` [n, C, H, W], bytes;
- ``actions`` [n], what was done at the sight of it;
- ``rewards`` [n], what that brought;
- ``ends`` [n]: 0 if the next frame is what it led to; 1 if it ended the episode; 2 if the episode, or the
  phase, was cut at this frame, at which nothing was done any more.

The next frame after an end is the first of another episode. Where an episode ended, what could be seen then
is not kept: nothing follows from it. So a transition takes little more than the bytes of one frame.

Letters in shapes: B transitions of a batch, S frames of a stack, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from manyhands.blocks import Weights

__all__ = ["Batch", "Replay"]

GOES_ON, ENDED, CUT = 0, 1, 2

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Batch:
    """Some transitions; valid until the next batch is drawn.

    Attributes:
        frames: [B, (S+1)·C, H, W], bytes: the last frames before the action, the newest last, and the one
            after it. Before an episode's first frame stands that frame, repeated; after its end, anything.
        actions: [B].
        rewards: [B].
        goes_on: [B], 0 where the episode ended, else 1.
        channels: C.
    """

    frames: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    goes_on: torch.Tensor
    channels: int

    @property
    def states(self) -> torch.Tensor:
        """What was seen before the action, [B, S·C, H, W]."""
        return self.frames[:, : -self.channels]

    @property
    def next_states(self) -> torch.Tensor:
        """What was seen after it."""
        return self.frames[:, self.channels :]


class Replay:
    """Pieces of memory and the one being filled, to draw from.

    Args:
        pieces: The old ones, the oldest first.
        frame: Shape of a frame.
        stack: Frames that make up a state.
        room: How many frames the new piece can take.
        window: Batches are drawn from so many transitions, the latest ones.
    """

    def __init__(
        self, pieces: Sequence[Weights], frame: tuple[int, int, int], stack: int, *, room: int, window: int
    ) -> None:
        self._stack, self._window, self._frame = stack, window, frame
        self._new = np.empty((room, *frame), np.uint8)
        self._frames = [*(piece["frames"].numpy() for piece in pieces), self._new]
        sizes = [len(frames) for frames in self._frames]
        self._starts = np.cumsum([0, *sizes[:-1]])
        # What is small is in one row for all pieces, the new one last, so that a batch is found at once.
        self._actions = _in_a_row(pieces, "actions", np.zeros(room, np.uint8))
        self._rewards = _in_a_row(pieces, "rewards", np.zeros(room, np.float32))
        self._ends = _in_a_row(pieces, "ends", np.zeros(room, np.uint8))
        self._begin, self._end = int(self._starts[-1]), int(self._starts[-1])
        self._first = np.empty(sum(sizes), np.int64)
        self._first[: self._end] = _first_frames(self._ends[: self._end])
        self._transitions = np.empty(sum(sizes), np.int64)
        old = np.flatnonzero(self._ends[: self._end] != CUT)
        self._count = len(old)
        self._transitions[: self._count] = old
        self._into: NDArray[np.uint8] = np.empty(0, np.uint8)

    @property
    def num_transitions(self) -> int:
        """How many can be drawn."""
        return min(self._count, self._window)

    def begin(self, frame: NDArray[np.uint8]) -> None:
        """The first frame of an episode."""
        self._first[self._end] = self._end
        self._append(frame)

    def add(self, action: int, reward: float, frame: NDArray[np.uint8], *, ended: bool) -> None:
        """What was done at the last frame, and what it led to; if that was the end, `begin` must follow."""
        now = self._end - 1
        self._actions[now], self._rewards[now] = action, reward
        self._ends[now] = ENDED if ended else GOES_ON
        self._transitions[self._count] = now
        self._count += 1
        if not ended:
            self._first[self._end] = self._first[now]
            self._append(frame)

    def cut(self) -> None:
        """The episode is not continued, although it could be."""
        self._actions[self._end - 1], self._rewards[self._end - 1] = 0, 0
        self._ends[self._end - 1] = CUT

    def _append(self, frame: NDArray[np.uint8]) -> None:
        self._new[self._end - self._begin] = frame
        self._end += 1

    def state(self) -> NDArray[np.uint8]:
        """What a player sees now, [S, C, H, W]; valid until the next frame."""
        last = self._end - 1 - self._begin
        first, start = int(self._first[self._end - 1]) - self._begin, last - self._stack + 1
        if start >= first:
            return self._new[start : last + 1]
        return self._new[np.maximum(np.arange(start, last + 1), first)]

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """Some transitions of the window, each as likely as the others."""
        picked = rng.integers(self._count - self.num_transitions, self._count, size=count)
        return self.batch(picked)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """The transitions of these numbers, of which 0 is the oldest."""
        at = self._transitions[numbers]
        piece = np.searchsorted(self._starts, at, side="right") - 1
        start = self._starts[piece]
        frames = self._gathered(piece.tolist(), (at - start).tolist(), (self._first[at] - start).tolist())
        return Batch(
            frames,
            torch.from_numpy(self._actions[at].astype(np.int64)),
            torch.from_numpy(self._rewards[at]),
            torch.from_numpy((self._ends[at] != ENDED).astype(np.float32)),
            self._frame[0],
        )

    def _gathered(self, pieces: list[int], at: list[int], first: list[int]) -> torch.Tensor:
        """The frames of both states of each transition, which share all but one: [B, (S+1)·C, H, W]."""
        stack, (channels, height, width) = self._stack, self._frame
        if len(self._into) != len(at):
            self._into = np.empty((len(at), stack + 1, *self._frame), np.uint8)
        for into, piece, now, earliest in zip(self._into, pieces, at, first, strict=True):
            frames, start = self._frames[piece], now - stack + 1
            if start >= earliest:
                into[...] = frames[start : now + 2]
            else:
                np.take(frames, np.maximum(np.arange(start, now + 2), earliest), axis=0, out=into)
        return torch.from_numpy(self._into.reshape(len(at), (stack + 1) * channels, height, width))

    def piece(self) -> Weights:
        """The new piece, after which nothing may be added."""
        held = slice(self._begin, self._end)
        return Weights(
            {
                "frames": torch.from_numpy(self._new[: self._end - self._begin]),
                "actions": torch.from_numpy(self._actions[held].copy()),
                "rewards": torch.from_numpy(self._rewards[held].copy()),
                "ends": torch.from_numpy(self._ends[held].copy()),
            },
            lasting=True,
        )


def _in_a_row(pieces: Sequence[Weights], name: str, new: NDArray[Number]) -> NDArray[Number]:
    return np.concatenate([*(piece[name].numpy() for piece in pieces), new])


def _first_frames(ends: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For each frame the place of the first one of its episode."""
    places = np.arange(len(ends))
    begins = np.zeros(len(ends), np.int64)
    begins[1:] = np.where(ends[:-1] != GOES_ON, places[1:], 0)
    return np.maximum.accumulate(begins)
