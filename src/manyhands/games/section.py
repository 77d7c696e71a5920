"""The ``[game]`` table of a job file."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from manyhands.settings import Section

__all__ = ["GameSection"]


class GameSection(Section):
    """What is played.

    Attributes:
        name: Suite and game, ``minatar/breakout`` or ``atari/breakout``.
        sticky: How likely the game is to repeat the last action in place of the one it is given.
        episode_limit: Steps after which a game is cut; of Atari's, 27,000 are half an hour.
        life_ends: Whether a lost life ends an episode in training; tests always play whole games.
    """

    name: str | None = None
    sticky: float = Field(default=0.0, ge=0, lt=1)
    episode_limit: PositiveInt = 27_000
    life_ends: bool = True
