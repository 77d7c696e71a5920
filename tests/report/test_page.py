import re
from html.parser import HTMLParser

import pytest
from sample_results import make_result
from test_plots import SPARSE, legend_labels

from manyhands.report.look import COLOURS
from manyhands.report.page import write_compare_page, write_page
from manyhands.report.plots import compare_figure

JOB = 'name = "quick start"\n[fleet]\ntopology = "star" # <b>&'
VOID = {"meta", "br", "use", "path", "rect"}


class Reader(HTMLParser):
    """Checks that elements nest and collects what a test asks for."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.images, self.text, self.tags = [], [], [], [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        if given.get("role") == "img":
            self.images.append(given.get("aria-label"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    result = make_result(5)
    result["devices"][3]["lost_at_seconds"] = 120.0
    return write_page(result, JOB, tmp_path_factory.mktemp("run") / "report.html")


def test_is_well_formed_with_unique_ids(page):
    reader = read(page)
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.tags >= {"h1", "table", "figure", "svg", "details"}


def test_needs_nothing_from_elsewhere_and_runs_nothing(page):
    html = page.read_text(encoding="utf-8")
    assert "://" not in html
    assert "@import" not in html
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", html)
    assert not re.search(r"<(script|link|img|iframe)\b", html)
    assert "default-src 'none'" in html


def test_references_within_a_drawing_resolve(page):
    html = page.read_text(encoding="utf-8")
    ids = set(read(page).ids)
    used = re.findall(r'href="#([^"]+)"', html) + re.findall(r"url\(#([^)]+)\)", html)
    assert used
    assert set(used) <= ids


def test_says_the_headlines_the_devices_the_events_and_the_job(page):
    text = " ".join(read(page).text)
    for expected in (
        "95.1 %",
        "3 min 00 s",
        "21.6 MB",
        "Mean gain",
        "1 lost on the way",
        "lost at 2 min 00 s",
    ):
        assert expected in text
    for expected in ("raspberry-pi-3b-0", "+13.0", "61.7 k", "17.2 MiB", "update holds a NaN", "crash"):
        assert expected in text
    assert JOB in text


def test_every_plot_is_described(page):
    images = read(page).images
    assert len(images) == 4
    assert "95.1 % after 3 min 00 s" in images[0]
    assert "5 devices and 4 links, with raspberry-pi-3b-0 as coordinator" in images[3]


def test_follows_light_and_dark(page):
    html = page.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in html
    for name in COLOURS:
        assert html.count(f"--{name}: ") == 2
    drawings = html[html.index("<body>") :]
    assert "var(--ink)" in drawings
    left = set(re.findall(r"#[0-9a-f]{6}\b", drawings))
    assert not left, f"colours that do not follow the setting: {left}"


def test_is_the_same_to_the_byte_each_time(tmp_path):
    result = make_result(2)
    del result["topology"]
    first = write_page(result, JOB, tmp_path / "a.html")
    again = write_page(result, JOB, tmp_path / "b.html")
    assert first.read_bytes() == again.read_bytes()


def test_escapes_all_that_comes_from_outside(tmp_path):
    evil = "</text></svg><script>alert('x')</script>"
    result = make_result(3)
    result["job"] = result["split"] = result["hash"] = result["engine"] = result["model"] = evil
    result["devices"][0].update(name=evil, kind=evil, size=evil)
    result["topology"]["nodes"][0] = result["topology"]["coordinator"] = evil
    result["topology"]["edges"] = [[evil, name] for name in result["topology"]["nodes"][1:]]
    result["events"] = [{"seconds": 1, "device": evil, "event": evil, "detail": evil}]
    one = write_page(result, evil, tmp_path / "one.html")
    two = write_compare_page({evil: result}, tmp_path / "two.html")
    for path in (one, two):
        assert "script" not in read(path).tags
        assert "<script" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("result", SPARSE[1:4])
def test_a_sparse_result_still_makes_a_page(result, tmp_path):
    assert read(write_page(result, "", tmp_path / "report.html")).text
    assert read(write_compare_page({"one": result}, tmp_path / "compare.html")).text


def test_many_events_are_cut_and_counted(tmp_path):
    result = {"events": make_result(2)["events"] * 150, "num_notable": 777}
    text = " ".join(read(write_page(result, "", tmp_path / "report.html")).text)
    assert "The first 200 of 777" in text
    result["events"] = []
    assert "no refused update" in " ".join(read(write_page(result, "", tmp_path / "report.html")).text)


def heads(path):
    return re.findall(r'<th scope="col">([^<]*)</th>', path.read_text(encoding="utf-8"))


def test_columns_in_which_nothing_stands_are_left_out(tmp_path):
    result = make_result(2)
    assert {"Alone", "Together", "Gain", "Examples trained"} <= set(
        heads(write_page(result, "", tmp_path / "a"))
    )
    for entry in result["devices"]:
        entry["accuracy_alone"] = entry["energy_joules"] = None
    shown = heads(write_page(result, "", tmp_path / "b"))
    assert shown[:4] == ["Device", "Accuracy", "Busy", "Waiting"]
    assert not {"Alone", "Together", "Gain", "Energy"} & set(shown)
    rows = re.findall(r"<tr>(.*?)</tr>", (tmp_path / "b").read_text(encoding="utf-8"))
    assert {row.count("<td") for row in rows if "raspberry" in row and "<small>" in row} == {10}


def test_a_gain_is_green_a_loss_red_and_none_neither(tmp_path):
    result = make_result(3)
    for entry, alone in zip(result["devices"], (0.5, 0.90004, 0.95), strict=True):
        entry.update(accuracy=0.9, accuracy_alone=alone)
    html = write_page(result, "", tmp_path / "report.html").read_text(encoding="utf-8")
    for cell in ('<td class="up">+40.0</td>', "<td>+0.0</td>", '<td class="down">-5.0</td>'):
        assert html.count(cell) == 1
    assert "1 of 3 better off" in html


def test_the_card_says_whose_accuracy_it_is(tmp_path):
    result = make_result(3) | {"merged_size": "medium", "rounds": 1, "merges": 5}
    text = " ".join(read(write_page(result, "", tmp_path / "a")).text)
    assert "95.1 % merged network, size medium" in text
    assert "1 round; 5 merges" in text
    result["topology"]["coordinator"] = result["merged_size"] = None
    text = " ".join(read(write_page(result, "", tmp_path / "a")).text)
    assert "95.1 % mean of the devices' networks" in text
    assert "Mean of networks" in heads(write_compare_page({"homogeneous": result}, tmp_path / "b"))
    result["accuracy"] = None
    assert "93.8 % mean of devices" in " ".join(read(write_page(result, "", tmp_path / "a")).text)


def test_boxes_that_scroll_say_how_much_is_in_them_and_open_in_print(tmp_path):
    result = make_result(5)
    html = write_page(result, "", tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h2>Devices (5)</h2>" in html
    assert "<h2>Notable events (2)</h2>" in html
    assert ".scroll, .tall { max-height: none; overflow: visible; }" in html[html.index("@media print") :]


def test_a_comparison_has_the_sizes_where_they_differ_and_the_form(tmp_path):
    results = {
        "homogeneous": make_result(2),
        "capacity": make_result(2) | {"split": "capacity", "form": "width"},
    }
    results["homogeneous"]["split"] = "homogeneous"
    path = write_compare_page(results, tmp_path / "a")
    assert "capacity (width)" in heads(path)
    assert "capacity (width)" in legend_labels(compare_figure(results))
    for result, sizes in zip(results.values(), (("small", "small"), ("small", "full")), strict=True):
        for entry, size in zip(result["devices"], sizes, strict=True):
            entry["size"] = size
    html = write_compare_page(results, tmp_path / "b").read_text(encoding="utf-8")
    assert html.count("%<small>small</small></td>") == 3
    assert html.count("%<small>full</small></td>") == 1
    assert "<td>93.0 %</td>" in path.read_text(encoding="utf-8")


def test_a_comparison_sets_splits_and_devices_side_by_side(tmp_path):
    results = {"isolated": make_result(3), "homogeneous": make_result(4)}
    results["isolated"]["accuracy"] = None
    reader = read(write_compare_page(results, tmp_path / "compare.html"))
    text = " ".join(reader.text)
    for expected in ("compared: isolated, homogeneous", "Weakest device", "93.8 %", "phone-mid-3", "–"):
        assert expected in text
    assert len(reader.images) == 1
    assert "homogeneous ends at 95.1 %" in reader.images[0]


def test_no_split_to_compare_is_no_crash(tmp_path):
    assert read(write_compare_page({}, tmp_path / "compare.html")).text
