"""Layers of groups: to the last bit what torch's own compute, in no more operations."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn

from manyhands.learn.gradients import Gradients
from manyhands.models import cost_of
from manyhands.models import vgg16 as vgg16_family
from manyhands.models.decoupled import decouple
from manyhands.models.grouped import GroupedConv2d, GroupedLinear

LAYOUTS = [torch.contiguous_format, torch.channels_last]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")


def whole_numbers(*shape, seed=0):
    """Small whole numbers: their products add up exactly in float64, in whatever order."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=draws).double()


def layer_of(groups, inputs, rows, kernel, layout=torch.channels_last, **settings):
    layer = GroupedConv2d(groups * inputs, groups * rows, kernel, groups=groups, **settings).double()
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.copy_(whole_numbers(*parameter.shape, seed=seed))
    return layer.to(memory_format=layout)


def by_torch(layer):
    """The same layer as torch computes it."""
    layer = copy.deepcopy(layer)
    layer.__class__ = nn.Conv2d
    return layer


def results_of(layer, x):
    """Output and gradients."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    towards = whole_numbers(*y.shape, seed=9).to(y.device, y.dtype)
    return y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], towards)


sizes = st.integers(1, 3)
pairs = st.tuples(sizes, sizes)


@given(
    groups=st.integers(1, 4),
    inputs=sizes,
    rows=sizes,
    sides=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    examples=st.integers(1, 3),
    layout=st.sampled_from(LAYOUTS),
)
@example(3, 2, 3, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1), True, 2, torch.channels_last)
@example(3, 2, 3, (2, 2), (3, 3), (1, 1), (1, 1), (1, 1), True, 2, torch.channels_last)
@example(3, 2, 1, (2, 2), (3, 3), (2, 2), (1, 1), (1, 1), False, 2, torch.channels_last)
@example(3, 2, 1, (1, 2), (2, 3), (1, 2), (1, 2), (1, 1), True, 2, torch.contiguous_format)
@example(2, 2, 2, (2, 3), (2, 2), (3, 3), (0, 0), (1, 1), True, 2, torch.channels_last)
@example(1, 2, 3, (2, 2), (3, 3), (1, 1), (1, 1), (1, 1), True, 2, torch.channels_last)
@example(2, 2, 2, (1, 1), (1, 1), (3, 3), (1, 1), (1, 1), True, 2, torch.channels_last)
def test_a_convolution_is_torchs_to_the_last_bit(
    groups, inputs, rows, sides, kernel, stride, padding, dilation, bias, examples, layout
):
    assume(all(s + 2 * p > d * (k - 1) for s, p, k, d in zip(sides, padding, kernel, dilation, strict=True)))
    layer = layer_of(
        groups, inputs, rows, kernel, layout, stride=stride, padding=padding, dilation=dilation, bias=bias
    )
    x = whole_numbers(examples, groups * inputs, *sides, seed=3).contiguous(memory_format=layout)
    for ours, theirs in zip(results_of(layer, x), results_of(by_torch(layer), x), strict=True):
        assert torch.equal(ours, theirs)
    ours, theirs = (cost_of(each, (groups * inputs, *sides)) for each in (layer, by_torch(layer)))
    assert ours.forward_flops <= theirs.forward_flops
    assert ours.train_flops <= theirs.train_flops


@pytest.mark.parametrize(("side", "parts"), [(1, 1), (2, 4), (3, 9), (4, 9)])
def test_taps_that_miss_the_map_are_left_out(side, parts):
    layer = layer_of(3, 4, 5, 3, padding=1)
    whole = cost_of(by_torch(layer), (12, side, side)).train_flops
    assert cost_of(layer, (12, side, side)).train_flops * 9 == whole * parts


def test_maps_come_out_channels_last():
    for side in (1, 2, 3, 4):
        x = whole_numbers(2, 12, side, side).contiguous(memory_format=torch.channels_last)
        y = layer_of(3, 4, 5, 3, padding=1)(x)
        assert y.is_contiguous(memory_format=torch.channels_last)


def test_what_torch_refuses_is_refused():
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        layer_of(2, 2, 2, (1, 5))(whole_numbers(1, 4, 1, 2))


@pytest.mark.parametrize("settings", [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}])
def test_other_ways_to_pad_are_torchs(settings):
    layer, x = layer_of(2, 2, 3, 3, **settings), whole_numbers(2, 4, 2, 2)
    assert torch.equal(layer(x), by_torch(layer)(x))


def test_an_empty_batch_comes_out_empty():
    assert layer_of(2, 2, 3, 3, padding=1)(whole_numbers(0, 4, 2, 2)).shape == (0, 6, 2, 2)


def test_a_dense_layer_is_one_for_each_group():
    layer = GroupedLinear(3, whole_numbers(6, 4), whole_numbers(6, seed=1))
    x = whole_numbers(5, 12, seed=2)
    parts = zip(x.chunk(3, 1), layer.weight.chunk(3), layer.bias.chunk(3), strict=True)
    assert torch.equal(layer(x), torch.cat([F.linear(*part) for part in parts], 1))


def test_a_decoupled_network_keeps_its_tensors_and_draws_nothing():
    model = vgg16()
    before = torch.random.get_rng_state()
    ours = decoupled(model)
    assert torch.equal(torch.random.get_rng_state(), before)
    layers = [module for module in ours.modules() if isinstance(module, GroupedConv2d)]
    assert [layer.groups for layer in layers] == [1, 3, 3, 3, 3, 3]
    assert all(isinstance(layer, nn.Conv2d) and not layer.weight.is_meta for layer in layers)
    assert ours.state_dict()["features.conv4_2.weight"].shape == (12, 4, 3, 3)
    assert ours.state_dict().keys() == model.state_dict().keys()


def test_a_decoupled_network_learns_the_same_and_costs_less():
    ours = decoupled(vgg16()).double().to(memory_format=torch.channels_last)
    theirs = copy.deepcopy(ours)
    for module in theirs.modules():
        if isinstance(module, GroupedConv2d):
            module.__class__ = nn.Conv2d
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = x.contiguous(memory_format=torch.channels_last)
    torch.use_deterministic_algorithms(True)
    try:
        for network in (ours, theirs):
            F.cross_entropy(network(x), torch.tensor([0, 1, 2, 1])).backward()
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad.stride() == one.stride()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    costs = cost_of(ours, (3, 32, 32)), cost_of(theirs, (3, 32, 32))
    # of the last three convolutions, on maps of 2×2 pixels, four of nine parts are left
    saved = 3 * 3 * 2 * (12 * 4 * 9) * 4 * 5 // 9
    assert costs[1].train_flops - costs[0].train_flops == saved


@needs_gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("side", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gpu_computes_the_same(side, layout):
    layer = layer_of(3, 4, 5, 3, layout, padding=1)
    x = whole_numbers(2, 12, side, side).contiguous(memory_format=layout)
    here, there = results_of(layer, x), results_of(copy.deepcopy(layer).cuda(), x.cuda())
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other.cpu())


@needs_gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_a_gpu_can_record_it():
    gradients = Gradients(decoupled(vgg16()).cuda(), "cuda", torch.channels_last)
    gradients.prepare(torch.Size((8, 3, 32, 32)))
    assert all(recording is not None for recording in gradients._graphs.values())


def vgg16():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return vgg16_family.build("full", shape=(3, 32, 32), num_classes=3, width=0.125, stem_width=0.125)


def decoupled(model):
    def choose(_layer, _channels):
        return tuple(torch.arange(4 * c, 4 * c + 4) for c in range(3))

    return decouple(model, "conv4_1", range(3), choose).module
