"""MinAtar (Young and Tian 2019): five Atari games on 10×10 squares, for which a laptop is enough.

What a square holds is one plane a thing, so a frame is the whole state and nothing is stacked. The games are
taken out of their package one by one: importing the package itself loads pandas and a plotting library, which
takes seconds. Difficulty does not rise with time.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.games.game import Frame, Game, Play, Step
from manyhands.games.section import GameSection

__all__ = ["load", "names"]

ACTIONS = {"n": "wait", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}


@cache
def _folder() -> Path:
    spec = find_spec("minatar")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "environments"


def names() -> tuple[str, ...]:
    """The games there are."""
    return tuple(sorted(file.stem for file in _folder().glob("[a-z]*.py")))


def load(name: str, section: GameSection) -> Game:
    """One of the games."""
    game = _environment(name)
    minimal = tuple(int(action) for action in game.minimal_action_set())
    height, width, channels = game.state_shape()

    def open_play(_lives: bool) -> Play:
        return _Play(_environment(name), minimal, section)

    actions = tuple(ACTIONS[game.action_map[action]] for action in minimal)
    return Game(f"minatar/{name}", (channels, height, width), 1, actions, open_play, section.episode_limit)


def _environment(name: str) -> Any:
    return _module(name).Env(ramping=False)


@cache
def _module(name: str) -> Any:
    spec = spec_from_file_location(f"_manyhands_minatar_{name}", _folder() / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Play:
    """A sitting at a MinAtar game; there are no lives."""

    def __init__(self, environment: Any, actions: tuple[int, ...], section: GameSection) -> None:
        self._environment, self._actions = environment, actions
        self._sticky, self._limit = section.sticky, section.episode_limit
        self._last, self._steps = 0, 0
        self.over = True

    def reset(self, seed: int | None = None) -> Frame:
        if seed is not None:
            self._environment.random = np.random.RandomState(seed % 2**32)
        self._environment.reset()
        self._last, self._steps, self.over = 0, 0, False
        return self._frame()

    def step(self, action: int) -> Step:
        chosen = self._actions[action]
        if self._sticky and self._environment.random.rand() < self._sticky:
            chosen = self._last
        self._last = chosen
        reward, terminated = self._environment.act(chosen)
        self._steps += 1
        truncated = not terminated and self._steps >= self._limit
        self.over = bool(terminated or truncated)
        return self._frame(), float(reward), bool(terminated), truncated

    def _frame(self) -> Frame:
        squares: NDArray[np.bool_] = self._environment.state()
        return np.multiply(squares.transpose(2, 0, 1), np.uint8(255), order="C")
