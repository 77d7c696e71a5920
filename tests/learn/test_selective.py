"""Algorithm 2: effects, orders, where an epoch stops, and what it costs."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from manyhands.blocks import Weights, whole_model
from manyhands.data import Examples
from manyhands.learn.effects import effects_of
from manyhands.learn.holding import Gathered, Share
from manyhands.learn.ranking import (
    draw,
    iterations,
    needs_effects,
    rank,
    recalled_weights,
    shuffled,
    to_renew,
)
from manyhands.learn.selective import SelectivePhase
from manyhands.learn.supervised import Architecture, LearnSection, LocalPhase
from manyhands.models import ModelSection, build, cost_of
from manyhands.replica import Replica

MODEL = ModelSection(name="lenet5", size="small")
SHAPE, CLASSES = (1, 8, 8), 4
ORDERS = ["effect", "mixed", "turns", "sampled", "recalled", "random"]
WITHOUT_POINTS = ("recalled", "random")


def dice(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# The order, without a network.


def sets(*sizes: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [np.asarray(part) for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]


def numbers(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def test_the_papers_order_is_by_effect() -> None:
    never = np.full(4, -1)
    ranked = rank("effect", numbers(0.1, 2.0, 0.5, np.inf), never, 0, dice())
    assert ranked.tolist() == [3, 1, 2, 0]
    assert rank("mixed", numbers(0.1, 2.0, 0.5, np.nan), never, 0, dice()).tolist() == [3, 1, 2, 0]


def test_taking_turns_begins_with_what_was_left_out_the_longest() -> None:
    ranked = rank("turns", numbers(9.0, 1.0, 2.0, 5.0), np.array([3, -1, -1, 2]), 4, dice())
    assert ranked.tolist() == [2, 1, 3, 0]


def test_sampling_favours_large_effects_and_long_waits() -> None:
    effects, last = numbers(*[1.0] * 50, *[10.0] * 50, *[1.0] * 50), np.array([4] * 100 + [-5] * 50)
    first = np.concatenate([rank("sampled", effects, last, 5, dice(n))[:30] for n in range(40)])
    counts = [int(((first >= k) & (first < k + 50)).sum()) for k in (0, 50, 100)]
    assert counts[1] > 4 * counts[0]
    assert counts[2] > 4 * counts[0]
    assert counts[0] > 0  # nobody is shut out


@pytest.mark.parametrize("order", ["effect", "mixed", "turns", "sampled"])
def test_every_set_has_its_place(order: Any) -> None:
    effects = dice(1).random(20).astype(np.float32)
    assert sorted(rank(order, effects, np.full(20, -1), 0, dice()).tolist()) == list(range(20))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(0, 99),
)
def test_batches_are_of_whole_sets_until_the_limit(
    sizes: list[int], batch_size: int, limit: int, seed: int
) -> None:
    members, order = sets(*sizes), dice(seed).permutation(len(sizes))
    batches, used = iterations(order, members, batch_size, limit)
    stream = np.concatenate([members[i] for i in order])
    processed = np.concatenate(batches)
    assert processed.tolist() == stream[: min(limit, len(stream))].tolist()
    for batch in batches[:-1]:
        assert len(batch) >= batch_size
    # A batch holds no set more than it takes to reach the batch size.
    largest = max(sizes)
    assert all(len(batch) < batch_size + largest + 1 for batch in batches)
    assert sum(len(members[i]) for i in order[:used]) >= len(processed)


def test_the_batches_of_a_small_case() -> None:
    batches, used = iterations(np.array([2, 0, 1]), sets(2, 3, 2), 3, 7)
    assert [batch.tolist() for batch in batches] == [[5, 6, 0, 1], [2, 3, 4]]
    assert used == 3
    batches, used = iterations(np.array([2, 0, 1]), sets(2, 3, 2), 3, 5)
    assert [batch.tolist() for batch in batches] == [[5, 6, 0, 1, 2]]  # a single one joins those before it


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 300), st.integers(0, 99))
def test_mixing_keeps_what_the_order_chose(sizes: list[int], limit: int, seed: int) -> None:
    members, order = sets(*sizes), dice(seed).permutation(len(sizes))
    picked, used = shuffled(order, members, min(limit, sum(sizes)), dice(seed))
    stream = np.concatenate([members[i] for i in order])
    assert sorted(picked.tolist()) == sorted(stream[: min(limit, len(stream))].tolist())
    assert used <= len(sizes)


def test_effects_are_renewed_where_training_has_changed_them_then_in_turn() -> None:
    renewed, last = np.array([5, 2, 7, -1, 3]), np.array([6, 0, 6, -1, -1])
    assert to_renew(renewed, last, 4).tolist() == [3, 0, 1, 4]
    assert to_renew(renewed, last, 0).tolist() == []


def test_an_order_that_mixes_needs_no_effects_where_nothing_is_left_out() -> None:
    assert [needs_effects(order, 1.0) for order in ORDERS] == [True, False, False, False, False, False]
    assert [needs_effects(order, 0.5) for order in ORDERS] == [True, True, True, True, False, False]


def test_what_was_hard_when_last_trained_on_is_drawn_more_often_and_nobody_is_shut_out() -> None:
    losses, last = numbers(*[0.0] * 50, *[1.0] * 50), np.array([3] * 100)
    weights = recalled_weights(losses, last)
    assert weights[-1] / weights[0] == pytest.approx(1.05 / 0.05)  # a tenth of the mean is everybody's
    first = np.concatenate([draw(weights, 30, dice(n)) for n in range(40)])
    easy = int((first < 50).sum())
    assert 0 < easy < 0.3 * len(first)
    assert all(len(set(draw(weights, 60, dice(n)).tolist())) == 60 for n in range(5))


def test_what_was_never_trained_on_counts_as_the_newest_do_on_average() -> None:
    losses, last = numbers(5.0, np.nan, 1.0, 3.0, np.inf), np.array([0, -1, 2, 2, 1])
    weights = recalled_weights(losses, last)
    assert weights - weights[2] + 1.0 == pytest.approx([5.0, 2.0, 1.0, 3.0, 2.0])
    assert recalled_weights(numbers(np.nan, np.nan), np.array([-1, -1])).tolist() == [1.0, 1.0]
    assert (recalled_weights(numbers(0.0, 0.0), np.array([0, 0])) > 0).all()


# With a network.


def architecture() -> Architecture:
    network = build(MODEL, SHAPE, CLASSES, seed=1)
    return Architecture("selective", lambda: build(MODEL, SHAPE, CLASSES, seed=1), cost_of(network, SHAPE))


def pictures(count: int, seed: int = 0) -> Examples:
    rng = dice(seed)
    x = rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    return Examples(torch.from_numpy(x), torch.from_numpy(rng.integers(0, CLASSES, count)))


def share(owner: str, count: int, size: int = 4, seed: int = 0) -> Share:
    examples = pictures(count, seed)
    members = tuple(np.arange(count)[first : first + size] for first in range(0, count, size))

    def gather() -> Gathered:
        return Gathered(examples.take([own[0] for own in members]), members)

    return Share(owner, examples, gather)


def phase(order: Any = "effect", renew: float = 1.0, count: int = 80, **shares: Share) -> SelectivePhase:
    made = architecture()
    own = share("x", count)
    learn = LearnSection(batch_size=8, learning_rate=0.05)
    state = build(MODEL, SHAPE, CLASSES, seed=1).state_dict()
    plain = LocalPhase("x", made, whole_model(state), own.examples, learn, 3, keep_optimizer=False)
    return SelectivePhase(plain, {"x": own, **shares}, order, renew)


def first_blocks() -> dict[str, Weights]:
    return {"model": Weights(build(MODEL, SHAPE, CLASSES, seed=1).state_dict())}


def fresh() -> Replica:
    return Replica(Weights({}))


def seen(trained: SelectivePhase, monkeypatch: pytest.MonkeyPatch, **part: Any) -> list[list[int]]:
    """The labels and sizes of an epoch's batches, as the network was given them."""
    batches: list[list[int]] = []
    original = LocalPhase.trained

    def spy(self: LocalPhase, start: Any, replica: Replica, given_: Any, *note: Any) -> Any:
        kept = [(x, y) for x, y in given_]
        batches.extend([_places(trained, x) for x, _ in kept])
        return original(self, start, replica, kept, *note)

    monkeypatch.setattr(LocalPhase, "trained", spy)
    trained.part(fresh(), first_blocks(), 0, **part).run()
    return batches


def _places(trained: SelectivePhase, x: torch.Tensor) -> list[int]:
    everything = torch.cat([own.examples.x for own in trained.shares.values()])
    return [int((everything == row).flatten(1).all(1).nonzero()[0]) for row in x]


def test_an_effect_is_the_loss_of_a_point() -> None:
    points = pictures(30, 5)
    module = build(MODEL, SHAPE, CLASSES, seed=1).eval()
    with torch.no_grad():
        expected = F.cross_entropy(module(points.x.float() / 255), points.y, reduction="none")
    found = effects_of(architecture(), module.state_dict(), points)
    assert found == pytest.approx(expected.numpy(), rel=1e-5)
    assert len(effects_of(architecture(), module.state_dict(), pictures(0))) == 0


def test_the_sets_of_the_worst_points_are_trained_on_first(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = phase("effect")
    gathered = trained.shares["x"].gathered
    effects = effects_of(trained.architecture, first_blocks()["model"], gathered.points)
    worst = np.argsort(-effects, kind="stable")
    expected = np.concatenate([gathered.members[i] for i in worst]).tolist()
    batches = seen(trained, monkeypatch, ratio=0.5)
    plan = trained.plan(0.5)
    assert [place for batch in batches for place in batch] == expected[: plan.examples]
    assert [len(batch) for batch in batches[:-1]] == [8] * (len(batches) - 1)


def test_mixed_takes_the_same_sets_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        papers = seen(phase("effect"), patch, ratio=0.5)
    with monkeypatch.context() as patch:
        mixed = seen(phase("mixed"), patch, ratio=0.5)
    assert sorted(chain(*mixed)) == sorted(chain(*papers))
    assert mixed != papers


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_costs_what_it_is_charged_and_stays_in_its_time(order: Any) -> None:
    trained = phase(order, renew=0.1)
    cost = trained.architecture.cost
    whole = trained.plan(1.0)
    assert whole.examples == 80
    for ratio in (0.9, 0.5, 0.2, 0.05):
        plan = trained.plan(ratio)
        work = trained.part(fresh(), first_blocks(), 0, ratio)
        facts = work.run().facts
        assert work.flops == plan.flops
        assert work.flops == facts["examples"] * cost.train_flops + facts["points"] * cost.forward_flops
        points = 0 if order in WITHOUT_POINTS else 20
        budget = ratio * (80 * cost.train_flops + points * cost.forward_flops)
        assert plan.flops <= budget + 2 * cost.train_flops
        assert facts["points"] * cost.forward_flops <= 0.1 * budget + 1
        assert (facts["points"] > 0) == (order not in WITHOUT_POINTS)


def test_what_an_epoch_left_out_comes_first_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = phase("turns", renew=0.5)
    places: list[int] = []
    original = LocalPhase.trained

    def spy(self: LocalPhase, start: Any, replica: Replica, given_: Any) -> Any:
        kept = list(given_)
        places.extend(place for x, _ in kept for place in _places(trained, x))
        return original(self, start, replica, kept)

    monkeypatch.setattr(LocalPhase, "trained", spy)
    replica, blocks = fresh(), first_blocks()
    while len(places) < 80:
        outcome = trained.part(replica, blocks, replica.num_rounds, 0.25).run()
        replica, blocks = replica.after(outcome), {"model": outcome.weights["update/model"]}
        assert len(replica.memory) == 1
    # Sets are of four, and an epoch may end within one.
    assert len(set(places[:80])) >= 80 - 3 * replica.num_rounds


def test_training_leaves_the_loss_of_each_example_that_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = phase("recalled")
    with monkeypatch.context() as patch:
        batches = seen(trained, patch, ratio=0.5)
    outcome = trained.part(fresh(), first_blocks(), 0, 0.5).run()
    notes = fresh().after(outcome).memory[-1]
    assert set(notes) == {"x/loss", "x/last"}
    known = notes["x/loss"].isfinite().nonzero().flatten().tolist()
    assert known == sorted(chain(*batches)) == (notes["x/last"] == 0).nonzero().flatten().tolist()
    assert len(known) == 40
    # Those of the first batch were seen by the network as it was.
    module = build(MODEL, SHAPE, CLASSES, seed=1).train()
    own = trained.shares["x"].examples.take(batches[0])
    expected = F.cross_entropy(module(own.x.float() / 255), own.y, reduction="none")
    assert notes["x/loss"][batches[0]].numpy() == pytest.approx(expected.detach().numpy(), rel=1e-4)


def test_an_epoch_goes_to_what_was_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = phase("recalled")
    hard = {
        "x/loss": torch.where(torch.arange(80) < 16, 100.0, 0.0),
        "x/last": torch.zeros(80, dtype=torch.int32),
    }
    replica = Replica(Weights({}), num_rounds=1, memory=(Weights(hard),))
    places: list[int] = []
    original = LocalPhase.trained

    def spy(self: LocalPhase, start: Any, replica: Replica, given_: Any, note: Any) -> Any:
        kept = list(given_)
        places.extend(place for x, _ in kept for place in _places(trained, x))
        return original(self, start, replica, kept, note)

    monkeypatch.setattr(LocalPhase, "trained", spy)
    outcome = trained.part(replica, first_blocks(), 1, 0.2).run()
    assert len(places) == 16
    assert sum(place < 16 for place in places) >= 10
    left = sorted(set(range(80)) - set(places))
    after = replica.after(outcome).memory[-1]
    assert torch.equal(after["x/loss"][left], hard["x/loss"][left])  # what was not seen is remembered
    assert not torch.equal(after["x/loss"][places], hard["x/loss"][places])


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_epoch_twice_is_the_same(order: Any) -> None:
    results = []
    for _ in range(2):
        outcome = phase(order).part(fresh(), first_blocks(), 0, 0.6).run()
        results.append(outcome.weights["update/model"])
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.mark.parametrize("order", ORDERS)
def test_data_taken_up_is_trained_on_beside_ones_own(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = phase(order, y=share("y", 40, seed=9))
    assert trained.plan(1.0, ("y",)).examples == 120
    batches = seen(trained, monkeypatch, ratio=1.0, taken=("y",))
    assert sorted(place for batch in batches for place in batch) == list(range(120))


def test_notes_on_data_that_is_given_back_are_kept() -> None:
    trained = phase("turns", y=share("y", 40, seed=9))
    replica = fresh().after(trained.part(fresh(), first_blocks(), 0, 0.5, ("y",)).run())
    replica = replica.after(trained.part(replica, first_blocks(), 1, 0.5).run())
    notes = replica.memory[-1]
    assert {"x/effect", "x/last", "x/renewed", "y/effect", "y/last", "y/renewed"} == set(notes)
    assert int(notes["y/last"].max()) == 0
    assert int(notes["x/last"].max()) == 1


def test_making_points_is_a_work_of_its_own() -> None:
    work = phase("effect").prepare()
    assert (work.name, work.run().facts) == ("aggregate", {"points": 20})
    assert phase("random").prepare().run().facts == {"points": 0}
