"""A game, and one sitting at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Frame", "Game", "Play", "Step"]

Frame = NDArray[np.uint8]
"""What the screen shows, (channels, height, width); the game does not write into it again."""

Step = tuple[Frame, float, bool, bool]
"""The next frame, the reward, whether the episode ended here, whether it was merely cut."""


class Play(Protocol):
    """One player's sitting: game after game.

    Attributes:
        over: Whether the game is over and has to be reset. Where lost lives end episodes, an episode can
            end without it: the frame that came with the end is then the first of the next one.
    """

    over: bool

    def reset(self, seed: int | None = None) -> Frame:
        """Begins a game; with a seed, all that follows depends on it and on the actions alone."""
        ...

    def step(self, action: int) -> Step:
        """Takes an action, by its place among the game's."""
        ...


@dataclass(frozen=True)
class Game:
    """A game that a device can learn.

    Attributes:
        name: As a job names it, ``atari/breakout``.
        frame: Shape of one frame, (channels, height, width).
        stack: How many frames, the newest last, a network sees at once.
        actions: What a player can do.
        opened: Opens a sitting; takes whether lives count (a lost one ends an episode) or games alone.
        episode_limit: Steps after which a sitting cuts a game.
    """

    name: str
    frame: tuple[int, int, int]
    stack: int
    actions: tuple[str, ...]
    opened: Callable[[bool], Play]
    episode_limit: int = 27_000

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of what a network is given."""
        channels, height, width = self.frame
        return channels * self.stack, height, width

    @property
    def classes(self) -> tuple[str, ...]:
        """The actions: what a network tells apart, as it does a data set's classes."""
        return self.actions

    def start(self, *, whole: bool = False) -> Play:
        """Opens a sitting, in which only whole games are episodes if the caller or the job says so."""
        return self.opened(not whole)
