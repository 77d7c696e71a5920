import re
from pathlib import Path

import pytest

from manyhands.fleet import CATALOG, FleetSection, make_fleet
from manyhands.fleet.catalog import FIGURES

DEVICES_PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


def test_holds_the_kinds_it_promises():
    assert list(CATALOG) == [
        "raspberry-pi-3b",
        "raspberry-pi-4",
        "raspberry-pi-5",
        "jetson-nano",
        "jetson-orin-nano",
        "phone-low",
        "phone-mid",
        "laptop",
        "xeon-18-core",
        "workstation-titan-xp",
        "workstation-rtx-2080-ti",
    ]


@pytest.mark.parametrize("name", CATALOG)
def test_every_figure_is_possible_and_has_a_source(name):
    kind = CATALOG[name]
    assert kind.name == name
    assert set(kind.sources) == set(FIGURES)
    for figure in FIGURES:
        assert getattr(kind, figure) > 0
        assert len(kind.sources[figure]) > 10
    assert kind.idle_watts < kind.active_watts
    assert kind.torch_device == "cpu"


@pytest.mark.parametrize("name", CATALOG)
def test_an_estimated_rate_follows_from_the_stated_peak(name):
    kind = CATALOG[name]
    found = re.search(r"(\d+) % of a peak of ([\d.]+) ([GT])FLOP/s", kind.sources["flops"])
    if name == "workstation-rtx-2080-ti":
        expected = 1.22 * CATALOG["workstation-titan-xp"].flops
    else:
        assert found
        expected = int(found[1]) / 100 * float(found[2]) * {"G": 1e9, "T": 1e12}[found[3]]
    assert kind.flops == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", CATALOG)
def test_every_kind_makes_a_device(name):
    section = FleetSection(device=[{"kind": name}])
    assert make_fleet(section, seed=0)[name].flops == CATALOG[name].flops


@pytest.mark.parametrize("name", CATALOG)
def test_the_documentation_agrees(name):
    kind = CATALOG[name]
    rows = [line for line in DEVICES_PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert rows, f"{name} is missing from docs/devices.md"
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[1:] == [
        kind.title,
        f"{kind.flops / 1e9:g}",
        f"{kind.cores}",
        f"{kind.memory_bytes / 1024**3:g}",
        f"{kind.bandwidth_bps / 1e6:g}",
        f"{kind.latency_s * 1e3:g}",
        f"{kind.active_watts:g}",
        f"{kind.idle_watts:g}",
    ]
