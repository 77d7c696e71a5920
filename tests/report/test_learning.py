"""Learning curves of a sweep."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from sample_results import by_score
from test_page import read
from test_plots import legend_labels, texts
from test_sweep_report import BASE, make_comparison

from manyhands.report.learning import learning_figure
from manyhands.report.sweep import sweep_figure, write_sweep_page


def results_of(comparison, rounds=5):
    """For each run, devices that get better by 0.01 a round until they are what the comparison says."""
    return [
        {
            **run,
            "devices": [
                {
                    **device,
                    "curve": [
                        {"seconds": r, "round": r, "accuracy": device["accuracy"] - 0.01 * (rounds - r)}
                        for r in range(rounds + 1)
                    ],
                }
                for device in run["devices"]
            ],
        }
        for run in comparison["runs"]
    ]


def drawn(smooth=1, rounds=5, **changes):
    comparison = make_comparison(**changes)
    return learning_figure(comparison, results_of(comparison, rounds), smooth)


def panel(figure, row, column, columns):
    axes = figure.axes[row * columns + column]
    return axes, {line.get_label(): line for line in axes.get_lines()}


def test_a_row_a_device_a_column_a_value_and_a_line_a_split():
    figure = drawn()
    assert len(figure.axes) == 6
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["powerful", "weak"]
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        f"share of the data on weak: {value}" for value in (0.1, 0.2, 0.5)
    ]
    axes, lines = panel(figure, 1, 2, 3)
    assert list(lines) == list(BASE) == legend_labels(figure)
    assert list(lines["cascade"].get_xdata()) == [0, 1, 2, 3, 4, 5]
    assert np.allclose(lines["cascade"].get_ydata(), 0.832 - 0.01 * np.arange(5, -1, -1))
    shade = axes.collections[0].get_paths()[0].vertices
    assert (shade[:, 1].min(), shade[:, 1].max()) == pytest.approx((0.531 - 0.05, 0.533))
    assert axes.get_xlabel() == "rounds"
    assert {"accuracy", "median of 3 seeds, range from lowest to highest"} <= set(texts(figure))


def test_splits_have_the_colours_of_the_other_plots():
    other = {
        line.get_label(): to_hex(line.get_color()) for line in sweep_figure(make_comparison()).axes[0].lines
    }
    assert {line.get_label(): to_hex(line.get_color()) for line in drawn().axes[0].lines} == other


def test_seeds_alone_have_one_column_and_one_seed_no_shade():
    figure = drawn(key=None, values=(), seeds=(1,))
    assert len(figure.axes) == 2
    assert not any(axes.collections for axes in figure.axes)
    assert not any("median" in text for text in texts(figure))


def test_a_sliding_window_takes_the_mean_of_the_last_points():
    _, lines = panel(drawn(smooth=3, seeds=(1,)), 0, 0, 3)
    rough = 0.501 - 0.01 * np.arange(5, -1, -1)
    expected = [rough[max(0, i - 2) : i + 1].mean() for i in range(6)]
    assert np.allclose(lines["isolated"].get_ydata(), expected)
    assert any("each point is the mean of 3" in text for text in texts(drawn(smooth=3)))


def test_the_window_slides_over_each_seed_before_the_median():
    comparison = make_comparison(key=None, values=(), seeds=(1, 2, 3))
    results = results_of(comparison, rounds=1)
    for result, (first, last) in zip(results, [(0.0, 0.9), (0.3, 0.3), (0.9, 0.0)] * 3, strict=True):
        for point, value in zip(result["devices"][0]["curve"], (first, last), strict=True):
            point["accuracy"] = value
    _, lines = panel(learning_figure(comparison, results, 2), 0, 0, 1)
    assert lines["isolated"].get_ydata()[-1] == pytest.approx(0.45)  # not the mean of two medians, 0.3


def test_many_devices_are_the_mean_of_their_kind():
    devices = [f"d{i}" for i in range(7)]
    figure = drawn(devices=devices, seeds=(1,))
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["phone × 4", "laptop × 3"]
    _, lines = panel(figure, 1, 0, 3)
    assert lines["isolated"].get_ydata()[-1] == pytest.approx(0.501 + 0.03)
    assert any("7 devices: the mean of each kind" in text for text in texts(figure))


def test_scores_are_drawn_against_the_steps_of_the_device():
    comparison = make_comparison()
    results = [by_score(result) for result in results_of(comparison)]
    for result in results:
        for device, steps in zip(result["devices"], (1000, 250), strict=True):
            device["steps_per_round"] = steps
            device["curve"] = [{**point, "examples": point["round"] * steps} for point in device["curve"]]
    comparison = {**comparison, "runs": [by_score(run) for run in comparison["runs"]], "measure": "score"}
    figure = learning_figure(comparison, results)
    assert "score (reward of a test episode)" in texts(figure)
    _, powerful = panel(figure, 0, 0, 3)
    axes, weak = panel(figure, 1, 0, 3)
    assert list(powerful["isolated"].get_xdata()) == [0, 1000, 2000, 3000, 4000, 5000]
    assert list(weak["isolated"].get_xdata()) == [0, 250, 500, 750, 1000, 1250]
    assert weak["isolated"].get_ydata()[-1] == pytest.approx(1.2)
    assert axes.get_xlabel() == "steps"


def test_seeds_that_were_measured_at_other_rounds_or_lost_still_count():
    comparison = make_comparison(key=None, values=(), seeds=(1, 2, 3))
    results = results_of(comparison)
    del results[0]["devices"][0]["curve"][1::2]  # measured in every other round
    del results[1]["devices"][0]["curve"][3:]  # lost after two
    results[2]["devices"][0]["curve"] = []
    _, lines = panel(learning_figure(comparison, results), 0, 0, 1)
    assert list(lines["isolated"].get_xdata()) == [0, 1, 2, 4]
    assert lines["isolated"].get_ydata()[-1] == pytest.approx(0.501 - 0.01)
    assert lines["isolated"].get_ydata()[1] == pytest.approx(0.5015 - 0.04)


@pytest.mark.parametrize("points", [[], [{"seconds": 1.0, "round": 5, "accuracy": 0.5}]])
def test_what_was_measured_at_the_end_only_has_no_curve(points):
    comparison = make_comparison()
    results = results_of(comparison)
    for result in results:
        for device in result["devices"]:
            device["curve"] = points
    assert learning_figure(comparison, results) is None


def test_the_page_shows_them_below_the_plot(tmp_path):
    evil = "</text></svg><script>alert('$x$')</script> $\\frac"
    comparison = make_comparison(devices=(evil, "b"), key=evil, values=(evil, "$"))
    figure = learning_figure(comparison, results_of(comparison))
    reader = read(write_sweep_page(comparison, tmp_path / "x.html", figure))
    assert len(reader.images) == 2
    assert reader.images[1] == "Accuracy of each device while it learns."
    assert "script" not in reader.tags
    assert len(reader.ids) == len(set(reader.ids))
