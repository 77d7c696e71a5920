"""The cost model: torch's counter against closed forms, against the papers, and against counts by hand."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from manyhands.models import FAMILIES, ModelSection, build, cost_of, layer_costs

CIFAR = (3, 32, 32)
EVERY_SIZE = [(name, size) for name, family in FAMILIES.items() for size in family.sizes]


def make(name, size=None, shape=CIFAR, num_classes=10, **options):
    return build(ModelSection(name=name, size=size, options=options), shape, num_classes, seed=0)


@pytest.mark.parametrize(("name", "size"), EVERY_SIZE)
def test_counter_and_closed_form_agree(name, size):
    model = make(name, size)
    cost, layers = cost_of(model, CIFAR), layer_costs(model, CIFAR)
    macs = [layer.macs for layer in layers if layer.macs]
    assert cost.forward_flops == 2 * sum(macs)
    assert cost.train_flops == 3 * 2 * sum(macs) - 2 * macs[0]  # nobody needs the image's gradient
    assert cost.parameters == sum(layer.parameters for layer in layers)


@pytest.mark.parametrize("name", ["lenet5", "cifar_cnn", "squeezenet"])
def test_counts_equal_those_of_a_real_step(name):
    model = make(name, FAMILIES[name].sizes[0])
    cost = cost_of(model, CIFAR)
    with FlopCounterMode(display=False) as counter:
        model(torch.rand(2, *CIFAR)).sum().backward()
    assert counter.get_total_flops() == 2 * cost.train_flops


def test_published_operations():
    vgg = sum(layer.macs for layer in layer_costs(make("vgg16"), CIFAR))
    assert vgg == pytest.approx(313e6, rel=0.002)  # 313 M multiplications at 32x32
    yolo = cost_of(make("yolov2", None, (3, 608, 608), 80), (3, 608, 608))
    assert yolo.forward_flops == pytest.approx(62.94e9, rel=1e-3)  # Darknet's table, YOLOv2 608x608


def shares(light, whole):
    return 100 * light.forward_flops / whole.forward_flops, 100 * light.parameters / whole.parameters


def test_ratios_of_paper_001_with_a_shared_stem():
    light, whole = (cost_of(make("cifar_cnn", size), CIFAR) for size in ("light", "complex"))
    operations, parameters = shares(light, whole)
    assert operations == pytest.approx(57.2, abs=1)
    assert parameters == pytest.approx(6.7, abs=1)


def test_ratios_of_paper_001_with_every_convolution_padded():
    networks = {size: make("cifar_cnn", size, padded=True) for size in ("light", "complex")}
    light, whole = (cost_of(networks[size], CIFAR) for size in ("light", "complex"))
    operations, parameters = shares(light, whole)
    assert operations == pytest.approx(57.2, abs=1)
    assert parameters == pytest.approx(6.7, abs=1)
    # Contained in the complex network, the lightweight one adds all but its stem to it.
    added = [layer for layer in layer_costs(networks["light"], CIFAR) if not layer.name.startswith("stem")]
    added_flops = 2 * sum(layer.macs for layer in added)
    added_parameters = sum(layer.parameters for layer in added)
    assert 100 * light.forward_flops / (whole.forward_flops + added_flops) == pytest.approx(57.1, abs=1)
    assert 100 * light.parameters / (whole.parameters + added_parameters) == pytest.approx(6.4, abs=1)


def test_grouped_convolutions_cost_what_they_compute():
    model = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
    two = nn.Sequential(nn.Conv2d(8, 8, 1), model)
    grouped = 2 * 8 * 16 * 9
    full = 2 * 8 * 8 * 16
    assert cost_of(two, (8, 4, 4)).train_flops == 2 * full + 3 * grouped


def test_transposed_convolutions_are_counted_by_their_input():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, stride=2))
    one, transposed = 2 * 12 * 16, 2 * 16 * 4 * 6 * 4
    assert cost_of(model, (3, 4, 4)).train_flops == 2 * one + 3 * transposed


def test_kept_activations_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    image, map_ = 8 * 8 * 4, 4 * 8 * 8 * 4  # the input, and the ReLU's output that the dense layer reads too
    cost = cost_of(model, (1, 8, 8))
    assert cost.activation_bytes == image + map_
    assert cost.parameters == 4 * 9 + 4 + 2560 + 10
    assert cost.parameter_bytes == 4 * cost.parameters


def test_pooling_indices_and_batch_norm_inputs_are_kept():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2))
    image, map_ = 16 * 4, 2 * 16 * 4
    indices = 2 * 4 * 8
    cost = cost_of(model, (1, 4, 4))
    assert cost.activation_bytes == image + map_ + map_ + indices
    assert cost.parameter_bytes == 4 * cost.parameters + 2 * 2 * 4 + 8  # running statistics and their counter


def test_memory_adds_up():
    cost = cost_of(make("lenet5"), CIFAR)
    plain = cost.memory_bytes(batch_size=1, optimizer_slots=0)
    assert plain == 2 * cost.parameter_bytes + cost.activation_bytes
    assert cost.memory_bytes(11, 0) - plain == 10 * cost.activation_bytes
    assert cost.memory_bytes(1, 2) - plain == 2 * cost.parameter_bytes


def test_frozen_layers_need_no_gradient():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6))
    model[0].requires_grad_(False)
    cost = cost_of(model, (4,))
    assert cost.train_flops == cost.forward_flops + 2 * 30
    assert cost_of(nn.Flatten(), (1, 2, 2)).train_flops == 0


def test_doubles_take_twice_the_memory():
    single = make("lenet5")
    double = make("lenet5").double()
    assert cost_of(double, CIFAR).parameter_bytes == 2 * cost_of(single, CIFAR).parameter_bytes


def test_measuring_changes_nothing():
    model = make("vgg16").eval()
    model.stem.train()
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    cost_of(model, CIFAR)
    layer_costs(model, CIFAR)
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_networks_that_read_numbers_are_measured_for_real():
    class Reads(nn.Linear):
        def forward(self, x):
            return super().forward(x if x.sum().item() >= 0 else -x)

    model = Reads(6, 3)
    before = model.weight.clone()
    assert cost_of(model, (6,)).forward_flops == 36
    assert [layer.macs for layer in layer_costs(model, (6,))] == [18]
    assert torch.equal(before, model.weight)
    assert model.weight.grad is None


def test_large_networks_are_measured_without_arithmetic():
    model = make("vgg16", None, (3, 512, 512))
    started = time.perf_counter()
    cost = cost_of(model, (3, 512, 512))
    assert time.perf_counter() - started < 5  # 160 billion operations: minutes, were they done
    assert cost.forward_flops > 1.5e11


def test_layers_come_in_order_with_their_shapes():
    layers = layer_costs(make("lenet5"), CIFAR)
    assert [layer.name for layer in layers][:4] == [
        "stem.conv1",
        "stem.relu1",
        "stem.pool1",
        "features.conv2",
    ]
    assert layers[0].output_shape == (6, 28, 28)
    assert layers[0].macs == 6 * 28 * 28 * 75
    assert (layers[-1].name, layers[-1].kind, layers[-1].output_shape) == ("classifier.out", "Linear", (10,))


def test_a_module_used_twice_has_its_parameters_once():
    twice = nn.Linear(4, 4)
    layers = layer_costs(nn.Sequential(twice, twice), (4,))
    assert [layer.parameters for layer in layers] == [20, 0]
    assert [layer.macs for layer in layers] == [16, 16]
