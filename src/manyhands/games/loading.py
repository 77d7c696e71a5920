"""From the name of a game to the game."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from manyhands.errors import JobError, did_you_mean
from manyhands.games import atari, minatar
from manyhands.games.game import Game
from manyhands.games.section import GameSection

__all__ = ["SUITES", "Suite", "load_game"]


@dataclass(frozen=True)
class Suite:
    """Games that come together.

    Attributes:
        package: What has to be installed.
        names: The games in it; asked only where the package is there, as is `load`.
        load: Makes one.
    """

    package: str
    names: Callable[[], tuple[str, ...]]
    load: Callable[[str, GameSection], Game]


SUITES: dict[str, Suite] = {
    "minatar": Suite("minatar", minatar.names, minatar.load),
    "atari": Suite("ale_py", atari.names, atari.load),
}


def load_game(section: GameSection) -> Game:
    """The game that a job names.

    Raises:
        JobError: There is no such game, or what it needs is not installed.
    """
    suite_name, _, game = (section.name or "").partition("/")
    suite = SUITES.get(suite_name)
    if suite is None:
        installed = [f"{name}/{known}" for name, s in SUITES.items() if _there(s) for known in s.names()]
        hint = did_you_mean(section.name or "", [*installed, *SUITES])
        expected = f"must be minatar/<game> or atari/<game>, such as minatar/breakout{hint}"
        raise JobError("game.name", section.name, expected)
    if not _there(suite):
        expected = "needs the extra rl: make install-rl, or pip install '.[rl]', in the clone"
        raise JobError("game.name", section.name, expected)
    if not game:
        raise JobError("game.name", section.name, f"must name a game too, such as {suite_name}/breakout")
    if game not in suite.names():
        known = [f"{suite_name}/{name}" for name in suite.names()]
        hint = did_you_mean(section.name or "", known)
        shown = f" it has {', '.join(suite.names())}" if len(known) <= 10 else f" it has {len(known)} games"
        raise JobError("game.name", section.name, f"{suite_name} has no such game;{shown}{hint}")
    return suite.load(game, section)


def _there(suite: Suite) -> bool:
    return find_spec(suite.package) is not None
