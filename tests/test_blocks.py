from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from manyhands.blocks import Part, Weights, absorb, extract, private_names, views, whole_model


def test_views_are_live() -> None:
    module = nn.Linear(3, 2)
    blocks = views(module.state_dict(), {"head": {"rows": Part("weight", (slice(0, 1),))}})
    with torch.no_grad():
        blocks["head"]["rows"].copy_(torch.full((1, 3), 7.0))
    assert module.weight[0].tolist() == [7.0, 7.0, 7.0]
    assert module.weight[1].tolist() != [7.0, 7.0, 7.0]


def test_absorb_takes_whole_tensors_by_reference_and_leaves_the_old_state() -> None:
    state = {"a": torch.zeros(2), "b": torch.zeros(2)}
    new = torch.ones(2)
    after = absorb(state, {"shared": {"a": Part("a")}}, {"shared": {"a": new}})
    assert after["a"] is new
    assert after["b"] is state["b"]
    assert state["a"].tolist() == [0, 0]


def test_two_blocks_in_one_tensor_both_arrive() -> None:
    state = {"w": torch.zeros(4)}
    layout = {"low": {"w": Part("w", (slice(0, 2),))}, "high": {"w": Part("w", (slice(2, 4),))}}
    after = absorb(state, layout, {"low": {"w": torch.ones(2)}, "high": {"w": torch.full((2,), 2.0)}})
    assert after["w"].tolist() == [1, 1, 2, 2]
    assert state["w"].tolist() == [0, 0, 0, 0]


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
def test_extract_then_absorb_changes_nothing(a: int, b: int, c: int, d: int) -> None:
    state = {"w": torch.arange(12.0).reshape(4, 3), "v": torch.arange(3.0)}
    rows, columns = slice(*sorted((a, b))), slice(*sorted((c, d)))
    layout = {"corner": {"w": Part("w", (rows, columns))}, "rest": {"v": Part("v")}}
    after = absorb(state, layout, extract(state, layout))
    assert all(torch.equal(after[name], state[name]) for name in state)


def test_extracted_slices_outlive_the_state() -> None:
    state = {"w": torch.arange(4.0)}
    block = extract(state, {"low": {"w": Part("w", (slice(0, 2),))}})
    state["w"].zero_()
    assert block["low"]["w"].tolist() == [0, 1]


def test_the_whole_model_holds_buffers_and_leaves_nothing_private() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    layout = whole_model(module.state_dict())
    assert "1.running_mean" in layout["model"]
    assert "1.num_batches_tracked" in layout["model"]
    assert private_names(module.state_dict(), layout) == []


def test_a_tensor_shared_in_part_is_private_too() -> None:
    state = {"w": torch.zeros(4), "v": torch.zeros(1)}
    assert private_names(state, {"low": {"w": Part("w", (slice(0, 2),))}}) == ["w", "v"]


def test_absent_weights_know_their_size_and_nothing_else() -> None:
    real = Weights({"w": torch.zeros(8)})
    absent = Weights.absent(real.nbytes)
    assert absent.nbytes == real.nbytes
    with pytest.raises(RuntimeError, match="absent"):
        absent["w"]
    absent.fill(real)
    assert absent["w"] is real["w"]
    with pytest.raises(ValueError, match="not absent"):
        absent.fill(real)


def test_absent_weights_become_lasting_when_such_come_back() -> None:
    for lasting in (True, False):
        absent = Weights.absent(10)
        assert not absent.lasting
        absent.fill(Weights({"w": torch.zeros(1)}, lasting=lasting))
        assert absent.lasting is lasting
