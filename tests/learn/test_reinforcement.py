from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyhands.blocks import Part, Weights, whole_model
from manyhands.games import Game, GameSection, load_game
from manyhands.learn.q_learning import better_estimates, huber
from manyhands.learn.reinforcement import PlaySection, PracticePhase, score_of
from manyhands.learn.replay import Batch, Replay
from manyhands.learn.supervised import Architecture, LearnSection
from manyhands.models import Form, ModelSection, build_in_form, cost_of
from manyhands.replica import Replica

NEEDS_MINATAR = pytest.mark.skipif(find_spec("minatar") is None, reason="the extra rl is not installed")
NEEDS_ALE = pytest.mark.skipif(find_spec("ale_py") is None, reason="the extra rl is not installed")


class Follow:
    """A light is on at the left or the right; touching its side brings 2, the other loses 1. Ten steps."""

    def __init__(self, _lives: bool) -> None:
        self._draws = np.random.default_rng(0)
        self.over = True

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self._draws = np.random.default_rng(seed)
        self._steps, self.over = 0, False
        return self._frame()

    def step(self, action: int) -> Any:
        reward = 2.0 if action == self._side else -1.0
        self._steps += 1
        self.over = self._steps == 10
        return self._frame(), reward, self.over, False

    def _frame(self) -> Any:
        self._side = int(self._draws.integers(2))
        frame = np.zeros((1, 7, 7), np.uint8)
        frame[0, :, 6 * self._side] = 255
        return frame


FOLLOW = Game("made/follow", (1, 7, 7), 2, ("left", "right"), Follow)


def network(game: Game, size: str = "light", form: Form | None = None) -> tuple[Architecture, Weights]:
    section = ModelSection(name="dqn")
    model = build_in_form(section, game.shape, len(game.classes), seed=0, size=size, form=form or Form())
    key = (game.name, size, form)
    architecture = Architecture(key, partial(copy.deepcopy, model), cost_of(model, game.shape))
    return architecture, Weights({name: tensor.clone() for name, tensor in model.state_dict().items()})


def phase(game: Game = FOLLOW, **changes: Any) -> tuple[PracticePhase, Replica]:
    architecture, first = network(game, changes.pop("size", "light"), changes.pop("form", None))
    learn = LearnSection(**({"optimizer": "adam", "learning_rate": 1e-3} | changes.pop("learn", {})))
    play = PlaySection(**({"steps": 40, "warm_up": 0, "epsilon_steps": 100} | changes.pop("play", {})))
    layout = changes.pop("layout", whole_model(first))
    made = PracticePhase(
        "pi", architecture, layout, game, play, learn, 1, **({"replay_steps": 100} | changes)
    )
    return made, Replica(first)


def minatar() -> Game:
    return load_game(GameSection(name="minatar/breakout"))


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rounds(made: PracticePhase, replica: Replica, count: int) -> tuple[Replica, list[Any]]:
    """Some phases, each of which takes over what the last one made."""
    blocks: dict[str, Weights] = {}
    outcomes = []
    for number in range(count):
        outcome = made.work(replica, blocks, number).run()
        outcomes.append(outcome)
        blocks = {name[7:]: tensors for name, tensors in outcome.weights.items() if name[:7] == "update/"}
        replica = replica.after(outcome)
    return replica, outcomes


@pytest.mark.parametrize(
    "game", [pytest.param(minatar, marks=NEEDS_MINATAR), lambda: FOLLOW], ids=["minatar", "follow"]
)
def test_a_phase_is_the_same_on_any_thread_beside_any_other(game: Any) -> None:
    made, replica = phase(game())
    replica, _ = rounds(made, replica, 2)
    blocks = {"model": phase(game())[1].weights}
    replicas = [replace(replica, num_rounds=number) for number in range(4)]
    expected = [made.work(one, blocks, 0).run() for one in replicas]
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        got = list(pool.map(lambda one: made.work(one, blocks, 0).run(), replicas))
    for a, b in zip(expected, got, strict=True):
        assert a.facts == b.facts
        assert a.weights.keys() == b.weights.keys() == {"replica", "optimizer", "update/model", "experience"}
        assert all(same(a.weights[name], b.weights[name]) for name in a.weights)
    assert not same(expected[0].weights["experience"], expected[1].weights["experience"])
    assert not same(expected[0].weights["update/model"], expected[1].weights["update/model"])


def test_every_phase_plays_another_game() -> None:
    made, replica = phase(play={"steps": 1})
    replicas = [replace(replica, num_rounds=number) for number in range(8)]
    firsts = [made.work(one, {}, 0).run().weights["experience"]["frames"][0] for one in replicas]
    assert any(not torch.equal(first, firsts[0]) for first in firsts)


def test_without_chance_the_best_action_is_taken() -> None:
    made, replica = phase(play={"epsilon": (0.0, 0.0), "warm_up": 100})
    seen = made.work(replica, {}, 0).run().weights["experience"]
    model = made.architecture.build().eval()
    for at in range(9):  # the first episode
        state = seen["frames"][[max(at - 1, 0), at]].reshape(1, 2, 7, 7) / 255
        assert int(seen["actions"][at]) == int(model(state).argmax())


@NEEDS_ALE
def test_an_atari_phase_is_repeatable() -> None:
    game = load_game(GameSection(name="atari/breakout"))
    made, replica = phase(game, play={"steps": 20, "train_every": 10, "epsilon": (0.5, 0.5)})
    first, second = (made.work(replica, {}, 0).run() for _ in range(2))
    assert first.facts == second.facts
    assert all(same(first.weights[name], second.weights[name]) for name in first.weights)
    assert first.weights["experience"]["frames"].shape == (21, 1, 84, 84)
    assert first.facts["num_steps"] == 2


class Numbers(nn.Module):
    """A network of which the estimates are given beforehand."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values[: len(x)]


def test_the_learner_chooses_and_the_target_judges() -> None:
    learner = Numbers([[1.0, 2.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    target = Numbers([[9.0, 3.0, 7.0], [4.0, 8.0, 6.0], [1.0, 2.0, 5.0]])
    states = torch.zeros(3, 1, 1, 1)
    rewards, goes_on = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([1.0, 1.0, 0.0])
    batch = Batch(states, torch.tensor([0, 1, 2]), rewards, goes_on, 1)
    double = better_estimates(learner, target, batch, states, 0.9, double=True)
    plain = better_estimates(learner, target, batch, states, 0.9, double=False)
    assert double.tolist() == pytest.approx([1 + 0.9 * 3, -1 + 0.9 * 4, 0.5])
    assert plain.tolist() == pytest.approx([1 + 0.9 * 9, -1 + 0.9 * 8, 0.5])


def test_the_loss_is_huber_s_of_the_actions_taken() -> None:
    values = torch.tensor([[0.2, 9.0], [9.0, 4.0]])
    actions, wanted = torch.tensor([0, 1]), torch.tensor([0.7, 1.0])
    by_hand = (0.5 * 0.5**2 + (3 - 0.5)) / 2
    assert float(huber(values, actions, wanted)) == pytest.approx(by_hand)
    exits = torch.stack([values, values + 1])
    second = (0.5 * 0.5**2 + (4 - 0.5)) / 2
    assert float(huber(exits, actions, wanted)) == pytest.approx(by_hand + second)


def test_a_step_is_that_of_plain_torch() -> None:
    """One phase of one step, against the same arithmetic written out with torch.optim."""
    made, replica = phase(
        play={"steps": 1, "train_every": 1, "clip_rewards": False},
        learn={"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.1, "memory_format": "contiguous"},
    )
    outcome = made.work(replica, {}, 0).run()
    seen = outcome.weights["experience"]
    model = made.architecture.build()
    x = seen["frames"][[0, 0]].reshape(1, 2, 7, 7) / 255
    after = seen["frames"][[0, 1]].reshape(1, 2, 7, 7) / 255
    wanted = seen["rewards"][0] + 0.99 * model(after).max().detach()
    loss = nn.functional.huber_loss(model(x)[0, int(seen["actions"][0])], wanted)
    loss.backward()
    assert outcome.facts["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - 0.1 * parameter.grad
        assert torch.allclose(outcome.weights["update/model"][name], expected, atol=1e-6)


def test_nothing_is_learned_while_warming_up() -> None:
    made, replica = phase(play={"warm_up": 60})
    _, (first, second) = rounds(made, replica, 2)
    assert first.facts["num_steps"] == 0
    assert first.facts["loss"] is None
    assert same(first.weights["update/model"], replica.weights)
    assert second.facts["num_steps"] == 5  # of steps 61 to 80 every fourth
    assert second.facts["loss"] > 0


@pytest.mark.parametrize(("warm_up", "every"), [(0, 4), (60, 4), (61, 3), (1000, 1)])
def test_what_is_charged_is_what_is_done(warm_up: int, every: int) -> None:
    made, replica = phase(play={"warm_up": warm_up, "train_every": every})
    cost = made.architecture.cost
    before = 0
    for number in range(3):
        work = made.work(replica, {}, number)
        outcome = work.run()
        learned = (outcome.facts["num_steps"] - before) * made.section.batch_size
        looks = 2 * cost.forward_flops
        assert work.flops == 40 * cost.forward_flops + learned * (cost.train_flops + looks)
        before, replica = (
            outcome.facts["num_steps"],
            Replica(replica.weights, outcome.weights["optimizer"], outcome.facts["num_steps"], number + 1),
        )
    a_step = made.section.batch_size * (cost.train_flops + looks)
    assert warm_up == 1000 or abs(made.flops - work.flops) <= a_step


def test_memory_is_kept_in_pieces_up_to_its_size() -> None:
    made, replica = phase(replay_steps=100)
    replica, outcomes = rounds(made, replica, 5)
    assert [outcome.facts["remembered"] for outcome in outcomes] == [3] * 5
    assert len(replica.memory) == 3
    assert replica.memory[-1] is outcomes[-1].weights["experience"]
    assert all(piece.lasting for piece in replica.memory)  # checkpoints write each of them once
    held = sum(piece.nbytes for piece in replica.memory)
    assert held < made.memory_bytes
    blocks = {"model": outcomes[-1].weights["update/model"]}
    settled = replica.settled(made.settle(replica, blocks).run())
    assert same(settled.weights, blocks["model"])
    assert settled.memory == ()


def test_a_slower_device_takes_fewer_steps() -> None:
    made, replica = phase(rate=0.25, play={"warm_up": 15})
    _, outcomes = rounds(made, replica, 2)
    assert made.num_examples == 10
    assert [outcome.facts["examples"] for outcome in outcomes] == [10, 10]
    assert [outcome.facts["num_steps"] for outcome in outcomes] == [0, 2]
    assert outcomes[0].facts["remembered"] == 10


def test_rewards_are_clipped_for_learning_and_counted_in_full() -> None:
    made, replica = phase(play={"epsilon": (1.0, 1.0)})
    outcome = made.work(replica, {}, 0).run()
    assert set(outcome.weights["experience"]["rewards"].tolist()) == {1.0, -1.0, 0.0}  # 0 at the cut
    assert outcome.facts["episodes"] == 4
    rewards = outcome.weights["experience"]["rewards"]
    whole = 2 * int((rewards == 1).sum()) - int((rewards == -1).sum())
    assert outcome.facts["reward"] == whole / 4


class Lives(Follow):
    """The same with a life lost after every third step, if lives count; and cut after seven steps."""

    def __init__(self, lives: bool) -> None:
        super().__init__(lives)
        self._lives = lives

    def step(self, action: int) -> Any:
        frame, reward, _, _ = super().step(action)
        lost, self.over = self._lives and self._steps % 3 == 0, self._steps == 7
        return frame, reward, lost, self.over and not lost


def test_lost_lives_end_episodes_and_games_that_are_cut_go_on_beyond_the_cut() -> None:
    game = Game("made/lives", (1, 7, 7), 2, ("left", "right"), Lives, episode_limit=7)
    made, replica = phase(game, play={"steps": 21, "warm_up": 100})
    seen = made.work(replica, {}, 0).run().weights["experience"]
    one_game = [
        0,
        0,
        1,
        0,
        0,
        1,
        0,
        2,
    ]  # two lives lost, cut a step later, where nothing is done
    assert seen["ends"].tolist() == [*one_game * 3, 2]
    assert len(seen["frames"]) == 25
    replay = Replay([seen], game.frame, 2, room=1, window=100)
    assert replay.num_transitions == 21
    batch = replay.batch(np.arange(7))
    assert batch.goes_on.tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert torch.equal(batch.states[3], seen["frames"][[3, 3]].squeeze(1))  # nothing of the life before
    assert torch.equal(batch.next_states[6], seen["frames"][[6, 7]].squeeze(1))


def test_whole_games_are_played_where_lives_do_not_count() -> None:
    game = Game("made/lives", (1, 7, 7), 2, ("left", "right"), Lives, episode_limit=7)
    play = game.start(whole=True)
    play.reset(0)
    assert [play.step(0)[2] for _ in range(6)] == [False] * 6


def test_epsilon_falls_with_the_device_s_own_steps() -> None:
    play = PlaySection(epsilon=(1.0, 0.1), epsilon_steps=1000)
    assert play.epsilons(0, 2).tolist() == pytest.approx([1.0, 0.9991])
    assert play.epsilons(500, 1).tolist() == pytest.approx([0.55])
    assert play.epsilons(5000, 1).tolist() == pytest.approx([0.1])


def test_replay_is_for_all_or_by_size() -> None:
    play = PlaySection()
    assert play.replay_of("complex") == 1_000_000
    assert play.replay_of("light") == 100_000
    assert play.replay_of("full") == 1_000_000
    assert PlaySection(replay=500).replay_of("light") == 500


def test_gradients_are_the_change_and_private_tensors_stay() -> None:
    stem = {"stem": {"w": Part("stem.conv1.weight")}}
    made, replica = phase(layout=stem)
    whole = made.work(replica, {}, 0).run()
    change = phase(layout=stem, send="gradients")[0].work(replica, {}, 0).run()
    start = replica.weights["stem.conv1.weight"]
    assert torch.allclose(start + change.weights["update/stem"]["w"], whole.weights["update/stem"]["w"])
    assert "stem.conv1.weight" not in whole.weights["replica"]
    assert "features.conv3.weight" in whole.weights["replica"]


@pytest.mark.parametrize("form", [Form("cascade"), Form("cascade", each=True), Form("width"), Form("depth")])
def test_networks_of_every_form_can_play(form: Form) -> None:
    game = Game("made/large", (1, 9, 9), 1, ("left", "right"), _Large)
    made, replica = phase(game, size="complex", form=form)
    first, second = (made.work(replica, {}, 0).run() for _ in range(2))
    assert same(first.weights["update/model"], second.weights["update/model"])
    assert not same(first.weights["update/model"], replica.weights)


class _Large(Follow):
    def _frame(self) -> Any:
        small = super()._frame()
        return np.pad(small, ((0, 0), (1, 1), (1, 1)))


def test_the_score_rises() -> None:
    made, replica = phase(
        play={"steps": 400, "train_every": 1, "epsilon_steps": 500, "discount": 0.5, "test_episodes": 8},
        replay_steps=2000,
    )
    before = score_of(made.architecture, replica.weights, FOLLOW, made.play, 0)
    _, outcomes = rounds(made, replica, 3)
    after = score_of(made.architecture, outcomes[-1].weights["update/model"], FOLLOW, made.play, 0)
    assert before["score"] < 10 < 17 < after["score"] <= 20  # a coin would get 5
    assert after["loss"] is None


def test_a_score_follows_from_the_seed_and_plays_whole_games() -> None:
    opened: list[bool] = []

    def open_play(lives: bool) -> Follow:
        opened.append(lives)
        return Follow(lives)

    game = Game("made/follow", (1, 7, 7), 2, ("left", "right"), open_play)
    architecture, first = network(game)
    play = PlaySection(test_episodes=3, test_epsilon=0.5)
    scores = [score_of(architecture, first, game, play, seed) for seed in (0, 0, 1, 2, 3)]
    assert scores[0] == scores[1]
    assert len({score["score"] for score in scores}) > 1
    assert opened == [False] * 15
