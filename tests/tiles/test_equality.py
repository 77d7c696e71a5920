from __future__ import annotations

import pytest
from cases import make_network, tiled_step
from crew import Crew

from manyhands.models import FAMILIES
from manyhands.tiles import even_plan, read_graph


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    crew = Crew(6, tmp_path_factory.mktemp("crew"))
    yield crew
    crew.stop()


def check_same(crew, spec, plan, tolerance=1e-10, **options):
    found = crew(plan.num_tiles, tiled_step, spec, plan, options)
    assert len({one["digest"] for one in found}) == 1, "ranks differ"
    for rank, one in enumerate(found):
        worst = sorted(((error, name) for name, error in one.get("off", {}).items()), reverse=True)[:3]
        assert all(error < tolerance for error, _ in worst), (rank, worst, plan)


@pytest.mark.parametrize(("name", "size"), [(n, s) for n, f in FAMILIES.items() for s in f.sizes])
def test_networks_we_ship(crew, name, size):
    shape = (3, 64, 64) if name == "yolov2" else (3, 32, 32)
    batch = 2 if name in ("yolov2", "alexnet") else 4
    spec = {"family": name, "size": size, "shape": shape, "batch": batch, "seed": 1}
    graph = read_graph(make_network(spec), shape)
    check_same(crew, spec, even_plan(graph, 2))
