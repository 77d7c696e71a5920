from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.blocks import Weights
from manyhands.learn.replay import Replay

FRAME = (2, 3, 3)


@dataclass
class Told:
    """One transition, told without any cleverness."""

    state: list[int]
    action: int
    reward: float
    next_state: list[int] | None


def frame(number: int) -> Any:
    """A frame that can be told from 65,535 others."""
    made = np.zeros(FRAME, np.uint8)
    made[0], made[1] = number % 256, number // 256
    return made


def stacked(numbers: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([frame(number) for number in numbers]))


def play(replay: Replay, story: list[str], stack: int, count: int) -> tuple[list[Told], int]:
    """Goes through steps that go on, end or are cut, and tells them naively; gives the next number too."""
    told: list[Told] = []
    episode = [count]
    replay.begin(frame(count))
    count += 1
    for kind in story:
        state = [episode[0]] * max(0, stack - len(episode)) + episode[-stack:]
        assert np.array_equal(replay.state().reshape(-1, 3, 3), stacked(state).numpy())
        action, reward = count % 5, count / 8
        replay.add(action, reward, frame(count), ended=kind == "end")
        episode.append(count)
        following = [episode[0]] * max(0, stack - len(episode)) + episode[-stack:]
        told.append(Told(state, action, reward, None if kind == "end" else following))
        count += 1
        if kind != "go":
            if kind == "cut":
                replay.cut()
            episode = [count]
            replay.begin(frame(count))
            count += 1
    return told, count


def check(replay: Replay, told: list[Told], first: int = 0) -> None:
    batch = replay.batch(np.arange(first, first + len(told)))
    for row, one in enumerate(told):
        assert torch.equal(batch.states[row], stacked(one.state))
        assert int(batch.actions[row]) == one.action
        assert float(batch.rewards[row]) == one.reward
        assert float(batch.goes_on[row]) == (one.next_state is not None)
        if one.next_state is not None:
            assert torch.equal(batch.next_states[row], stacked(one.next_state))


steps = st.lists(st.sampled_from(["go", "go", "go", "end", "cut"]), min_size=1, max_size=14)


@given(stories=st.lists(steps, min_size=1, max_size=4), stack=st.integers(1, 4))
def test_what_is_gathered_is_what_was_seen(stories: list[list[str]], stack: int) -> None:
    pieces: list[Weights] = []
    told: list[Told] = []
    count = 0
    for story in stories:
        replay = Replay(pieces, FRAME, stack, room=2 * len(story) + 1, window=10_000)
        check(replay, told)
        new, count = play(replay, story, stack, count)
        told += new
        assert replay.num_transitions == len(told)
        check(replay, told)
        replay.cut()
        pieces.append(replay.piece())
    check(Replay(pieces, FRAME, stack, room=1, window=10_000), told)


def filled(pieces: list[Weights], steps: int, window: int, room: int | None = None) -> Replay:
    replay = Replay(pieces, FRAME, 2, room=room or steps + 1, window=window)
    play(replay, ["go"] * steps, 2, 0)
    return replay


def test_only_the_latest_transitions_are_drawn_each_as_likely() -> None:
    old = filled([], 10, 100)
    old.cut()
    replay = filled([old.piece()], 5, 8)  # of 15 the last 8: 3 old ones
    draws = replay.draw(np.random.default_rng(0), 16_000)
    newest = draws.states[:, -2, 0, 0].numpy()  # frames are numbered, old and new, from 0
    numbers, counts = np.unique(newest, return_counts=True)
    assert set(numbers) == {0, 1, 2, 3, 4, 7, 8, 9}
    assert abs(counts / 2000 - 1).max() < 0.1


def test_a_piece_is_not_changed_by_what_comes_after() -> None:
    old = filled([], 4, 100)
    old.cut()
    piece = old.piece()
    before = {name: tensor.clone() for name, tensor in piece.items()}
    replay = filled([piece], 6, 100)
    replay.draw(np.random.default_rng(0), 32)
    assert all(torch.equal(piece[name], before[name]) for name in before)


@pytest.mark.parametrize("episode", [50, 12])
def test_a_million_atari_steps_take_little_more_than_their_frames(episode: int) -> None:
    steps = 600
    replay = Replay([], (1, 84, 84), 4, room=steps + 1, window=steps)
    black = np.zeros((1, 84, 84), np.uint8)
    replay.begin(black)
    for step in range(1, steps + 1):
        replay.add(0, 0.0, black, ended=step % episode == 0)
        if step % episode == 0:
            replay.begin(black)
    replay.cut()
    held = sum(tensor.untyped_storage().nbytes() for tensor in replay.piece().values())
    assert held / steps * 1e6 < 7.2e9
