from __future__ import annotations

import pytest
import torch

from manyhands.models import Form, ModelSection, build, build_in_form, cost_of

DQN = ModelSection(name="dqn")
ATARI = (4, 84, 84)


def test_light_has_the_paper_s_part_of_operations_and_parameters() -> None:
    light, whole = (cost_of(build(DQN, ATARI, 4, seed=0, size=s), ATARI) for s in ("light", "complex"))
    assert whole.parameters == 1_686_180  # the network of Nature with four actions
    assert light.forward_flops / whole.forward_flops == pytest.approx(0.66, abs=0.01)
    assert light.parameters / whole.parameters == pytest.approx(0.042, abs=0.001)


@pytest.mark.parametrize("shape", [(4, 10, 10), (10, 10, 10), (1, 7, 7), (4, 36, 36), (3, 35, 40)])
@pytest.mark.parametrize("size", ["light", "complex"])
def test_it_takes_frames_of_any_side(shape: tuple[int, int, int], size: str) -> None:
    model = build(DQN, shape, 6, seed=0, size=size)
    assert model(torch.zeros(2, *shape)).shape == (2, 6)


def test_both_sizes_begin_with_the_same_four_layers() -> None:
    stems = [build(DQN, ATARI, 4, seed=0, size=size).stem for size in ("light", "complex")]
    assert [type(layer).__name__ for layer in stems[0]] == ["Conv2d", "ReLU", "Conv2d", "ReLU"]
    first, second = ({name: t.shape for name, t in stem.state_dict().items()} for stem in stems)
    assert first == second


@pytest.mark.parametrize("form", ["stem", "cascade", "width", "depth"])
@pytest.mark.parametrize("shape", [ATARI, (4, 10, 10)])
def test_it_comes_in_every_form(form: str, shape: tuple[int, int, int]) -> None:
    light, whole = (
        build_in_form(DQN, shape, 4, seed=0, size=size, form=Form(form)) for size in ("light", "complex")
    )
    assert cost_of(light, shape).parameters < cost_of(whole, shape).parameters
    assert whole.eval()(torch.zeros(2, *shape)).shape == (2, 4)
