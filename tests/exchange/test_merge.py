from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.blocks import Weights
from manyhands.errors import UpdateRefused
from manyhands.exchange.coordination import ExchangeSection, accept_updates
from manyhands.exchange.merge import MergeSection, check_update, clip_change, merge
from manyhands.hand import Message

values = st.floats(-100, 100, width=32)
updates = st.lists(
    st.tuples(st.floats(0.5, 1000), st.lists(values, min_size=3, max_size=3)), min_size=1, max_size=9
).map(lambda rows: [(weight, {"w": torch.tensor(row)}) for weight, row in rows])


@given(updates)
def test_the_mean_is_weighted_by_data(rows: list) -> None:
    total = sum(weight for weight, _ in rows)
    expected = sum(weight / total * tensors["w"].double() for weight, tensors in rows)
    assert torch.allclose(merge(MergeSection(), rows)["w"].double(), expected, atol=1e-3)


@given(updates, st.sampled_from(["mean", "median", "trimmed_mean", "krum", "multi_krum"]))
def test_every_rule_stays_between_what_was_said(rows: list, rule: str) -> None:
    merged = merge(MergeSection(rule=rule, trim=0.2), rows)["w"]
    said = torch.stack([tensors["w"] for _, tensors in rows])
    assert (merged >= said.min(0).values - 1e-3).all()
    assert (merged <= said.max(0).values + 1e-3).all()


@given(updates, st.sampled_from(["median", "trimmed_mean"]), st.randoms(use_true_random=False))
def test_order_statistics_do_not_depend_on_order_or_weights(rows: list, rule: str, dice: object) -> None:
    section = MergeSection(rule=rule, trim=0.2)
    shuffled = [(1.0, tensors) for _, tensors in rows]
    dice.shuffle(shuffled)
    assert torch.allclose(merge(section, rows)["w"], merge(section, shuffled)["w"], atol=1e-4)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum"])
def test_one_liar_in_five_does_not_move_a_robust_rule(rule: str) -> None:
    honest = [(1.0, {"w": torch.tensor([1.0 + 0.01 * k])}) for k in range(4)]
    liar = (1e6, {"w": torch.tensor([1e9])})
    merged = merge(MergeSection(rule=rule, trim=0.2), [*honest, liar])["w"]
    assert 1.0 <= float(merged) <= 1.04
    assert float(merge(MergeSection(), [*honest, liar])["w"]) > 1e6


def test_a_median_of_an_even_number_lies_in_the_middle() -> None:
    rows = [(1.0, {"w": torch.tensor([float(k)])}) for k in (0, 1, 3, 10)]
    assert float(merge(MergeSection(rule="median"), rows)["w"]) == 2.0


def test_counters_stay_whole_numbers() -> None:
    rows = [(1.0, {"n": torch.tensor(4)}), (3.0, {"n": torch.tensor(9)})]
    merged = merge(MergeSection(), rows)["n"]
    assert merged.dtype == torch.int64
    assert int(merged) == 8  # 7.75


def test_merging_leaves_its_inputs_alone() -> None:
    first = torch.ones(2)
    merge(MergeSection(), [(1.0, {"w": first}), (1.0, {"w": torch.zeros(2)})])
    assert first.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ({}, "names differ: w"),
        ({"w": torch.zeros(2), "x": torch.zeros(1)}, "names differ: x"),
        ({"w": torch.zeros(3)}, r"w is \(3,\)"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, "float64"),
        ({"w": torch.tensor([0.0, float("nan")])}, "not finite"),
        ({"w": torch.tensor([float("inf"), float("-inf")])}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(update: dict, reason: str) -> None:
    with pytest.raises(UpdateRefused, match=reason):
        check_update(update, {"w": torch.zeros(2)})


def test_huge_but_finite_values_pass() -> None:
    huge = {"w": torch.full((4,), 3e38)}
    assert not huge["w"].sum().isfinite()  # the cheap look alone would refuse it
    check_update(huge, {"w": torch.zeros(4)})


def test_clipping_shortens_the_step_and_only_a_long_one() -> None:
    current = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor(3)}
    far = {"w": torch.tensor([4.0, 5.0]), "n": torch.tensor(4)}
    clipped, norm = clip_change(far, current, 1.0)
    assert norm == pytest.approx(5.0)
    assert clipped["w"].tolist() == pytest.approx([1.6, 1.8])
    assert int(clipped["n"]) == 4
    same, _ = clip_change(far, current, 6.0)
    assert same["w"] is far["w"]


def test_krum_takes_the_update_in_the_thickest_crowd_and_multi_krum_leaves_out_the_loneliest() -> None:
    places = [0.0, 0.1, 0.2, 0.9, 5.0]
    rows = [(1.0 + n, {"w": torch.tensor([x]), "n": torch.tensor(n)}) for n, x in enumerate(places)]
    # Of five with one bad each is held against its two nearest: 0.1 has them at 0.1 each.
    one = merge(MergeSection(rule="krum"), rows)
    assert float(one["w"]) == pytest.approx(0.1)
    assert int(one["n"]) == 1
    many = merge(MergeSection(rule="multi_krum"), rows)
    assert float(many["w"]) == pytest.approx((0 * 1 + 0.1 * 2 + 0.2 * 3 + 0.9 * 4) / 10)
    two_bad = merge(MergeSection(rule="multi_krum", faulty=2), rows)
    assert float(two_bad["w"]) == pytest.approx((0 * 1 + 0.1 * 2 + 0.2 * 3) / 6)


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
def test_krum_of_one_or_two_is_still_one_of_them_or_their_mean(rule: str) -> None:
    rows = [(1.0, {"w": torch.tensor([2.0])}), (1.0, {"w": torch.tensor([4.0])})]
    assert float(merge(MergeSection(rule=rule), rows[:1])["w"]) == 2.0
    assert 2.0 <= float(merge(MergeSection(rule=rule), rows)["w"]) <= 4.0


def test_a_change_is_shortened_to_what_is_usual() -> None:
    current = {"model": Weights({"w": torch.zeros(4)})}
    lengths = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 400.0}
    said = {
        peer: Message("update", blocks={"model": Weights({"w": torch.tensor([length, 0.0, 0.0, 0.0])})})
        for peer, length in lengths.items()
    }
    section = ExchangeSection(merge=MergeSection(clip_factor=2.0))
    kept, refused = accept_updates(section, current, said, dict.fromkeys(said, ("model",)))
    assert not refused
    assert {peer: float(kept[peer]["model"]["w"][0]) for peer in kept} == {"a": 1, "b": 2, "c": 3, "d": 5}


def test_clipping_to_what_is_usual_needs_several_updates() -> None:
    with pytest.raises(ValueError, match="clip_factor needs several updates"):
        ExchangeSection(mode="asynchronous", merge=MergeSection(clip_factor=2.0))
