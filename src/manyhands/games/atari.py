"""Atari 2600 games through the Arcade Learning Environment, prepared as in Mnih et al. (2015).

A step repeats its action for four frames of the console; what is seen is the maximum of the last two, because
some games draw things only in every second one, in grey and averaged down to 84×84. A game begins with up to
30 frames of doing nothing, so that no two are alike. Where the second button is fire, it is pressed when a
life begins: in some games nothing happens before, and a player who never learned it would wait forever.

The averaging is exact (a square of the result is the mean of the area it covers) and needs no image library:
210 rows become 84 in 42 equal groups and 160 columns in 4, so that it is two small products.
"""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.games.game import Frame, Game, Play, Step
from manyhands.games.section import GameSection

__all__ = ["load", "names"]

SIDE = 84
REPEAT = 4
MOST_NO_OPS = 30


def names() -> tuple[str, ...]:
    """The games there are."""
    from ale_py import roms  # noqa: PLC0415 - an extra, and slow to import

    return tuple(sorted(roms.get_all_rom_ids()))


@cache
def load(name: str, section: GameSection) -> Game:
    """One of the games."""
    console = _console(name, section.sticky, seed=0)
    actions = tuple(action.name.lower() for action in console.getMinimalActionSet())

    def open_play(lives: bool) -> Play:
        return _Play(name, section, lives and section.life_ends)

    return Game(f"atari/{name}", (1, SIDE, SIDE), 4, actions, open_play, section.episode_limit)


def _console(name: str, sticky: float, seed: int) -> Any:
    """A console with the game in it; this takes a fifth of a second."""
    from ale_py import ALEInterface, LoggerMode, roms  # noqa: PLC0415 - an extra, and slow to import

    ALEInterface.setLoggerMode(LoggerMode.Error)
    console = ALEInterface()
    console.setInt("random_seed", seed % 2**31)
    console.setFloat("repeat_action_probability", sticky)
    path = roms.get_rom_path(name)
    assert path is not None
    console.loadROM(path)
    return console


class _Play:
    """A sitting at an Atari game."""

    def __init__(self, name: str, section: GameSection, life_ends: bool) -> None:
        self._name, self._section, self._life_ends = name, section, life_ends
        self._console: Any = None
        self._draws = np.random.default_rng(0)
        self._steps, self._lives = 0, 0
        self.over = True

    def reset(self, seed: int | None = None) -> Frame:
        if seed is not None or self._console is None:
            # Not the same draws as those of a player who has the same seed.
            self._draws = np.random.default_rng([seed or 0, MOST_NO_OPS])
            self._insert(_console(self._name, self._section.sticky, seed or 0))
        self._console.reset_game()
        self._before.fill(0)
        self._steps, self.over = 0, False
        for _ in range(int(self._draws.integers(MOST_NO_OPS + 1))):
            self._console.act(0)
        if self._console.game_over():  # doing nothing can be deadly
            self._console.reset_game()
        if self._fire is not None:
            self._act(self._fire)
        self._lives = self._console.lives()
        return self._seen()

    def step(self, action: int) -> Step:
        reward = self._act(self._actions[action])
        self._steps += 1
        ended, lives = self._console.game_over(), self._console.lives()
        lost, self._lives = lives < self._lives and not ended, lives
        if lost and self._fire is not None:
            reward += self._act(self._fire)
            ended = self._console.game_over()
        terminated = ended or (lost and self._life_ends)
        cut = not ended and self._steps >= self._section.episode_limit
        self.over = ended or cut
        return self._seen(), reward, terminated, cut and not terminated

    def _insert(self, console: Any) -> None:
        self._console = console
        self._actions = console.getMinimalActionSet()
        fires = len(self._actions) > 1 and self._actions[1].name == "FIRE"
        self._fire = self._actions[1] if fires else None
        height, width = console.getScreenDims()
        self._screen = np.empty((height, width), np.uint8)
        self._before = np.empty_like(self._screen)
        self._shrink = _Shrink(height, width)

    def _act(self, action: Any) -> float:
        """Holds a button for a step; what the screen showed before the last frame is kept."""
        reward = 0
        for count in range(REPEAT):
            if count == REPEAT - 1:
                self._console.getScreenGrayscale(self._before)
            reward += self._console.act(action)
            if self._console.game_over():
                break
        return float(reward)

    def _seen(self) -> Frame:
        self._console.getScreenGrayscale(self._screen)
        np.maximum(self._screen, self._before, out=self._screen)
        return self._shrink(self._screen)


class _Shrink:
    """Averages a screen down to 84×84."""

    def __init__(self, height: int, width: int) -> None:
        self._rows, self._columns = _means(height), _means(width).T.copy()
        self._grouped = (SIDE // len(self._rows), self._rows.shape[1], width)

    def __call__(self, screen: NDArray[np.uint8]) -> Frame:
        rows = self._rows @ screen.reshape(self._grouped).astype(np.float32)
        both = rows.reshape(-1, len(self._columns)) @ self._columns
        seen: Frame = np.rint(both, out=both).astype(np.uint8)
        return seen.reshape(1, SIDE, SIDE)


def _means(size: int) -> NDArray[np.float32]:
    """What each old row adds to each new one, within the smallest group of rows that repeats."""
    groups = gcd(size, SIDE)
    old, new = size // groups, SIDE // groups
    edges = np.arange(new + 1) * old / new
    above = np.maximum(edges[:-1, None], np.arange(old))
    below = np.minimum(edges[1:, None], np.arange(1, old + 1))
    weights: NDArray[np.float32] = (np.maximum(below - above, 0) * new / old).astype(np.float32)
    return weights
