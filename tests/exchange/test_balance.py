"""Algorithm 1: the same time for everybody, who has failed, and who takes their data up."""

from __future__ import annotations

from math import inf, isclose

from hypothesis import given
from hypothesis import strategies as st

from manyhands.exchange.balance import Announced, balance, heirs, with_inheritance

SPEEDS = st.floats(0.01, 1e6)
SIZES = st.integers(1, 10**6)
FLEETS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2), st.builds(Announced, SPEEDS, SIZES), min_size=1, max_size=12
)


def test_the_fastest_goes_through_all_and_the_others_through_as_much_as_that_leaves_them() -> None:
    found = balance({"gpu": Announced(100.0, 1000), "cpu": Announced(20.0, 1000), "pi": Announced(5.0, 500)})
    assert found.epoch_s == 10.0
    assert found.ratios == {"gpu": 1.0, "cpu": 0.2, "pi": 0.1}
    assert not found.halted
    assert found.failed == ()


@given(FLEETS)
def test_everybody_takes_the_same_time(said: dict[str, Announced]) -> None:
    found = balance(said)
    assert found.ratios.keys() == said.keys()
    assert max(found.ratios.values()) == 1.0
    for name, ratio in found.ratios.items():
        assert 0 < ratio <= 1
        assert isclose(ratio * said[name].num_examples / said[name].throughput, found.epoch_s, rel_tol=1e-9)


BUSY = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2),
    st.builds(Announced, SPEEDS, SIZES, st.floats(0, 100)),
    min_size=1,
    max_size=12,
)


@given(BUSY, st.floats(0.05, 1.0))
def test_what_an_epoch_takes_besides_training_is_part_of_its_time(
    said: dict[str, Announced], part: float
) -> None:
    found = balance(said, part=part)
    first = min(said, key=lambda n: said[n].fixed_s + part * said[n].training_s)
    assert found.ratios[first] == max(found.ratios.values()) == part  # the first leaves out nothing
    for name, ratio in found.ratios.items():
        assert ratio > 0
        took_s = said[name].fixed_s + ratio * said[name].training_s
        late_s = max(said[name].fixed_s - 0.99 * found.epoch_s, 0) + 1e-6 * found.epoch_s
        assert took_s <= found.epoch_s + late_s  # nobody is later than what it does besides makes it
        assert took_s >= found.epoch_s * (1 - 1e-6) or ratio == part


def test_a_device_that_is_slow_beside_training_trains_less() -> None:
    said = {"gpu": Announced(100.0, 1000, 0.5), "pi": Announced(10.0, 500, 3.0)}
    found = balance(said)
    assert found.epoch_s == 10.5
    assert found.ratios == {"gpu": 1.0, "pi": 0.15}
    assert balance(said | {"pi": Announced(10.0, 500, 20.0)}).ratios["pi"] > 0  # with no time left, a little


@given(FLEETS)
def test_the_order_of_announcements_changes_nothing(said: dict[str, Announced]) -> None:
    shuffled = dict(sorted(said.items(), reverse=True))
    assert balance(shuffled).ratios == balance(said).ratios
    assert balance(shuffled).epoch_s == balance(said).epoch_s


def test_one_below_the_threshold_has_failed() -> None:
    said = {name: Announced(10.0, 100) for name in "abcdefghij"} | {"x": Announced(0.0009, 100)}
    found = balance(said, least_throughput=0.001, failure_threshold=0.1)
    assert found.failed == ("x",)
    assert "x" not in found.ratios
    assert not found.halted  # one of eleven is less than a tenth
    assert balance(said, failure_threshold=0.05).halted


def test_when_all_have_failed_there_is_nothing_to_balance() -> None:
    found = balance({"a": Announced(0.0, 10), "b": Announced(0.0, 10)})
    assert (found.ratios, found.epoch_s, found.halted) == ({}, 0.0, True)
    assert balance({}).ratios == {}


def test_one_without_data_stops_nobody() -> None:
    found = balance({"a": Announced(1.0, 0), "b": Announced(1.0, 10), "c": Announced(1.0, 20)})
    assert found.ratios == {"a": 1.0, "b": 1.0, "c": 0.5}


def test_data_is_taken_up_by_a_holder_that_is_there_and_first_done() -> None:
    said = {
        "a": Announced(0.0, 100),
        "b": Announced(0.0, 100),
        "c": Announced(10.0, 100),
        "d": Announced(50.0, 100),
        "e": Announced(10.0, 100),
    }
    holders = {"a": ("b", "c", "d"), "b": ("c", "e"), "c": ("d",)}
    found = heirs(["a", "b"], holders, said)
    assert found == {"a": "d", "b": "c"}
    grown = with_inheritance(said, found)
    assert (grown["d"].num_examples, grown["c"].num_examples, grown["e"].num_examples) == (200, 200, 100)
    assert balance(grown).ratios == {"c": 0.2, "d": 1.0, "e": 0.4}


def test_several_heirs_share_the_burden() -> None:
    said = {name: Announced(10.0, 100) for name in "abcd"} | {"x": Announced(0, 100), "y": Announced(0, 100)}
    found = heirs(["x", "y"], {"x": ("a", "b"), "y": ("a", "b")}, said)
    assert set(found.values()) == {"a", "b"}


def test_data_that_nobody_has_a_copy_of_is_nobodys() -> None:
    said = {"a": Announced(0.0, 100), "b": Announced(1.0, 100)}
    assert heirs(["a"], {}, said) == {}
    assert heirs(["a"], {"a": ("x",)}, said) == {}


@given(FLEETS, st.sets(st.text("abcdefgh", min_size=1, max_size=2)))
def test_no_data_is_lost_or_doubled_on_the_way(said: dict[str, Announced], down: set[str]) -> None:
    said = {name: Announced(0.0, s.num_examples) if name in down else s for name, s in said.items()}
    failed = balance(said).failed
    names = list(said)
    holders = {name: tuple(n for n in names if n != name) for name in names}
    found = heirs(failed, holders, said)
    assert set(found) == (set(failed) if len(failed) < len(said) else set())
    grown = with_inheritance(said, found)
    kept = sum(grown[name].num_examples for name in names if name not in failed)
    assert kept == (sum(s.num_examples for s in said.values()) if len(failed) < len(said) else 0)
    assert all(ratio < inf for ratio in balance(grown).ratios.values())
