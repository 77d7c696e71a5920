from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from manyhands.engine.faults import Crash, Fault, Faults, Partition, SlowDown, finish_time

slow_downs = st.lists(
    st.builds(
        lambda start, length, factor: SlowDown(
            kind="slow_down", device="a", from_s=start, until_s=start + length, factor=factor
        ),
        st.floats(0, 50),
        st.floats(0.1, 50),
        st.floats(1, 10),
    ),
    max_size=4,
)


@given(st.floats(0, 100), st.floats(0, 100), slow_downs)
def test_slow_downs_never_speed_up_and_never_slow_more_than_their_product(
    start: float, work: float, slow: list[SlowDown]
) -> None:
    took = finish_time(start, work, slow) - start
    worst = 1.0
    for fault in slow:
        worst *= fault.factor
    assert work - 1e-9 <= took <= work * worst + 1e-6


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50), slow_downs)
def test_work_cut_in_two_takes_as_long_as_the_whole(
    start: float, a: float, b: float, slow: list[SlowDown]
) -> None:
    in_two = finish_time(finish_time(start, a, slow), b, slow)
    assert in_two == pytest.approx(finish_time(start, a + b, slow), abs=1e-6)


def test_a_slow_down_counts_only_while_it_lasts() -> None:
    slow = SlowDown(kind="slow_down", device="a", from_s=10, until_s=20, factor=5)
    assert finish_time(0, 10, [slow]) == 10
    assert finish_time(5, 10, [slow]) == 5 + 5 + 10 + 3  # 5 s at full speed, 10 s for 2 s of work, 3 s
    assert finish_time(20, 1, [slow]) == 21


def test_a_partition_cuts_between_its_groups_while_it_lasts() -> None:
    split = Partition(kind="partition", groups=(("a", "b"), ("c",)), from_s=1, until_s=2)
    faults = Faults([split])
    assert faults.cut(1.5, "a", "c")
    assert not faults.cut(1.5, "a", "b")
    assert not faults.cut(1.5, "a", "d")
    assert not faults.cut(2.0, "a", "c")


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "crash", "device": "a", "at_s": 2, "restart_at_s": 1},
        {"kind": "loss", "probability": 1.5},
        {"kind": "loss", "from_s": 3, "until_s": 3},
        {"kind": "slow_down", "device": "a", "factor": 0.5},
        {"kind": "earthquake"},
        {"kind": "partition", "groups": [["a"]]},
        {"kind": "delay"},
    ],
)
def test_nonsense_is_refused(said: dict) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Fault).validate_python(said)


def test_a_table_finds_its_kind_by_name() -> None:
    assert isinstance(TypeAdapter(Fault).validate_python({"kind": "crash", "device": "a", "at_s": 2}), Crash)
