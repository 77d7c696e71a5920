"""Times one learner of a game: steps of the game per second, manyhands beside two that are well known.

- *manyhands*: a `PracticePhase` a round, double and plain Q-learning.
- *CleanRL's way*: a plain loop in torch with the settings of CleanRL's ``dqn_atari``, written in our words.
- *stable-baselines3*: its DQN, if it is installed (``pip install stable-baselines3``).

All have the same network (that of Nature on Atari), batch 32, a training step every four steps of the game
and Adam with rate 1e-4, and all play through manyhands' own games: emulating and shrinking the screen takes
everybody the same time, so what differs is the learner. Rounds are interleaved, because a machine's speed
drifts; the first round of each does not count. Processor time says more than steps per second where others
use the machine too.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from manyhands.blocks import Weights, whole_model
from manyhands.games import Game, GameSection, load_game
from manyhands.learn.reinforcement import PlaySection, PracticePhase
from manyhands.learn.supervised import Architecture, LearnSection
from manyhands.models import ModelSection, build, cost_of
from manyhands.replica import Replica

BATCH, EVERY, RATE, EPSILON, DISCOUNT = 32, 4, 1e-4, 0.1, 0.99
MEMORY = 10_000

Round = Callable[[int], None]
"""Plays so many steps, and learns."""

Took = tuple[float, float]
"""Wall and processor seconds of one step."""


def network(game: Game) -> nn.Module:
    return build(ModelSection(name="dqn"), game.shape, len(game.actions), seed=0)


def ours(game: Game, steps: int, *, double: bool) -> Round:
    model = network(game)
    architecture = Architecture(game.name, partial(copy.deepcopy, model), cost_of(model, game.shape))
    first = Weights({name: tensor.clone() for name, tensor in model.state_dict().items()})
    play = PlaySection(
        steps=steps,
        warm_up=0,
        train_every=EVERY,
        epsilon=(EPSILON, EPSILON),
        double=double,
        discount=DISCOUNT,
    )
    learn = LearnSection(optimizer="adam", learning_rate=RATE, batch_size=BATCH)
    phase = PracticePhase("bench", architecture, whole_model(first), game, play, learn, 0, MEMORY)
    replica, blocks = Replica(first), {"model": first}

    def go(count: int) -> None:
        nonlocal replica, blocks
        assert count == phase.num_examples
        outcome = phase.work(replica, blocks, replica.num_rounds).run()
        replica, blocks = replica.after(outcome), {"model": outcome.weights["update/model"]}

    return go


def cleanrl_way(game: Game, _steps: int) -> Round:
    """Whole states in a ring, the network called as it is, a target renewed every 1000 steps."""
    learner, target = network(game), network(game)
    target.load_state_dict(learner.state_dict())
    optimizer = torch.optim.Adam(learner.parameters(), lr=RATE)
    states = np.zeros((MEMORY, *game.shape), np.uint8)
    actions = np.zeros((MEMORY, 1), np.int64)
    rewards, ended = np.zeros(MEMORY, np.float32), np.zeros(MEMORY, np.float32)
    draws = np.random.default_rng(0)
    play = game.start()
    state = np.concatenate([play.reset(0)] * game.stack)
    taken = 0

    def learn() -> None:
        held = min(taken, MEMORY)
        at = draws.integers(0, held - 1, size=BATCH) if taken < MEMORY else _around(draws, taken)
        now, after = torch.tensor(states[at]), torch.tensor(states[(at + 1) % MEMORY])
        with torch.no_grad():
            best, _ = target(after / 255.0).max(dim=1)
            wanted = torch.tensor(rewards[at]) + DISCOUNT * best * (1 - torch.tensor(ended[at]))
        old = learner(now / 255.0).gather(1, torch.tensor(actions[at])).squeeze()
        loss = F.mse_loss(wanted, old)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def go(count: int) -> None:
        nonlocal state, taken
        for _ in range(count):
            if draws.random() < EPSILON:
                action = int(draws.integers(len(game.actions)))
            else:
                action = int(learner(torch.Tensor(state[None]) / 255.0).argmax(dim=1))
            frame, reward, over, cut = play.step(action)
            place = taken % MEMORY
            states[place], actions[place], ended[place] = state, action, over
            rewards[place] = np.sign(reward)
            state = np.concatenate([state[len(frame) :], frame])
            if over or cut:
                state = np.concatenate([play.reset() if play.over else frame] * game.stack)
            taken += 1
            if taken > BATCH and taken % EVERY == 0:
                learn()
            if taken % 1000 == 0:
                target.load_state_dict(learner.state_dict())

    return go


def _around(draws: np.random.Generator, taken: int) -> Any:
    """Places in a full ring, but not the newest, of which the next state is not there."""
    return (taken + draws.integers(0, MEMORY - 1, size=BATCH)) % MEMORY


def stable_baselines(game: Game, _steps: int) -> Round:
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    class Environment(gymnasium.Env[Any, Any]):
        def __init__(self) -> None:
            self.observation_space = gymnasium.spaces.Box(0, 255, game.frame, np.uint8)
            self.action_space = gymnasium.spaces.Discrete(len(game.actions))
            self._play, self._begun = game.start(), False

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            if self._begun and not self._play.over:
                return self._last, {}
            self._last = self._play.reset(None if self._begun else 0)
            self._begun = True
            return self._last, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self._last, reward, over, cut = self._play.step(int(action))
            return self._last, float(np.sign(reward)), over, cut, {}

    class Head(BaseFeaturesExtractor):
        """Our network for small frames without its last layer; Nature's is stable-baselines3's own."""

        def __init__(self, space: Any, features_dim: int = 128) -> None:
            super().__init__(space, features_dim)
            model = network(game)
            self.layers = nn.Sequential(model.stem, model.features, model.classifier[:-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    envs: Any = DummyVecEnv([Environment])
    if game.stack > 1:
        envs = VecFrameStack(envs, game.stack, channels_order="first")
    small = min(game.shape[1:]) < 36
    model = DQN(
        "CnnPolicy",
        envs,
        learning_rate=RATE,
        buffer_size=MEMORY,
        learning_starts=BATCH,
        batch_size=BATCH,
        gamma=DISCOUNT,
        train_freq=EVERY,
        gradient_steps=1,
        target_update_interval=1000,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        policy_kwargs={"features_extractor_class": Head, "net_arch": []} if small else None,
        device="cpu",
        seed=0,
    )
    return lambda count: model.learn(count, reset_num_timesteps=False) and None


LEARNERS: dict[str, Callable[[Game, int], Round]] = {
    "manyhands, double": partial(ours, double=True),
    "manyhands, plain": partial(ours, double=False),
    "CleanRL's way": cleanrl_way,
    "stable-baselines3": stable_baselines,
}


def compare(
    game: Game, options: argparse.Namespace, console: Console
) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds per step of every learner that is there, round by round."""
    learners: dict[str, Round] = {}
    for name, make in LEARNERS.items():
        try:
            learners[name] = make(game, options.steps)
        except ImportError as error:
            console.print(f"{name} is skipped: {error}")
    took: dict[str, list[Took]] = {name: [] for name in learners}
    for number in range(options.rounds + 1):
        for name, go in learners.items():
            wall, processor = time.perf_counter(), time.process_time()
            go(options.steps)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            if number:
                took[name].append((wall / options.steps, processor / options.steps))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--game", default="atari/breakout")
    parser.add_argument("--steps", type=int, default=1000, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch; as many as it takes by itself if left out")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console(width=110)
    game = load_game(GameSection(name=options.game))
    console.print(f"{platform.platform()}, torch {torch.__version__}, {datetime.date.today()}")
    took = compare(game, options, console)
    rounds = f"{options.rounds} rounds of {options.steps} steps"
    title = f"{game.name}: {rounds}, torch on {torch.get_num_threads()} threads"
    columns = ("learner", "steps/s", "lowest", "highest", "to ours", "processor ms/step", "to ours")
    table = Table(*columns, title=title)
    reference = [statistics.median(column) for column in zip(*took["manyhands, double"], strict=True)]
    for name, found in took.items():
        walls, processors = zip(*found, strict=True)
        wall, processor = statistics.median(walls), statistics.median(processors)
        speeds = (f"{1 / seconds:.0f}" for seconds in (wall, max(walls), min(walls)))
        ratios = f"{reference[0] / wall:.2f}", f"{reference[1] / processor:.2f}"
        table.add_row(name, *speeds, ratios[0], f"{1000 * processor:.2f}", ratios[1])
    console.print(table)


if __name__ == "__main__":
    main()
