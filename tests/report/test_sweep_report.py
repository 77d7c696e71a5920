import copy
import io

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console
from test_page import read
from test_plots import legend_labels, texts

from manyhands.display import sweep_tables
from manyhands.report.look import COLOURS
from manyhands.report.spread import key_label, panels, value_text
from manyhands.report.sweep import save_sweep_png, sweep_figure, write_sweep_page

SHARE = "fleet.device[weak].share"
BASE = {"isolated": 0.5, "homogeneous": 0.7, "cascade": 0.8}


def make_comparison(devices=("powerful", "weak"), key=SHARE, values=(0.1, 0.2, 0.5), seeds=(1, 2, 3)):
    """Accuracies that a test can compute: by split, plus 0.01 a device and a value, plus 0.001 a seed."""
    runs = [
        {
            "split": split,
            "value": value,
            "seed": seed,
            "folder": f"{split}/{seed}",
            "hash": "3f9a1c",
            "complete": True,
            "rounds": 20,
            "accuracy": 0.9,
            "seconds": 12.0,
            "bytes_sent": 5_000_000,
            "devices": [
                {
                    "name": name,
                    "kind": "laptop" if d % 2 else "phone",
                    "share": 0.5,
                    "size": "full",
                    "accuracy": BASE[split] + 0.01 * d + 0.01 * v + 0.001 * seed,
                }
                for d, name in enumerate(devices)
            ],
        }
        for split in BASE
        for v, value in enumerate(values or (None,))
        for seed in seeds
    ]
    return {
        "schema": 1,
        "job": "figure 4",
        "key": key,
        "values": list(values),
        "seeds": list(seeds),
        "splits": list(BASE),
        "runs": runs,
        "failed": [],
    }


def shown_in_terminal(comparison):
    console = Console(width=160, file=io.StringIO())
    console.print(sweep_tables(comparison))
    return console.file.getvalue()


def test_a_panel_has_the_median_and_the_range_over_the_seeds():
    powerful, weak = panels(make_comparison())
    assert (powerful.label, weak.label) == ("powerful", "weak")
    assert weak.spreads["cascade", 2] == pytest.approx((0.832, 0.831, 0.833, 3))
    assert len(weak.spreads) == 9


def test_each_device_has_a_panel_with_a_line_and_a_shade_for_each_split():
    figure = sweep_figure(make_comparison())
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["powerful", "weak"]
    weak = figure.axes[1]
    lines = {line.get_label(): line for line in weak.get_lines()}
    assert list(lines) == list(BASE)
    assert list(lines["isolated"].get_xdata()) == [0.1, 0.2, 0.5]
    assert np.allclose(lines["isolated"].get_ydata(), [0.512, 0.522, 0.532])
    shade = weak.collections[0].get_paths()[0].vertices
    assert (shade[:, 1].min(), shade[:, 1].max()) == pytest.approx((0.511, 0.533))
    assert weak.get_xlabel() == "share of the data on weak"
    assert figure.axes[0].get_ylim() == weak.get_ylim()
    assert legend_labels(figure) == list(BASE)
    assert len({(line.get_color(), line.get_marker()) for line in lines.values()}) == 3


def test_one_seed_has_no_shade_and_no_word_of_a_median():
    figure = sweep_figure(make_comparison(seeds=(1,)))
    assert not figure.axes[0].collections
    assert not any("median" in text for text in texts(figure))


def test_values_that_are_no_numbers_stand_side_by_side():
    figure = sweep_figure(make_comparison(key="exchange.mode", values=("asynchronous", "synchronous")))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["asynchronous", "synchronous"]
    assert list(axes.get_lines()[0].get_xdata()) == [0, 1]
    assert axes.get_xlabel() == "exchange.mode"


def test_values_far_apart_are_on_a_logarithmic_axis():
    assert sweep_figure(make_comparison(values=(0.001, 0.01, 0.1))).axes[0].get_xscale() == "log"
    assert sweep_figure(make_comparison()).axes[0].get_xscale() == "linear"


def test_values_in_any_order_make_a_line_from_left_to_right():
    line = sweep_figure(make_comparison(values=(0.5, 0.1))).axes[0].get_lines()[0]
    assert list(line.get_xdata()) == [0.1, 0.5]


def test_more_than_six_devices_are_summed_up_by_kind():
    comparison = make_comparison(devices=[f"d{i}" for i in range(7)])
    phones, laptops = panels(comparison)
    assert (phones.label, laptops.label) == ("phone × 4", "laptop × 3")
    assert laptops.spreads["isolated", 0].median == pytest.approx(0.5 + 0.03 + 0.002)
    figure = sweep_figure(comparison)
    assert len(figure.axes) == 2
    assert any("7 devices: the mean of each kind" in text for text in texts(figure))


def test_seeds_alone_have_a_row_for_each_device():
    figure = sweep_figure(make_comparison(key=None, values=()))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["powerful", "weak"]
    assert [line.get_label() for line in axes.get_lines()] == list(BASE)
    assert "51.2 %" in texts(figure)


def test_a_run_that_is_missing_leaves_a_gap(tmp_path):
    comparison = make_comparison(seeds=(1,))
    gone = comparison["runs"].pop(1)
    comparison["failed"] = [{**gone, "error": "memory <ran> out"}]
    comparison["runs"][0]["devices"][1]["accuracy"] = None
    powerful, weak = sweep_figure(comparison).axes
    assert list(powerful.get_lines()[0].get_xdata()) == [0.1, 0.5]
    assert list(weak.get_lines()[0].get_xdata()) == [0.5]
    assert "memory <ran> out" in " ".join(read(write_sweep_page(comparison, tmp_path / "x.html")).text)
    assert " - " in shown_in_terminal(comparison)


def test_the_page_has_the_plot_a_table_for_each_device_and_every_run(tmp_path):
    reader = read(write_sweep_page(make_comparison(), tmp_path / "report.html"))
    text = " ".join(reader.text)
    for part in ("Accuracy of powerful", "Accuracy of weak", "83.2 % (83.1–83.3)", f"varied: {SHARE}"):
        assert part in text
    assert "seeds 1, 2, 3" in text
    assert text.count("5.00 MB") == 27
    assert len(reader.images) == 1


def test_the_terminal_has_a_table_for_each_device():
    text = shown_in_terminal(make_comparison())
    assert "accuracy of powerful" in text
    assert "accuracy of weak" in text
    assert "83.2% (83.1-83.3)" in text
    assert "share of the data on weak" in text
    one = shown_in_terminal(make_comparison(seeds=(1,)))
    assert "83.1%" in one
    assert "(" not in one
    alone = shown_in_terminal(make_comparison(key=None, values=()))
    assert "accuracy of each device" in alone
    assert "81.2% (81.1-81.3)" in alone


def test_what_comes_from_outside_is_escaped_and_no_mathematics(tmp_path):
    evil = "</text></svg><script>alert('$x$')</script> $\\frac"
    comparison = make_comparison(devices=(evil, "[bold]b"), key=evil, values=(evil, "[red]"))
    assert "script" not in read(write_sweep_page(comparison, tmp_path / "x.html")).tags
    assert "[bold]b" in shown_in_terminal(comparison)
    assert "[red]" in shown_in_terminal(comparison)


@pytest.mark.parametrize("missing", ["runs", "values", "seeds", "splits", "failed"])
def test_missing_parts_break_nothing(tmp_path, missing):
    comparison = make_comparison()
    comparison[missing] = []
    if missing in ("values", "splits"):
        comparison["runs"] = []
    assert read(write_sweep_page(comparison, tmp_path / "x.html")).text


def test_the_plot_is_a_picture_and_leaves_the_figures_alone(tmp_path):
    comparison = make_comparison()
    before = copy.deepcopy(comparison)
    path = save_sweep_png(comparison, tmp_path)
    assert path == tmp_path / "compare.png"
    assert matplotlib.image.imread(path)[..., :3].std() > 0.01
    assert comparison == before


def test_the_page_follows_light_and_dark(tmp_path):
    html = write_sweep_page(make_comparison(), tmp_path / "x.html").read_text(encoding="utf-8")
    drawing = html[html.index("<body>") :]
    assert not any(colour in drawing for colour in COLOURS.values())


def test_keys_and_values_read_well():
    assert key_label("fleet.device[2].share") == "share of the data on device 2"
    assert key_label("fleet.device[weak].flops") == "flops of weak"
    assert key_label("learn.batch_size") == "learn.batch_size"
    assert (value_text(0.05), value_text(True), value_text("a b")) == ("0.05", "true", "a b")
    assert value_text([1, 2]) == "[1, 2]"
