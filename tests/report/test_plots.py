import copy
import itertools
import sys

import matplotlib.image
import matplotlib.text
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from sample_results import curve, device, make_result

from manyhands.report.atomic import write_atomically
from manyhands.report.bars import devices_figure, together_figure
from manyhands.report.curves import curves_figure
from manyhands.report.graph import topology_figure
from manyhands.report.look import COLOURS, line_style
from manyhands.report.plots import compare_figure, figures, save_compare_png, save_pngs
from manyhands.report.reading import ACCURACY, Curve, median_curve, names_text, points_of


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def legend_labels(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def lines_by_label(figure):
    return {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}


def test_accuracy_shows_the_shared_network_bold_and_each_device_thin():
    result = make_result(5)
    figure = curves_figure(result)
    lines = lines_by_label(figure)
    shared = lines[next(label for label in lines if label.startswith("merged network"))]
    assert np.allclose(shared.get_ydata(), [point["accuracy"] for point in result["curve"]])
    singles = [line for label, line in lines.items() if label.split()[0] in result["topology"]["nodes"]]
    assert len(singles) == 5
    assert all(line.get_linewidth() < shared.get_linewidth() / 2 for line in singles)
    assert any(label.startswith("isolated") for label in legend_labels(figure))
    assert figure.axes[0].get_xlabel() == "time (min)"
    assert figure.axes[0].get_ylabel() == "accuracy"


def test_devices_with_the_same_curve_share_a_line():
    result = make_result(5)
    for i, entry in enumerate(result["devices"]):
        entry["name"] = f"phone-{i}"
        if 1 <= i <= 3:  # given the same network a moment apart
            entry["curve"] = [p | {"seconds": p["seconds"] + 0.001 * i} for p in curve(170, 0.9)]
    labels = [label.rpartition("  ")[0] for label in legend_labels(curves_figure(result))]
    assert sorted(labels) == ["isolated", "merged network", "phone-0", "phone-1 ... 3", "phone-4"]
    result["devices"][2]["curve"] = curve(120, 0.9)
    assert "phone-1, phone-3" in [label.rpartition("  ")[0] for label in legend_labels(curves_figure(result))]


def test_names_in_few_words():
    assert names_text(["a"]) == "a"
    assert names_text(["pi-1", "pi-2"]) == "pi-1, pi-2"
    assert names_text(["pi-1", "pi-2", "pi-4"]) == "pi-1, pi-2, pi-4"
    assert names_text([f"pi-{i}" for i in range(9, 20)]) == "pi-9 ... 19"
    assert names_text(["a", "b", "c", "d"]) == "a, b and 2 more"


def test_a_single_dot_may_reach_over_the_edge():
    result = make_result(1)
    result["curve"] = result["curve"][-1:]
    result["devices"][0]["curve"] = []
    dots = [
        *curves_figure(result).axes[0].get_lines(),
        *compare_figure({"one": result}).axes[0].get_lines(),
    ]
    assert [line.get_clip_on() for line in dots if len(line.get_xdata()) == 1] == [False, False]


def test_tick_labels_of_neighbouring_panels_do_not_touch():
    result = make_result(4)
    for entry in result["devices"]:
        entry.update(
            busy_seconds=7576.0, waiting_seconds=0.0, bytes_sent=757_600_000
        )  # ticks at the very end
    figure = devices_figure(result)
    figure.draw_without_rendering()
    boxes = [
        [tick.label1.get_window_extent() for tick in axes.xaxis.get_major_ticks() if _is_seen(axes, tick)]
        for axes in figure.axes
    ]
    for left, right in itertools.pairwise(boxes):
        assert min(box.x0 for box in right) - max(box.x1 for box in left) > left[0].height


def _is_seen(axes, tick):
    low, high = axes.get_xlim()
    return low <= tick.get_loc() <= high


def test_many_devices_become_a_median_and_a_band():
    figure = curves_figure(make_result(13))
    assert any("median of 13 devices" in label for label in legend_labels(figure))
    assert "lowest to highest device" in legend_labels(figure)
    assert len(lines_by_label(figure)) == 3


def test_twelve_lines_can_all_be_told_apart():
    assert len({str(line_style(i)) for i in range(18)}) == 18


def test_bars_show_time_traffic_and_energy_of_each_device():
    result = make_result(5)
    time, traffic, energy = devices_figure(result).axes
    busy = [bar.get_width() * 60 for bar in time.containers[0]]
    assert busy == pytest.approx([entry["busy_seconds"] for entry in result["devices"]])
    received = [bar.get_width() * 1e6 for bar in traffic.containers[1]]
    assert received == pytest.approx([entry["bytes_received"] for entry in result["devices"]])
    joules = [bar.get_width() * 1e3 for bar in energy.containers[0]]
    assert joules == pytest.approx([entry["energy_joules"] for entry in result["devices"]])
    assert [axes.get_xlabel() for axes in (time, traffic, energy)] == [
        "time (min)",
        "data (MB)",
        "energy (kJ)",
    ]
    assert [label.get_text() for label in time.get_yticklabels()] == result["topology"]["nodes"]


def test_more_than_25_devices_are_summed_up_by_kind():
    figure = devices_figure(make_result(60))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == 6
    assert "laptop × 10" in labels
    assert any("mean of its kind" in text for text in texts(figure))


def test_gains_and_losses_are_told_apart():
    result = make_result(2)
    result["devices"][0].update(accuracy_alone=0.7, accuracy=0.9)
    result["devices"][1].update(accuracy_alone=0.8, accuracy=0.75)
    figure = together_figure(result)
    shown = texts(figure)
    assert "90.0 %  (+20.0)" in shown
    assert "75.0 %  (-5.0)" in shown
    colours = {to_hex(line.get_color()) for line in figure.axes[0].get_lines()}
    assert {COLOURS["blue"], COLOURS["vermilion"]} <= colours


def test_no_gain_is_neither_gain_nor_loss():
    result = make_result(1)
    result["devices"][0].update(accuracy_alone=0.91003, accuracy=0.90997)
    figure = together_figure(result)
    assert "91.0 %  (+0.0)" in texts(figure)
    drawn = {to_hex(line.get_color()) for line in figure.axes[0].get_lines() if len(line.get_xdata())}
    assert drawn == {COLOURS["grey"]}


def test_without_figures_of_training_alone_there_is_no_gain_to_draw():
    result = make_result(3)
    for entry in result["devices"]:
        entry["accuracy_alone"] = None
    assert together_figure(result) is None
    assert set(figures(result)) == {"accuracy", "devices", "topology"}


@pytest.mark.parametrize("topology", ["star", "ring"])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_every_device_and_link_is_drawn(n, topology):
    result = make_result(n, topology=topology)
    result["topology"]["edges"] = [[a, b] for a, b in result["topology"]["edges"] if a != b]
    figure = topology_figure(result)
    axes = figure.axes[0]
    links = {frozenset(edge) for edge in result["topology"]["edges"]}
    assert len(axes.get_lines()) == len(links)
    drawn = sum(len(points.get_offsets()) for points in axes.collections if points.get_zorder() == 3)
    assert drawn == n
    assert "coordinator" in legend_labels(figure)
    if n <= 24:
        assert set(result["topology"]["nodes"]) <= set(texts(figure))


def test_area_of_a_node_follows_its_share():
    result = make_result(2)
    result["devices"][0]["share"], result["devices"][1]["share"] = 0.75, 0.25
    axes = topology_figure(result).axes[0]
    areas = [points.get_sizes()[0] for points in axes.collections if points.get_zorder() == 3]
    assert areas[0] / areas[1] == pytest.approx(3)


@pytest.mark.parametrize("n", [8, 30])
def test_an_irregular_graph_has_a_place_for_everyone(n):
    result = make_result(n, topology="ring")
    names = result["topology"]["nodes"]
    result["topology"]["edges"] += [[names[0], names[4]], [names[1], names[6]]]
    points = [c for c in topology_figure(result).axes[0].collections if c.get_zorder() == 3]
    places = {tuple(place) for collection in points for place in collection.get_offsets()}
    assert len(places) == n


def test_more_than_60_devices_are_drawn_by_kind():
    figure = topology_figure(make_result(100))
    shown = " ".join(texts(figure))
    assert "100 devices, 99 links" in shown
    assert "phone-mid × 17" in shown
    assert "with the coordinator" in shown


def test_a_comparison_has_a_line_and_bars_for_each_split():
    results = {"isolated": make_result(4), "homogeneous": make_result(4)}
    results["isolated"]["curve"] = []
    results["isolated"]["devices"][1]["accuracy"] = None
    left, right = compare_figure(results).axes
    assert len(left.get_lines()) == 2
    assert [len(bars) for bars in right.containers] == [3, 4]
    assert [bars.get_label() for bars in right.containers] == ["isolated", "homogeneous"]
    assert right.get_xlabel() == "accuracy"


def test_a_comparison_of_many_devices_is_by_kind():
    _, right = compare_figure({"a": make_result(13), "b": make_result(13)}).axes
    assert len(right.get_yticklabels()) == 6


SPARSE = [
    {},
    {"devices": None, "curve": None, "topology": None, "baseline": None, "events": None},
    {"devices": [{}], "curve": [{}], "topology": {"nodes": ["a"]}},
    {
        "devices": [{"name": "a", "curve": [{"seconds": 1.0, "accuracy": None}]}],
        "topology": {"edges": [["a", "b"]]},
    },
    {"devices": [{"name": "a", "accuracy": 0.5, "accuracy_alone": 0.5, "energy_joules": float("nan")}]},
    {"curve": [{"seconds": 0.0, "accuracy": 0.5}], "baseline": {"split": "isolated", "seconds": 3.0}},
]


@pytest.mark.parametrize("result", SPARSE)
def test_missing_parts_break_nothing(result):
    for figure in [*figures(result).values(), compare_figure({"one": result, "two": make_result(1)})]:
        assert isinstance(figure, Figure)
        figure.draw_without_rendering()


@pytest.mark.parametrize("key", ["curve", "topology", "baseline", "seconds", "accuracy"])
def test_any_key_of_a_result_may_be_missing(key):
    result = make_result(2)
    del result[key]
    assert figures(result)


def test_any_key_of_a_device_may_be_missing():
    keys = list(device(0))
    result = make_result(len(keys))
    for entry, key in zip(result["devices"], keys, strict=True):
        del entry[key]
    assert set(figures(result)) == {"accuracy", "together", "devices", "topology"}


def test_dollar_signs_are_not_mathematics():
    result = make_result(2)
    odd = r"$\frac"
    result["devices"][0]["name"] = result["devices"][0]["kind"] = odd
    result["topology"]["nodes"][0] = result["topology"]["edges"][0][0] = odd
    drawn = [*figures(result).values(), compare_figure({r"$\bad$ $": result})]
    for figure in drawn:
        figure.draw_without_rendering()
    texts = [text.get_text() for figure in drawn for text in figure.findobj(matplotlib.text.Text)]
    assert any(r"\frac" in text for text in texts)


def test_drawing_leaves_the_result_and_pyplot_alone(tmp_path):
    result = make_result(3)
    before, pyplot = copy.deepcopy(result), sys.modules.get("matplotlib.pyplot")
    paths = save_pngs(result, tmp_path / "new" / "folder")
    assert result == before
    assert [path.name for path in paths] == ["accuracy.png", "together.png", "devices.png", "topology.png"]
    assert sys.modules.get("matplotlib.pyplot") is pyplot
    pixels = matplotlib.image.imread(paths[0])
    assert pixels.shape[1] == 1800
    assert pixels[..., :3].std() > 0.01
    assert save_compare_png({"one": result}, tmp_path) == tmp_path / "compare.png"


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = write_atomically(tmp_path / "plot.png", b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), min_size=1), min_size=1, max_size=6))
def test_the_median_lies_between_lowest_and_highest(points):
    curves = []
    for pairs in points:
        ordered = sorted(dict(pairs).items())
        curves.append(Curve(np.array([t for t, _ in ordered]), np.array([a for _, a in ordered])))
    middle = median_curve(curves)
    assert np.all(middle.low <= middle.values + 1e-12)
    assert np.all(middle.values <= middle.high + 1e-12)
    assert not np.isnan(middle.values).any()


def test_a_curve_is_put_in_order_and_freed_of_gaps():
    entries = [*reversed(curve(10, 0.9, points=3)), {"seconds": 4.0, "accuracy": None}, {"accuracy": 0.1}]
    found = points_of({"curve": entries}, ACCURACY)
    assert list(found.x) == [0.0, 5.0, 10.0]
    assert points_of({"curve": []}, ACCURACY) is None
