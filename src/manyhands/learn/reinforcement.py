"""Reinforcement learning: what a device does with a game of its own in one round (paper 001, 4.2 and B.1).

A `PracticePhase` is one device's way of learning by playing: it takes so many steps in its game, remembers
them, and every few of them learns from some that it remembers. Its works are pure: what the device remembers
is handed in as pieces and one more is handed out, and every draw, the game's included, comes from (seed,
device, round). A phase therefore begins with a new game, and the game at its end is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from manyhands.blocks import HEADER_BYTES, Layout
from manyhands.games import Game, Play
from manyhands.hand import Work
from manyhands.learn.gradients import as_input
from manyhands.learn.optimizers import saved_slots
from manyhands.learn.phases import Send, Trained, settle_work, train_work
from manyhands.learn.q_learning import QLearner
from manyhands.learn.replay import Replay
from manyhands.learn.supervised import LearnSection
from manyhands.learn.transfer import moved, own_copies
from manyhands.learn.workspace import Architecture, Tensors, layout_in_memory, load, only_own_draws, workspace
from manyhands.replica import Blocks, Replica
from manyhands.seeds import derive, numpy_generator
from manyhands.settings import Section

__all__ = ["PlaySection", "PracticePhase", "score_of"]

Fraction = Annotated[float, Field(ge=0, le=1)]


class PlaySection(Section):
    """How a device learns by playing (``[play]``).

    Attributes:
        steps: Steps of a local phase: between two exchanges, at which the target network is renewed too.
        train_every: Steps in the game for one along gradients. Mnih et al. (2015) take 4, paper 001 takes 1.
        warm_up: A device's own steps before it begins to learn.
        replay: Steps that are remembered; by size of the network, or one number for all. A size that is not
            named remembers as much as the largest of those that are.
        discount: γ, what a reward is worth one step later.
        epsilon: Part of the actions drawn at random, at first and in the end.
        epsilon_steps: A device's own steps over which it falls from the one to the other.
        test_epsilon: The same in tests.
        test_episodes: Games of a test.
        clip_rewards: Learn from rewards between -1 and 1; scores are the game's own.
        double: Whether the learner itself chooses the next action that its target judges.
    """

    steps: PositiveInt = 10_000
    train_every: PositiveInt = 4
    warm_up: NonNegativeInt = 50_000
    replay: PositiveInt | Annotated[dict[str, PositiveInt], Field(min_length=1)] = Field(
        default_factory=lambda: {"complex": 1_000_000, "light": 100_000}
    )
    discount: Fraction = 0.99
    epsilon: tuple[Fraction, Fraction] = (1.0, 0.1)
    epsilon_steps: PositiveInt = 1_000_000
    test_epsilon: Fraction = 0.02
    test_episodes: PositiveInt = 5
    clip_rewards: bool = True
    double: bool = True

    def replay_of(self, size: str | None) -> int:
        """How many steps a device whose network has this size remembers."""
        if isinstance(self.replay, int):
            return self.replay
        return self.replay.get(size or "", max(self.replay.values()))

    def epsilons(self, first: int, count: int) -> NDArray[np.float64]:
        """The part of random actions at a device's own steps from `first` on."""
        high, low = self.epsilon
        passed = np.minimum((first + np.arange(count)) / self.epsilon_steps, 1.0)
        return high + (low - high) * passed

    def learns_at(self, taken: int) -> bool:
        """Whether a device learns after so many steps of its own."""
        return taken > self.warm_up and taken % self.train_every == 0

    def num_learned(self, first: int, count: int) -> int:
        """How often it learns in `count` steps after `first`."""
        start, stop = max(first, self.warm_up), max(first + count, self.warm_up)
        return stop // self.train_every - start // self.train_every


@dataclass(frozen=True)
class PracticePhase:
    """One device's way of learning by playing.

    Attributes:
        device: Its name, for its random draws.
        architecture: The network it trains.
        layout: The blocks it shares.
        game: What it plays.
        play: The job's settings for that.
        section: The job's settings for learning.
        seed: The job's seed.
        replay_steps: How many steps it remembers.
        rate: How fast it plays, as a part of the full number of steps in a phase.
        torch_device: Where it computes.
        send: Whether updates carry parameters or the change since the round began.
        keep_optimizer: Whether the optimizer's memory goes on from round to round.
    """

    device: str
    architecture: Architecture
    layout: Layout
    game: Game
    play: PlaySection
    section: LearnSection
    seed: int
    replay_steps: int
    rate: float = 1.0
    torch_device: str = "cpu"
    send: Send = "parameters"
    keep_optimizer: bool = True

    @property
    def num_examples(self) -> int:
        """How many steps it takes in its game in one phase."""
        return max(1, round(self.play.steps * self.rate))

    @property
    def num_remembered(self) -> int:
        """How many pieces of memory it keeps."""
        return math.ceil(self.replay_steps / self.num_examples)

    @property
    def flops(self) -> float:
        """What one phase costs once it learns."""
        return self._flops(self.play.warm_up)

    @property
    def memory_bytes(self) -> int:
        """What it remembers takes, with the piece that is being filled."""
        # An action, a reward and an end, twice since a phase puts them in a row, and two places in that row.
        a_step = math.prod(self.game.frame) + 2 * 6 + 16
        return (self.num_remembered + 1) * (self.num_examples * a_step + 4 * HEADER_BYTES)

    def work(self, replica: Replica, blocks: Blocks, number: int) -> Work:
        """One local phase, after taking over the blocks."""

        def train(start: Tensors) -> Trained:
            return self._train(start, replica)

        flops = self._flops(replica.num_rounds * self.num_examples)
        return train_work(train, self.layout, self.send, replica, blocks, flops=flops, number=number)

    def settle(self, replica: Replica, blocks: Blocks) -> Work:
        """Takes over the blocks without training."""
        return settle_work(self.layout, replica, blocks)

    def _flops(self, taken: int) -> float:
        """What a phase costs after so many steps: acting, and learning with one or two looks ahead."""
        cost = self.architecture.cost
        ahead = (2 if self.play.double else 1) * cost.forward_flops
        learned = self.play.num_learned(taken, self.num_examples) * self.section.batch_size
        return float(self.num_examples * cost.forward_flops + learned * (cost.train_flops + ahead))

    def _train(self, start: Tensors, replica: Replica) -> Trained:
        number = replica.num_rounds
        memory_format = layout_in_memory(self.section.memory_format)
        learner = QLearner(self.architecture, self.section, self.torch_device, memory_format, self.game.shape)
        own = derive(self.seed, self.device, number, "dropout")
        learner.load(start, replica.optimizer, replica.num_steps, own)
        replay = self._replay(replica)
        sitting = _Sitting(self.game.start(), replay, clip=self.play.clip_rewards)
        sitting.begin(derive(self.seed, self.device, number, "game"))
        with only_own_draws():
            self._practise(sitting, replay, learner, number)
        num_learned = learner.num_steps - replica.num_steps
        loss = float(learner.losses) / num_learned if num_learned else math.nan
        facts = {
            "examples": self.num_examples,
            "num_steps": learner.num_steps,
            "loss": loss if math.isfinite(loss) else None,
            "remembered": self.num_remembered,
            "episodes": len(sitting.scores),
            "reward": sum(sitting.scores) / len(sitting.scores) if sitting.scores else None,
        }
        slots = saved_slots(learner.slots) if self.keep_optimizer else {}
        return Trained(own_copies(learner.state), slots, facts, replay.piece())

    def _replay(self, replica: Replica) -> Replay:
        count = self.num_examples
        # A frame a step, the last one, and one more for every episode that can be cut on the way.
        room = count + 1 + count // self.game.episode_limit + 1
        pieces = replica.memory[-self.num_remembered :]
        return Replay(pieces, self.game.frame, self.game.stack, room=room, window=self.replay_steps)

    def _practise(self, sitting: _Sitting, replay: Replay, learner: QLearner, number: int) -> None:
        """Plays, in a device's phase of this number, and learns on the way."""
        count, play = self.num_examples, self.play
        taken = number * count
        draws = numpy_generator(self.seed, self.device, number, "exploration")
        at_random = draws.random(count) < play.epsilons(taken, count)
        actions = draws.integers(len(self.game.actions), size=count).tolist()
        batches = numpy_generator(self.seed, self.device, number, "batches")
        for step, (action, drawn) in enumerate(zip(actions, at_random.tolist(), strict=True), start=1):
            sitting.step(action if drawn else learner.best_action(replay.state()))
            if play.learns_at(taken + step):
                batch = replay.draw(batches, self.section.batch_size)
                learner.learn(batch, play.discount, double=play.double)
        sitting.stop()


class _Sitting:
    """Games in a row of which everything is remembered.

    Attributes:
        scores: The rewards of the games that were played to their end, or to the most steps they may have.
    """

    def __init__(self, play: Play, replay: Replay, *, clip: bool) -> None:
        self._play, self._replay, self._clip = play, replay, clip
        self._score = 0.0
        self.scores: list[float] = []

    def begin(self, seed: int) -> None:
        """The first game."""
        self._replay.begin(self._play.reset(seed))

    def step(self, action: int) -> None:
        """One step; if it ended an episode, the next one is begun."""
        frame, reward, ended, cut = self._play.step(action)
        self._score += reward
        self._replay.add(action, min(max(reward, -1.0), 1.0) if self._clip else reward, frame, ended=ended)
        if cut:
            self._replay.cut()
        if self._play.over:
            self.scores.append(self._score)
            self._score, frame = 0.0, self._play.reset()
        if ended or cut:
            self._replay.begin(frame)

    def stop(self) -> None:
        """Nothing more is done."""
        self._replay.cut()


def score_of(
    architecture: Architecture,
    weights: Tensors,
    game: Game,
    play: PlaySection,
    seed: int,
    torch_device: str = "cpu",
) -> dict[str, float | None]:
    """The mean score of a network in whole games, all of which it plays side by side."""
    module = workspace(architecture, torch_device, torch.channels_last, "target").module.eval()
    load(module, weights)
    tables = [_Table(game, derive(seed, "test", number)) for number in range(play.test_episodes)]
    while playing := [table for table in tables if not table.play.over]:
        states = torch.from_numpy(np.stack([table.frames for table in playing])).flatten(1, 2)
        with torch.inference_mode():
            values = module(as_input(moved(states, torch_device), torch.channels_last))
        for table, best in zip(playing, values.argmax(1).tolist(), strict=True):
            table.step(best, play.test_epsilon)
    return {"score": sum(table.score for table in tables) / len(tables), "loss": None}


class _Table:
    """One game of a test, with the draws that go with it."""

    def __init__(self, game: Game, seed: int) -> None:
        self.play = game.start(whole=True)
        self.frames = np.repeat(self.play.reset(seed)[None], game.stack, axis=0)
        self.score = 0.0
        self._draws, self._num_actions = np.random.default_rng(seed), len(game.actions)

    def step(self, best: int, epsilon: float) -> None:
        """The best action or, now and then, any."""
        at_random = self._draws.random() < epsilon
        action = int(self._draws.integers(self._num_actions)) if at_random else best
        frame, reward, _, _ = self.play.step(action)
        self.frames[:-1] = self.frames[1:]
        self.frames[-1] = frame
        self.score += reward
