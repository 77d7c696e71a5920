"""Networks decoupled by class: they are what they say they are, for every family that can be cut."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from manyhands.models import FAMILIES, ModelSection, build, cost_of
from manyhands.models.decoupled import CannotDecouple, decouple, layers_to_choose
from manyhands.models.exclusive import assign, chooser, worth_of_filters

SHAPE, CLASSES = (3, 32, 32), 5
CUT = [name for name, family in FAMILIES.items() if family.deep]


def network(name, classes=CLASSES):
    model = build(ModelSection(name=name), SHAPE, classes, seed=1).double()
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():  # statistics other than 0 and 1, which every mistake would survive
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return model.eval()


def given_to(model, first, each=2):
    """Some filters for each class in every layer, not in order."""
    generator = torch.Generator().manual_seed(3)
    widths = {name: len(module.weight) for name, module in model.named_modules() if hasattr(module, "weight")}
    return {
        layer: torch.randperm(widths[layer], generator=generator)[: CLASSES * each].view(CLASSES, each)
        for layer in layers_to_choose(model, first)
    }


def images(count=3):
    return torch.rand(count, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("name", CUT)
def test_a_class_scores_the_same_alone_and_among_others(name):
    model, first = network(name), FAMILIES[name].deep
    given = given_to(model, first)
    whole = decouple(model, first, range(CLASSES), chooser(given, range(CLASSES))).module.eval()
    x = images()
    scores = whole(x)
    assert scores.std() > 0
    for own in ((0,), (3, 1), (0, 2, 4)):
        part = decouple(model, first, own, chooser(given, own)).module.eval()
        torch.testing.assert_close(part(x), scores[:, list(own)], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CUT)
def test_with_all_filters_for_the_only_class_nothing_is_cut(name):
    model, first = network(name, classes=1), FAMILIES[name].deep
    widths = {n: len(module.weight) for n, module in model.named_modules() if hasattr(module, "weight")}
    whole = decouple(model, first, (0,), lambda layer, _: (torch.arange(widths[layer]),)).module.eval()
    torch.testing.assert_close(whole(images()), model(images()), rtol=1e-12, atol=1e-12)


def test_it_is_the_original_with_the_connections_between_classes_cut():
    """The same scores as the whole network whose other weights are zero."""
    model, first = network("vgg16"), "conv4_1"
    given = given_to(model, first, each=3)
    cut = decouple(model, first, range(CLASSES), chooser(given, range(CLASSES))).module.eval()
    masked = copy.deepcopy(model)
    before = None
    for name, module in masked.named_modules():
        if name in given or name == "classifier.out":
            rows = given.get(name, torch.arange(CLASSES)[:, None])
            if before is not None:
                mask = torch.zeros_like(module.weight)
                for own, inputs in zip(rows, before, strict=True):
                    mask[own[:, None], inputs] = 1
                module.weight.data *= mask
            before = rows
    torch.testing.assert_close(cut(images()), masked(images()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CUT)
def test_structures_learn_nothing_from_each_other(name):
    model, first = network(name), FAMILIES[name].deep
    given = given_to(model, first, each=3)
    cut = decouple(model, first, range(CLASSES), chooser(given, range(CLASSES)))
    cut.module.train()
    cut.module(images())[:, 2].sum().backward()
    for tensor, parameter in cut.module.named_parameters():
        if tensor in cut.by_class:
            rows = parameter.grad.view(CLASSES, -1)
            others = torch.arange(CLASSES) != 2
            assert not rows[others].any(), tensor
    assert any(p.grad.abs().sum() > 0 for n, p in cut.module.named_parameters() if n not in cut.by_class)


@pytest.mark.parametrize("name", CUT)
def test_fewer_classes_cost_less(name):
    model, first = network(name).float(), FAMILIES[name].deep
    given = given_to(model, first)
    costs = [
        cost_of(decouple(model, first, range(n), chooser(given, range(n))).module, SHAPE)
        for n in (1, 3, CLASSES)
    ]
    whole = cost_of(model, SHAPE)
    operations = [cost.train_flops for cost in (*costs, whole)]
    assert operations == sorted(set(operations))
    assert [cost.parameters for cost in costs] == sorted({cost.parameters for cost in costs})


def test_what_cannot_be_cut_is_named():
    choose = chooser({}, (0,))
    with pytest.raises(CannotDecouple, match=r"'conv9' must name one of stem.conv1, features.conv2"):
        decouple(network("lenet5"), "conv9", (0,), choose)
    odd = nn.Sequential(OrderedDict(stem=nn.Conv2d(1, 2, 3), rnn=nn.GRU(2, 2), out=nn.Linear(2, 2)))
    with pytest.raises(CannotDecouple, match=r"rnn is a GRU, which cannot be taken apart"):
        decouple(odd, "stem", (0,), lambda _layer, _n: (torch.tensor([0]),))
    with pytest.raises(CannotDecouple, match=r"begin at the layer before it"):
        layers_to_choose(network("mobilenet_v2"), "block6_1.layers.filter.conv")


# Which filters a class is given.


def planted(each=2):
    """A network of two layers in which every class is made by filters of its own."""
    model = nn.Sequential(
        nn.Conv2d(1, CLASSES * each, 1), nn.ReLU(), nn.Flatten(), nn.Linear(CLASSES * each, CLASSES)
    )
    owner = torch.randperm(CLASSES * each, generator=torch.Generator().manual_seed(5)) % CLASSES
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
        model[3].weight.copy_(0.01 + (owner[None] == torch.arange(CLASSES)[:, None]).float())
        model[3].bias.zero_()
    return model, owner


def test_planted_filters_are_found():
    model, owner = planted()
    y = torch.arange(CLASSES).repeat(8)
    batches = [(torch.rand(len(y), 1, 1, 1) + 0.1, y)]
    worth = worth_of_filters(model, ["0"], batches, CLASSES)["0"]
    given = assign(worth, 2)
    for c in range(CLASSES):
        assert given[c].tolist() == (owner == c).nonzero().flatten().tolist()


def test_no_filter_is_given_twice_where_there_are_enough_and_all_have_as_many():
    worth = torch.rand(6, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    given = torch.stack(assign(worth, 5))
    assert given.shape == (6, 5)
    assert given.unique().numel() == 30


def test_where_there_are_not_enough_each_class_takes_its_best():
    worth = torch.eye(4, dtype=torch.float64) + 0.1
    assert [own.tolist()[0] for own in assign(worth[:, :3], 1)][:3] == [0, 1, 2]
    assert all(len(own) == 2 for own in assign(worth[:, :3], 2))


def test_the_network_is_left_in_its_mode_and_without_hooks():
    model, _ = planted()
    model.train()
    worth_of_filters(model, ["0"], [(torch.rand(2, 1, 1, 1), torch.tensor([0, 1]))], CLASSES)
    assert model.training
    assert not model[0]._forward_hooks


def test_layers_without_bias_or_weights_of_their_own_work_too():
    layers = OrderedDict(
        conv1=nn.Conv2d(3, 8, 3, bias=False),
        norm1=nn.BatchNorm2d(8, affine=False),
        conv2=nn.Conv2d(8, 10, 3, bias=False),
        norm2=nn.BatchNorm2d(10, track_running_stats=False),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        out=nn.Linear(10, CLASSES, bias=False),
    )
    model = nn.Sequential(layers).double()
    given = {"conv2": torch.arange(10).view(CLASSES, 2)}
    x = images(8)
    whole = decouple(model, "conv2", range(CLASSES), chooser(given, range(CLASSES))).module
    part = decouple(model, "conv2", (3,), chooser(given, (3,))).module
    torch.testing.assert_close(part(x), whole(x)[:, 3:4], rtol=1e-12, atol=1e-12)


def test_a_sequential_that_computes_something_else_is_refused():
    class Twice(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    model = nn.Sequential(OrderedDict(stem=Twice(nn.Conv2d(3, 4, 3)), out=nn.Conv2d(4, 2, 1)))
    with pytest.raises(CannotDecouple, match="stem is a Twice, which cannot be taken apart"):
        layers_to_choose(model, "out")
