from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from manyhands.errors import JobError
from manyhands.games import Game, GameSection, load_game, loading
from manyhands.games.atari import _Shrink

NEEDS_RL = pytest.mark.skipif(
    find_spec("ale_py") is None or find_spec("minatar") is None, reason="the extra rl is not installed"
)
BOTH = ("minatar/breakout", "atari/breakout")


def game(name: str, **said: Any) -> Game:
    return load_game(GameSection(name=name, **said))


def played(game: Game, seed: int, count: int = 60, *, whole: bool = False) -> list[Any]:
    play, draws, seen = game.start(whole=whole), np.random.default_rng(7), []
    seen.append(play.reset(seed))
    for action in draws.integers(len(game.actions), size=count).tolist():
        step = play.step(action)
        seen.extend(step)
        if play.over:
            seen.append(play.reset())
    return seen


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@NEEDS_RL
@pytest.mark.parametrize(
    ("name", "shape", "actions"),
    [
        ("minatar/breakout", (4, 10, 10), ("wait", "left", "right")),
        ("minatar/freeway", (7, 10, 10), ("wait", "up", "down")),
        ("atari/breakout", (4, 84, 84), ("noop", "fire", "right", "left")),
        ("atari/beam_rider", (4, 84, 84), None),
    ],
)
def test_a_game_says_what_it_shows_and_takes(name: str, shape: tuple[int, ...], actions: Any) -> None:
    found = game(name)
    assert found.name == name
    assert found.shape == shape
    assert found.classes == found.actions
    assert actions is None or found.actions == actions
    frame = found.start().reset(1)
    assert frame.dtype == np.uint8
    assert frame.shape == found.frame
    assert frame.flags.c_contiguous
    assert frame.max() > 0


@NEEDS_RL
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_a_sitting_follows_from_its_seed(name: str, sticky: float) -> None:
    found = game(name, sticky=sticky)
    first = played(found, 3)
    assert same(first, played(found, 3))
    assert not same(first, played(found, 4))
    with ThreadPoolExecutor(3) as pool:
        assert all(same(first, other) for other in pool.map(lambda _: played(found, 3), range(3)))


@NEEDS_RL
@pytest.mark.parametrize("name", BOTH)
def test_sticky_actions_change_the_game(name: str) -> None:
    assert not same(played(game(name), 3), played(game(name, sticky=0.9), 3))


@NEEDS_RL
def test_a_sticky_action_is_the_last_one() -> None:
    play = game("minatar/breakout", sticky=0.9999).start()
    paddle = play.reset(0)[0]
    assert all(np.array_equal(play.step(1)[0][0], paddle) for _ in range(4))  # it waits, as it did before


@NEEDS_RL
def test_an_atari_s_own_draws_follow_from_the_seed_too() -> None:
    waits = [int(np.random.default_rng(seed).integers(31)) for seed in range(100)]
    other = waits.index(waits[0], 1)  # waits as long at the start, so only the console's draws differ
    assert same(played(game("atari/breakout"), 0), played(game("atari/breakout"), other))
    sticky = game("atari/breakout", sticky=0.5)
    assert not same(played(sticky, 0), played(sticky, other))


@NEEDS_RL
@pytest.mark.parametrize("name", BOTH)
def test_a_long_game_is_cut(name: str) -> None:
    play = game(name, episode_limit=3).start()
    play.reset(0)
    steps = [play.step(0)[2:] for _ in range(3)]
    assert steps == [(False, False), (False, False), (False, True)]
    assert play.over


@NEEDS_RL
def test_minatar_planes_are_black_or_white() -> None:
    frame = game("minatar/breakout").start().reset(0)
    assert set(np.unique(frame)) == {0, 255}
    assert [int(plane.sum()) // 255 for plane in frame] == [1, 1, 1, 30]  # paddle, ball, trail, bricks


def endings(found: Game, *, whole: bool) -> list[tuple[bool, bool]]:
    """(ended, over) of every episode of one game in which nothing is done."""
    play = found.start(whole=whole)
    play.reset(0)
    seen = []
    while not play.over:
        _, _, ended, _ = play.step(0)
        if ended:
            seen.append((ended, play.over))
    return seen


@NEEDS_RL
def test_lost_lives_end_episodes_in_training_only() -> None:
    lives = [(True, False)] * 4 + [(True, True)]
    assert endings(game("atari/breakout"), whole=False) == lives
    assert endings(game("atari/breakout"), whole=True) == [(True, True)]
    assert endings(game("atari/breakout", life_ends=False), whole=False) == [(True, True)]


def area_mean(screen: Any, row: int, column: int) -> float:
    """The mean over the area of one pixel of 84×84, as an integral over a finer grid."""
    height, width = screen.shape
    ys = (np.arange(row * height, (row + 1) * height) // 84).astype(int)
    xs = (np.arange(column * width, (column + 1) * width) // 84).astype(int)
    return float(screen[np.ix_(ys, xs)].mean())


@pytest.mark.parametrize("height", [210, 250])
def test_screens_are_averaged_by_area(height: int) -> None:
    screen = np.random.default_rng(0).integers(0, 256, (height, 160)).astype(np.uint8)
    small = _Shrink(height, 160)(screen)[0]
    for row, column in [(0, 0), (1, 1), (41, 20), (42, 21), (83, 83), (7, 50)]:
        assert abs(float(small[row, column]) - area_mean(screen, row, column)) <= 0.501


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, r"^game\.name: must be minatar/<game> or atari/<game>"),
        ("nintendo/tetris", r'^game\.name = "nintendo/tetris": must be minatar/<game>'),
        pytest.param("breakout", r"did you mean (minatar|atari)/breakout\?", marks=NEEDS_RL),
        pytest.param("atari/brekout", r"no such game; .*did you mean atari/breakout\?", marks=NEEDS_RL),
        pytest.param("minatar/pong", r"it has asterix, breakout, freeway, seaquest", marks=NEEDS_RL),
    ],
)
def test_a_game_that_is_not_there_is_named(name: str | None, says: str) -> None:
    with pytest.raises(JobError, match=says) as caught:
        load_game(GameSection(name=name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["atari/breakout", "minatar/no_such_game"])
def test_a_missing_extra_is_named_before_a_missing_game(monkeypatch: Any, name: str) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    with pytest.raises(JobError, match="needs the extra rl: make install-rl"):
        load_game(GameSection(name=name))


def test_what_games_need_is_imported_only_when_one_is_loaded() -> None:
    code = (
        "import sys, manyhands.games; from manyhands.learn import reinforcement;"
        "print([m for m in ('ale_py', 'minatar', 'gymnasium', 'seaborn') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@NEEDS_RL
def test_minatar_games_come_without_the_plotting_of_their_package() -> None:
    code = (
        "import sys; from manyhands.games import GameSection, load_game;"
        "load_game(GameSection(name='minatar/asterix')).start().reset(0);"
        "print([m for m in ('seaborn', 'matplotlib', 'pandas') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
