"""What networks are judged by: accuracy or score, everywhere the same, and each in its own way."""

import io
import json

import pytest
from rich.console import Console
from sample_results import by_score, make_result
from test_page import read
from test_plots import legend_labels, texts
from test_sweep_report import make_comparison, shown_in_terminal

from manyhands.display import comparison_table, result_table
from manyhands.fleet import FleetSection, make_fleet
from manyhands.progress import LinesNowAndThen, LiveTable
from manyhands.report.page import write_compare_page, write_page
from manyhands.report.plots import compare_figure, figures, save_pngs
from manyhands.report.reading import ACCURACY, SCORE, measure_of, points_of
from manyhands.report.summary import Tally
from manyhands.report.sweep import sweep_figure, write_sweep_page

LABEL = "score (reward of a test episode)"


def shown(renderable):
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(renderable)
    return out.getvalue()


def compared_by_score(**changes):
    comparison = make_comparison(**changes)
    runs = [by_score(run) for run in comparison["runs"]]
    return {**comparison, "runs": runs, "measure": "score"}


@pytest.mark.parametrize("said", [{}, {"measure": None}, {"measure": "accuracy"}, {"measure": "beauty"}])
def test_what_does_not_say_score_is_judged_by_accuracy(said):
    assert measure_of(said) is ACCURACY


def test_the_two_are_written_in_their_own_way():
    assert (ACCURACY.text(0.9412), ACCURACY.short(0.9412), ACCURACY.tick(0.25)) == ("94.1 %", "94.1%", "25 %")
    assert (SCORE.text(12.34), SCORE.short(12.34), SCORE.tick(0.25)) == ("12.3", "12.3", "0.25")
    assert (SCORE.text(-0.04), SCORE.text(None), SCORE.short(None)) == ("0.0", "–", "-")
    assert (SCORE.gain_text(-21.0, -3.56), SCORE.gain_text(2.0, 1.96)) == ("+17.4", "+0.0")
    assert ACCURACY.range(0.831, 0.833, "-") == "83.1-83.3"
    assert SCORE.range(-21.0, -3.0, "-") == "-21.0 to -3.0"


def test_a_tally_has_both_keys_and_the_one_that_applies():
    for key, other in (("accuracy", "score"), ("score", "accuracy")):
        tally = Tally({"a": "a", "coordinator": "a"}, key)
        seen = {"seconds": 1.0, "round": 0, key: -3.5, "loss": 0.1}
        tally.add({"device": "a", "event": "evaluated", **seen})
        tally.add({"device": "coordinator", "event": "merged", **seen})
        tally.add({"seconds": 2.0, "device": "coordinator", "event": "merged", "round": 1})
        fleet = make_fleet(FleetSection.model_validate({"device": [{"name": "a", "kind": "laptop"}]}), seed=0)
        (figures,) = tally.device_figures(fleet, {"a": {}})
        assert (figures[key], figures[other]) == (-3.5, None)
        assert figures["accuracy_alone"] is figures["score_alone"] is None
        assert tally.curve == [{**seen, other: None, "examples": None}]
        assert figures["curve"] == [{**seen, other: None, "examples": 0}]
        assert points_of(figures, tally.measure).values == [-3.5]


def test_every_plot_of_a_run_is_of_the_score(tmp_path):
    result = by_score(make_result(3))
    drawn = figures(result)
    assert list(drawn) == ["score", "together", "devices", "topology"]
    assert drawn["score"].axes[0].get_ylabel() == drawn["together"].axes[0].get_xlabel() == LABEL
    assert drawn["score"].axes[0].get_title(loc="left") == "Score over time"
    assert drawn["score"].axes[0].get_ylim()[0] < 0
    assert "merged network  44.2" in legend_labels(drawn["score"])
    assert "43.0  (+13.0)" in texts(drawn["together"])
    assert next(path.name for path in save_pngs(result, tmp_path)) == "score.png"


def test_a_comparison_of_scores_shows_bars_on_both_sides_of_zero():
    result = by_score(make_result(2))
    result["devices"][0]["score"] = -20.6
    figure = compare_figure({"isolated": result})
    left, right = figure.axes
    assert (left.get_ylabel(), right.get_xlabel()) == (LABEL, LABEL)
    low, high = right.get_xlim()
    assert low < -20.6 < 43.8 < high
    (below,) = (text for text in right.texts if text.get_text() == "-20.6")
    assert below.get_ha() == "right"


def test_pages_and_tables_are_of_the_score(tmp_path):
    result = by_score(make_result(3))
    text = " ".join(read(write_page(result, "", tmp_path / "a")).text)
    for part in ("Score 45.1 merged network", "reward over training alone", "+13.0", "Score of a device"):
        assert part in text
    assert "ccuracy" not in text
    results = {"isolated": result, "homogeneous": by_score(make_result(3))}
    text = " ".join(read(write_compare_page(results, tmp_path / "b")).text)
    assert "Final score of each device (3)" in text
    assert "ccuracy" not in text
    lines = shown(result_table(result)) + shown(comparison_table(results))
    assert "test score 45.1 (merged network)" in lines
    assert "score of each device's network" in lines
    assert "%" not in lines
    assert "ccuracy" not in lines


@pytest.mark.parametrize("varied", [{}, {"key": None, "values": ()}])
def test_a_sweep_is_of_the_score(tmp_path, varied):
    comparison = compared_by_score(**varied)
    axes = sweep_figure(comparison).axes[0]
    assert (axes.get_ylabel() if comparison["key"] else axes.get_xlabel()) == LABEL
    page = " ".join(read(write_sweep_page(comparison, tmp_path / "x")).text)
    lines = shown_in_terminal(comparison)
    middle = "33.2 (33.1–33.3)" if comparison["key"] else "31.2 (31.1–31.3)"
    assert middle in page
    assert middle.replace("–", "-") in lines
    assert "ccuracy" not in page + lines
    assert "%" not in lines


def test_a_run_that_goes_on_shows_its_score(small_job):
    job, tally = small_job(), Tally({"a": "a"}, "score")
    console = Console(file=io.StringIO(), width=120, color_system=None)
    table, lines = LiveTable(console), LinesNowAndThen(console)
    lines._interval.due = lambda: True
    table("isolated", job, tally, None)
    assert "score" in shown(table._render())
    tally.add({"seconds": 0.0, "device": "a", "event": "evaluated", "round": 0, "score": -20.5, "loss": None})
    lines("isolated", job, tally, None)
    assert "mean score of devices -20.5" in console.file.getvalue()
    assert "-20.5" in shown(table._render())
    tally.add({"seconds": 0.0, "device": "a", "event": "merged", "round": 1, "score": 3.0, "loss": None})
    lines("isolated", job, tally, None)
    assert "simulated, score 3.0" in console.file.getvalue()
    assert "score 3.0" in shown(table._render())


def test_a_result_by_score_can_be_written():
    assert json.dumps(by_score(make_result(2)), allow_nan=False)
