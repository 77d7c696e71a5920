"""Sizes in the terminal and on the page: which network a device has, and why it was given that one."""

import io
import json

import pytest
from rich.console import Console
from sample_results import make_result
from typer.testing import CliRunner

from manyhands.cli import app
from manyhands.display import comparison_table, result_table, sweep_tables
from manyhands.report.page import write_page
from manyhands.report.sweep import write_sweep_page

TOO_LARGE = "full takes 464 KiB of memory and {name} has 195 KiB"


def sized(*sizes, reasons=()):
    result = make_result(len(sizes))
    for device, size in zip(result["devices"], sizes, strict=True):
        device.update(size=size, size_reason=None)
    for device, reason in zip(result["devices"], reasons, strict=False):
        device["size_reason"] = reason and reason.format(name=device["name"])
    return result


def shown(result, width=120):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(result_table(result))
    return out.getvalue().splitlines()


def head_and_rows(lines, count):
    return lines[1].split(), [line.split() for line in lines[2 : 2 + count]]


def test_sizes_have_a_column_where_they_differ():
    head, rows = head_and_rows(shown(sized("small", "full", "full")), 3)
    assert head[:2] == ["device", "size"]
    assert [row[1] for row in rows] == ["small", "full", "full"]


def test_equal_sizes_that_the_job_named_have_none():
    lines = shown(sized("full", "full"))
    assert "size" not in lines[1].split()
    assert len(lines) == 4


def test_a_chosen_size_is_shown_even_if_all_are_equal():
    lines = shown(sized("small", "small", reasons=[TOO_LARGE]))
    assert lines[1].split()[:2] == ["device", "size"]
    assert [line.split()[:2] for line in lines[-1:]] == [["raspberry-pi-3b-0", "small"]]
    assert "full takes 464 KiB of memory and it has 195 KiB" in lines[-1]


def test_devices_with_the_same_reason_share_a_line():
    reasons = [TOO_LARGE, TOO_LARGE, "the largest there is", None]
    lines = shown(sized("small", "small", "full", "full", reasons=reasons))
    legend = lines[lines.index("") + 2 :]
    assert [" ".join(line.split()) for line in legend] == [
        "raspberry-pi-3b-0, raspberry-pi-4-1 small full takes 464 KiB of memory and it has 195 KiB",
        "jetson-nano-2 full the largest there is",
    ]


def test_many_devices_with_one_reason_are_counted():
    legend = shown(sized(*["small"] * 6, reasons=[TOO_LARGE] * 6))[-1]
    assert legend.startswith("raspberry-pi-3b-0, raspberry-pi-4-1 and 4 more small")


def test_results_without_reasons_are_still_shown():
    result = make_result(2)
    assert all("size_reason" not in device for device in result["devices"])
    assert len(shown(result)) == 4


@pytest.mark.parametrize(
    ("coordinator", "size", "said"),
    [
        ("a", "medium", "test accuracy 95.1% (merged network, size medium)"),
        ("a", None, "test accuracy 95.1% (merged network)"),
        (None, None, "test accuracy 95.1% (mean of the devices' networks)"),
    ],
)
def test_the_headline_says_whose_accuracy_it_is(coordinator, size, said):
    result = make_result(2) | {"merged_size": size, "num_notable": 1}
    result["topology"]["coordinator"] = coordinator
    assert shown(result, 160)[0].endswith(f"{said}, 1 thing went wrong")
    del result["merged_size"]
    assert "95.1% (" in shown(result, 160)[0]


def test_no_gain_is_not_green():
    result = make_result(2)
    result["devices"][0].update(accuracy_alone=0.90996, accuracy=0.91004)
    result["devices"][1].update(accuracy_alone=0.7126, accuracy=0.8704)
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system="standard").print(result_table(result))
    same, better = out.getvalue().splitlines()[2:4]
    assert "\x1b[1m   91.0%" in same
    assert "+0.0" in same
    assert "\x1b[1;32m   87.0%" in better
    assert "+15.7" in better


def compared(results, width=80):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(comparison_table(results))
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_comparison_has_a_line_with_the_sizes_of_each_device_where_they_differ():
    one, other = sized("small", "small"), sized("small", "full")
    other |= {"split": "capacity", "form": "stem", "merged_size": "small"}
    title, heads, _, sizes, _, more_sizes, merged, merged_size, *rest = compared(
        {"homogeneous": one, "capacity": other}
    )
    assert " ".join(title) == "accuracy of each device's network, and what each split took"
    assert heads == ["device", "homogeneous", "capacity", "(stem)"]
    assert (sizes, more_sizes) == (["size", "small", "small"], ["size", "small", "full"])
    assert merged == ["merged", "network", "95.1%", "95.1%"]
    assert merged_size == ["size", "small"]
    assert [line[0] for line in rest] == ["time", "sent", "energy"]
    same = compared({"homogeneous": sized("small", "small"), "isolated": sized("small", "small")})
    assert "size" not in [line[0] for line in same]
    one["topology"]["coordinator"] = None
    assert ["mean", "of", "networks", "95.1%"] in compared({"homogeneous": one})


def run_of(split, value, *sizes, form=None):
    devices = [{"name": f"d{i}", "kind": "k", "size": s, "accuracy": 0.9} for i, s in enumerate(sizes)]
    return {"split": split, "form": form, "value": value, "seed": 1, "devices": devices}


def swept(key, values, runs):
    splits = list(dict.fromkeys(run["split"] for run in runs))
    whole = {"key": key, "values": values, "seeds": [1], "splits": splits, "runs": runs, "failed": []}
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(sweep_tables(whole))
    return [line.split() for line in out.getvalue().splitlines()], whole


def test_a_sweep_has_the_sizes_once_or_where_they_change(tmp_path):
    lines, whole = swept(
        "k",
        [1, 2],
        [run_of(*which, "small", "small") for which in (("homogeneous", 1), ("homogeneous", 2))]
        + [run_of("stem", value, "small", size, form="stem") for value, size in ((1, "medium"), (2, "full"))],
    )
    assert lines[1] == ["k", "homogeneous", "stem"]
    assert [line for line in lines if line and line[0] == "size"] == [
        ["size", "small", "small"],
        ["size", "small", "medium"],
        ["size", "small", "full"],
    ]
    html = write_sweep_page(whole, tmp_path / "a").read_text(encoding="utf-8")
    assert html.count("<small>full</small>") == 1
    assert "<h2>Runs (4)</h2>" in html


def test_a_sweep_of_seeds_has_the_sizes_and_names_the_form(tmp_path):
    lines, whole = swept(None, [], [run_of("capacity", None, "small", "full", form="depth")])
    assert lines[1:] == [
        ["device", "capacity", "(depth)"],
        ["d0", "90.0%"],
        ["size", "small"],
        ["d1", "90.0%"],
        ["size", "full"],
    ]
    html = write_sweep_page(whole, tmp_path / "a").read_text(encoding="utf-8")
    assert '<th scope="col">capacity (depth)</th>' in html
    assert '<th scope="col">Value</th>' not in html
    assert "size" not in [line[0] for line in swept(None, [], [run_of("isolated", None, "full")])[0]]


def test_ranges_of_many_splits_fit_into_80_columns():
    splits = ["isolated", "homogeneous", "stem", "cascade", "width", "depth"]
    device = {"name": "phone", "kind": "phone-low", "share": 1.0, "size": "small"}
    runs = [
        {"split": split, "value": None, "seed": seed, "devices": [device | {"accuracy": 0.9 + seed / 100}]}
        for split in splits
        for seed in (1, 2, 3)
    ]
    comparison = {"key": None, "values": [], "seeds": [1, 2, 3], "splits": splits, "runs": runs, "failed": []}
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(sweep_tables(comparison))
    _, heads, medians, ranges = out.getvalue().splitlines()
    assert heads.split() == ["device", *splits]
    assert medians.split() == ["phone", *["92.0%"] * 6]
    assert ranges.split() == ["91.0-93.0"] * 6


def test_terminal_and_page_name_the_form(tmp_path):
    result = make_result(2) | {"split": "capacity", "form": "cascade"}
    assert shown(result)[0].startswith("quick start: cascade, ")
    assert "split: capacity (cascade)" in write_page(result, "", tmp_path / "a.html").read_text(
        encoding="utf-8"
    )
    result |= {"split": "homogeneous", "form": None}
    assert shown(result)[0].startswith("quick start: homogeneous, ")


@pytest.mark.parametrize("reason", [TOO_LARGE, "<b>full</b> & more"])
def test_the_page_says_why_a_size_was_chosen(tmp_path, reason):
    result = sized("small", "full", reasons=[reason])
    html = write_page(result, "", tmp_path / "report.html").read_text(encoding="utf-8")
    said = reason.format(name=result["devices"][0]["name"])
    escaped = said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert html.count(f'<small class="reason">why not larger: {escaped}</small>') == 1
    assert html.count('class="reason"') == 1


def test_the_page_gives_no_reason_for_the_largest_size(tmp_path):
    result = sized("small", "full", reasons=[TOO_LARGE, "the largest there is"])
    html = write_page(result, "", tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.count("why not larger") == 1
    assert "the largest there is" not in html


def test_the_page_says_nothing_of_sizes_that_the_job_named(tmp_path):
    html = write_page(sized("small", "full"), "", tmp_path / "report.html").read_text(encoding="utf-8")
    assert "size small" in html
    assert "why not larger" not in html


def test_the_list_of_networks_says_which_come_in_any_width():
    listed = CliRunner().invoke(app, ["models"]).output
    line = next(line for line in listed.splitlines() if line.startswith("In any width"))
    assert line.endswith("lenet5, cifar_cnn, vgg16, mobilenet_v2, dqn.")
    rows = json.loads(CliRunner().invoke(app, ["models", "--json"]).output)
    assert {row["name"]: row["any_width"] for row in rows} == {
        "lenet5": True,
        "two_conv": False,
        "cifar_cnn": True,
        "alexnet": False,
        "vgg16": True,
        "squeezenet": False,
        "mobilenet_v2": True,
        "yolov2": False,
        "dqn": True,
    }
