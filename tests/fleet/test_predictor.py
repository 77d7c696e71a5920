from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import JobError
from manyhands.fleet import Use
from manyhands.fleet.measure import Pace
from manyhands.fleet.predictor import (
    Predictor,
    Regression,
    Sample,
    fit,
    mean_error,
    read_predictor,
    throughput,
    write_predictor,
)
from manyhands.fleet.profiling import Beside, loads_to_learn_from, profile_run, profile_runs

USES = [
    Use(cores, network, disk)
    for cores in (0.0, 0.2, 0.4, 0.6, 0.8)
    for network, disk in ((0, 0), (3e8, 0), (0, 5e8), (2e8, 1e9))
]


def samples_of(t0_s: float, regression: Regression) -> list[Sample]:
    return [Sample(use, t0_s * regression(use)) for use in USES]


@pytest.mark.parametrize("t0_s", [None, 0.002])
def test_a_regression_finds_the_law_behind_its_samples(t0_s: float | None) -> None:
    law = Regression(cores=0.3, squeeze=0.8, network=0.5, disk=0.1)
    found_t0_s, found = fit(samples_of(0.002, law), t0_s)
    assert found_t0_s == pytest.approx(0.002)
    for use in (Use(0.3, 1e8, 2e8), Use(0.7, 0, 0), Use(0.1, 5e8, 0)):
        assert found(use) == pytest.approx(law(use))
    assert mean_error(Predictor(found_t0_s, found), samples_of(0.002, law)) == pytest.approx(0, abs=1e-9)


def test_the_default_law_is_the_simulators() -> None:
    for cores in (0.0, 0.25, 0.5, 0.9):
        assert Regression()(Use(cores)) == pytest.approx(Use(cores).slowdown)


def test_what_seems_to_make_training_faster_counts_for_nothing() -> None:
    odd = [Sample(Use(c, n), 0.001 * (1 + c) * (1 - n / 1e10)) for c in (0.1, 0.3, 0.5) for n in (0, 1e9)]
    _, found = fit(odd)
    assert found.network == 0


def test_errors_are_relative() -> None:
    """A run that took long must not outweigh all others."""
    samples = [Sample(Use(0.0), 1.0), Sample(Use(0.0), 1.1), Sample(Use(0.9), 50.0)]
    t0_s, found = fit(samples)
    assert mean_error(Predictor(t0_s, found), samples) < 0.05


coefficient = st.floats(0, 10)
figure = st.floats(0, 1e10)


@given(st.tuples(*(coefficient,) * 4), st.floats(0, 1), figure, figure, st.floats(0, 1), figure, figure)
def test_more_contention_is_never_predicted_to_be_faster(
    law: tuple[float, float, float, float], c: float, n: float, d: float, dc: float, dn: float, dd: float
) -> None:
    predictor = Predictor(0.01, Regression(*law))
    less, more = Use(c, n, d), Use(min(c + dc, 1.0), n + dn, d + dd)
    assert 0.01 <= predictor.predict(less) <= predictor.predict(more) * (1 + 1e-12)


def test_t0_follows_a_machine_that_has_become_slower_but_not_a_hiccup() -> None:
    predictor = Predictor(0.001)
    use = Use(0.5)
    assert predictor.predict(use) == pytest.approx(0.002)
    for took_s in (0.002, 0.002, 0.9, 0.002):
        predictor.observe(use, took_s)
    assert predictor.predict(use) == pytest.approx(0.002)
    for _ in range(5):
        predictor.observe(Use(), 0.003)
    assert predictor.predict(use) == pytest.approx(0.006)
    for _ in range(5):
        predictor.observe(Use(), 0.001)
    assert predictor.predict(use) == pytest.approx(0.002)
    predictor.observe(use, float("inf"))
    predictor.observe(use, 0.0)
    assert predictor.predict(use) == pytest.approx(0.002)


def test_executors_add_up() -> None:
    assert throughput([0.5, 0.25, 1.0]) == 7.0
    assert throughput([]) == 0.0


def test_too_little_to_learn_from() -> None:
    with pytest.raises(ValueError, match="at least two"):
        fit([Sample(Use(), 1.0)])
    with pytest.raises(ValueError, match="t0 must be above 0"):
        Predictor(0.0)
    with pytest.raises(ValueError, match="not below 0"):
        Regression(cores=-0.1)


def test_a_predictor_is_kept(tmp_path: Path) -> None:
    law = Regression(0.25, 0.75, 0.5, 0.125)
    write_predictor(tmp_path / "p.json", 0.002, law, samples_of(0.002, law))
    again = read_predictor(tmp_path / "p.json")
    assert (again.t0_s, again.regression) == (0.002, law)
    assert len(json.loads((tmp_path / "p.json").read_text())["samples"]) == len(USES)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[]",
        '{"schema": 9, "t0_s": 1, "regression": {}}',
        '{"schema": 1, "t0_s": 0, "regression": {}}',
        '{"schema": 1, "t0_s": 1, "regression": {"cores": -1}}',
        '{"schema": 1, "t0_s": 1, "regression": {"cores": "x"}}',
        '{"schema": 1, "t0_s": 1, "regression": {"gpus": 1}}',
    ],
)
def test_what_is_no_predictor_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "p.json").write_text(text)
    with pytest.raises(JobError, match="manyhands profile --beside FILE"):
        read_predictor(tmp_path / "p.json")


# Profiling runs, with executors that only say that they trained.


class Pretended:
    pids = ()

    def __init__(self) -> None:
        self.asked: list[float] = []

    def run_for(self, seconds: float) -> list[Pace]:
        self.asked.append(seconds)
        return [Pace(0.5, 4, seconds), Pace(0.25, 8, seconds)]


def test_a_profiling_run_tells_what_an_executor_needs_on_average() -> None:
    executors = Pretended()
    sample = profile_run(executors, Beside(), 2.0)  # type: ignore[arg-type]
    assert throughput([sample.seconds_per_example] * 2) == pytest.approx(6.0)
    assert executors.asked[-1] == 2.0
    assert 0 <= sample.use.cores <= 1


def test_each_load_has_its_run() -> None:
    told = []
    loads = (Beside(), replace(Beside(), workers=2))
    made = profile_runs(Pretended(), loads, 0.1, lambda *what: told.append(what))  # type: ignore[arg-type]
    assert len(made) == 2
    assert told == [("nothing", 0, 2), ("nothing", 1, 2)]


def test_loads_go_from_none_to_all_cores() -> None:
    loads = loads_to_learn_from(4)
    assert loads[0] == loads[-1] == Beside()
    assert Beside(1.0, 4) in loads
    assert {load.job for load in loads} == {None, "wordcount", "sort"}
    assert Beside(0.5, 3).label == "3 x 50% of a core"
    assert Beside(job="sort", num_bytes=10**7).label == "1 x sort of 10 MB"
