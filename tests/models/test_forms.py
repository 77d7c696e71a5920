"""The four forms: what each size is, what sizes have in common, and how a cascade and exits train."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.errors import JobError
from manyhands.models import FAMILIES, Form, FormName, ModelSection, build_in_form, cost_of, layer_costs
from manyhands.models.cascade import Cascade
from manyhands.models.exits import EarlyExits, cut_features
from manyhands.models.families import tiers_of
from manyhands.models.narrow import narrowed

CIFAR, MNIST, DIGITS = (3, 32, 32), (1, 28, 28), (1, 8, 8)
FORMS = get_args(FormName)
CASCADE, DEPTH, WIDTH = (Form(name) for name in ("cascade", "depth", "width"))


def make(name="lenet5", form=CASCADE, *, size=None, sizes=None, shape=DIGITS, classes=10, seed=0, **options):
    section = ModelSection(name=name, sizes=sizes, options=options)
    size = size or tiers_of(section)[-1].name
    return build_in_form(section, shape, classes, seed=seed, size=size, form=form)


def images(count=6, shape=DIGITS):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


# Every family in every form.


@pytest.mark.parametrize("shape", [DIGITS, MNIST, CIFAR], ids=["8x8", "28x28", "32x32"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["lenet5", "cifar_cnn", "vgg16", "mobilenet_v2"])
def test_every_size_gives_scores_and_costs_more_than_the_smaller(name, form, shape):
    if min(shape[1:]) < FAMILIES[name].min_side:
        with pytest.raises(JobError, match=r"at least 10x10 pixels; the data has 1x8x8"):
            make(name, Form(form), shape=shape, sizes=2)
        return
    section = ModelSection(name=name, sizes=3 if name == "cifar_cnn" else 2)
    operations, parameters = [], []
    for tier in tiers_of(section)[: 1 if name in ("vgg16", "mobilenet_v2") and shape != MNIST else None]:
        with torch.device("meta"):  # no first weights are drawn
            model = build_in_form(section, shape, 7, seed=0, size=tier.name, form=Form(form))
            assert model.eval()(torch.zeros(2, *shape)).shape == (2, 7)
        operations.append(sum(cost.macs for cost in layer_costs(model, shape)))
        parameters.append(sum(parameter.numel() for parameter in model.parameters()))
    assert sorted(set(operations)) == operations
    assert sorted(set(parameters)) == parameters


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_gives_the_same_weights_again_and_leaves_the_callers_generator_alone(form):
    before = torch.get_rng_state()
    first, same, other = (
        make("lenet5", Form(form), sizes=2, size="small", seed=s).state_dict() for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_computes_the_same_and_is_a_network_of_its_own(form):
    model = make("vgg16", Form(form, scaler=True), sizes={"small": 0.1, "full": 1.0}, size="small")
    twin = copy.deepcopy(model)
    x = images()
    for mode in (True, False):
        scores = []
        for network in (model, twin):
            network.train(mode)
            with torch.random.fork_rng():
                torch.manual_seed(3)
                scores.append(network(x))
        assert torch.equal(*scores)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert any(parameter.abs().sum() > 0 for parameter in model.parameters())
    assert not twin(x).any()


@pytest.mark.parametrize(("form", "operations", "parameters"), [("stem", 57.2, 6.7), ("cascade", 57.1, 6.4)])
def test_the_cifar_networks_have_the_papers_ratios(form, operations, parameters):
    """Paper 001, section 4.3."""
    light, heavy = (
        cost_of(make("cifar_cnn", Form(form), size=size, shape=CIFAR, padded=True), CIFAR)
        for size in ("light", "complex")
    )
    assert 100 * light.forward_flops / heavy.forward_flops == pytest.approx(operations, abs=1)
    assert 100 * light.parameters / heavy.parameters == pytest.approx(parameters, abs=1)


def test_the_papers_light_network_is_the_same_in_both_forms_but_for_names():
    stem, cascade = (
        make("cifar_cnn", Form(f), size="light", shape=CIFAR, padded=True) for f in ("stem", "cascade")
    )
    assert [t.shape for t in stem.state_dict().values()] == [t.shape for t in cascade.state_dict().values()]


@pytest.mark.parametrize("form", FORMS)
def test_a_size_that_there_is_not_is_named(form):
    with pytest.raises(JobError, match=r'model\.size = "huge": lenet5 comes in small or full'):
        make("lenet5", Form(form), size="huge", sizes=2)


# Cascade.


def branches_of(model, x):
    """The scores of each branch by itself."""
    stem = model.stem(x)
    return [branch(stem) for branch in model.branches.values()]


def test_a_cascade_adds_up_its_branches():
    model = make(sizes=3).eval()
    x = images()
    light, medium, full = branches_of(model, x)
    assert list(model.branches) == ["small", "medium", "full"]
    assert torch.equal(model(x), light + medium + full)


def test_the_light_network_is_whole_inside_the_heavy_one():
    heavy, x = make(sizes=3).eval(), images()
    for number, size in enumerate(("small", "medium", "full")):
        own = make(sizes=3, size=size).eval()
        state = heavy.state_dict()
        own.load_state_dict({name: state[name] for name in own.state_dict()})
        parts = branches_of(heavy, x)
        assert torch.equal(own(x), sum(parts[1 : number + 1], parts[0]))


class Constant(nn.Module):
    """Gives the same scores for every example."""

    def __init__(self, *scores):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, x):
        return self.scores.expand(len(x), -1) * x.flatten(1)[:, :1]


def constant_cascade(p, count=3):
    """Branch k puts 1 into score k, so the scores say who was there."""
    members = {
        f"s{k}": nn.Sequential(
            OrderedDict(stem=nn.Identity(), head=Constant(*(1.0 if j == k else 0.0 for j in range(count))))
        )
        for k in range(count)
    }
    return Cascade(members, p)


def test_each_trains_every_sum_and_a_heavier_branch_leaves_the_lighter_ones_alone():
    model = make("lenet5", Form("cascade", each=True), sizes=3).train()
    x, y = images(2), torch.tensor([1, 2])
    scores = model(x)
    own = [branch(model.stem(x)) for branch in model.branches.values()]
    sums = torch.stack([own[0], own[0] + own[1], own[0] + own[1] + own[2]])
    torch.testing.assert_close(scores, sums)
    expected = sum(torch.nn.functional.cross_entropy(one, y) for one in sums)
    torch.testing.assert_close(model.loss(scores, y), expected)
    torch.nn.functional.cross_entropy(scores[2], y).backward()
    lighter = [p for name in ("small", "medium") for p in model.branches[name].parameters()]
    assert not any(p.grad.any() for p in lighter)
    assert any(p.grad.any() for p in model.branches["full"].parameters())
    torch.testing.assert_close(model.eval()(x), sums[2])


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.9])
def test_branch_dropout_is_all_or_nothing_nested_and_as_frequent_as_asked(p):
    model, count = constant_cascade(p).train(), 20_000
    with torch.random.fork_rng():
        torch.manual_seed(0)
        there = model(torch.ones(count, 1)).detach()
    assert set(there.unique().tolist()) <= {0.0, 1.0}
    assert (there[:, 0] == 1).all()
    assert (there[:, 2] <= there[:, 1]).all()
    tolerance = 4 * 0.5 / count**0.5
    assert float(there[:, 1].mean()) == pytest.approx(1 - p, abs=tolerance)
    assert float(there[:, 2].mean()) == pytest.approx((1 - p) ** 2, abs=tolerance)


def test_branches_are_never_dropped_outside_of_training():
    assert (constant_cascade(0.9).eval()(torch.ones(500, 1)) == 1).all()


def test_examples_whose_branch_is_dropped_do_not_move_it():
    model, x = constant_cascade(0.5, 2).train(), torch.arange(1.0, 41.0)[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        scores = model(x)
    there = scores.detach()[:, 1] > 0
    assert 0 < there.sum() < 40
    scores.sum().backward()
    assert torch.equal(model.branches["s1"].head.scores.grad[0], x[there].sum())
    assert torch.equal(model.branches["s0"].head.scores.grad[0], x.sum())


def test_a_layer_that_stands_in_two_places_stays_in_both():
    relu = nn.ReLU()
    member = nn.Sequential(OrderedDict(stem=nn.Identity(), a=relu, b=nn.Linear(2, 2), c=relu))
    model = Cascade({"only": member}, 0.5).eval()
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), member(x))
    assert (model(x) >= 0).all()


# Exits.


def test_exits_are_stacked_in_training_and_averaged_otherwise():
    model, x = make("cifar_cnn", DEPTH, sizes=3, shape=MNIST).eval(), images(shape=MNIST)
    seen = model.stem(x)
    scores = []
    for piece in model.branches.values():
        seen = piece.features(seen)
        scores.append(piece.exit(seen))
    assert torch.equal(model(x), torch.stack(scores).mean(0))
    assert model.train()(x).shape == (3, len(x), 10)


def test_a_shallow_network_is_the_beginning_of_the_deep_one():
    deep, x = make("cifar_cnn", DEPTH, sizes=3, shape=MNIST), images(shape=MNIST)
    for number, size in enumerate(("small", "medium", "full"), start=1):
        own = make("cifar_cnn", DEPTH, sizes=3, size=size, shape=MNIST, seed=9)
        state = deep.state_dict()
        own.load_state_dict({name: state[name] for name in own.state_dict()})
        for layer in [*own.modules(), *deep.modules()]:
            layer.training = not isinstance(layer, nn.Dropout)
        assert torch.equal(own(x), deep(x)[:number])


def test_the_deepest_exit_is_the_networks_own_classifier():
    whole = make("cifar_cnn", Form("stem"), shape=MNIST).eval()
    model, x = make("cifar_cnn", DEPTH, sizes=2, shape=MNIST).eval(), images(shape=MNIST)
    assert cost_of(model, MNIST).parameters > cost_of(whole, MNIST).parameters
    seen = model.stem(x)
    for piece in model.branches.values():
        seen = piece.features(seen)
    assert torch.equal(model.branches["full"].exit(seen), whole(x))


def exits(distillation):
    return EarlyExits(nn.Identity(), {}, distillation)


@pytest.mark.parametrize("distillation", [0.0, 0.7])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_loss_of_exits_is_that_of_the_paper(count, distillation):
    """DepthFL: the exits' cross-entropies, and the mean divergence of each from the others."""
    draws = torch.Generator().manual_seed(0)
    scores = torch.randn(count, 5, 4, generator=draws, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 1])
    expected = sum(F.cross_entropy(scores[i], y) for i in range(count))
    p = scores.softmax(-1)
    for i in range(count):
        for j in range(count):
            if i != j:
                divergence = (p[j] * (p[j].log() - p[i].log())).sum(-1).mean()
                expected = expected + distillation * divergence / (count - 1)
    assert float(exits(distillation).loss(scores, y)) == pytest.approx(float(expected), rel=1e-12)


def test_exits_that_agree_have_nothing_to_tell_each_other():
    scores = torch.randn(1, 5, 4, dtype=torch.float64).repeat(3, 1, 1).requires_grad_()
    y = torch.arange(5) % 4
    losses = [exits(distillation).loss(scores, y) for distillation in (2.0, 0.0)]
    assert torch.allclose(*losses, atol=1e-12)
    gradients = [torch.autograd.grad(loss, scores, retain_graph=True)[0] for loss in losses]
    assert torch.allclose(*gradients, atol=1e-12)


def test_an_exit_does_not_learn_from_being_a_teacher():
    """The gradient of each exit is that of its own divergence from others that stand still."""
    scores = torch.randn(2, 5, 4, dtype=torch.float64).requires_grad_()
    y = torch.arange(5) % 4
    told, untold = (torch.autograd.grad(exits(d).loss(scores, y), scores)[0] for d in (1.0, 0.0))
    p = scores.detach().softmax(-1)
    # d/ds_i KL(p_j || p_i) = p_i - p_j, and by way of the teacher there is nothing more.
    assert torch.allclose((told - untold)[0], (p[0] - p[1]) / 5, atol=1e-12)
    assert torch.allclose((told - untold)[1], (p[1] - p[0]) / 5, atol=1e-12)


# Where features are cut.


def deep_network(*channels):
    """One convolution (and an activation) for each number, on 1x6x6 images after a stem with 2 channels."""
    features = OrderedDict()
    before = 2
    for number, after in enumerate(channels):
        features[f"conv{number}"] = nn.Conv2d(before, after, 3, padding=1)
        features[f"relu{number}"] = nn.ReLU()
        before = after
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(before * 36, 3))
    stem = nn.Conv2d(1, 2, 1)
    return nn.Sequential(OrderedDict(stem=stem, features=nn.Sequential(features), classifier=classifier))


def cut(channels, depths):
    pieces = cut_features(deep_network(*channels), (1, 6, 6), 3, depths)
    return [[name for name, _ in features.named_children()] for features, _ in pieces.values()]


def even(count):
    return {f"s{k}": (k + 1) / count for k in range(count)}


@pytest.mark.parametrize("channels", [(2,) * 6, (2, 2, 2, 2, 2, 64), (64, 2, 2, 2, 2, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_every_size_gets_at_least_one_step_and_all_are_used_in_order(channels, count):
    pieces = cut(channels, even(count))
    assert all(piece and piece[0].startswith("conv") for piece in pieces)
    assert [layer for piece in pieces for layer in piece] == [
        f"{kind}{k}" for k in range(6) for kind in ("conv", "relu")
    ]


def test_cuts_follow_the_operations():
    assert [len(piece) // 2 for piece in cut((2,) * 6, even(3))] == [2, 2, 2]
    assert [len(piece) // 2 for piece in cut((2,) * 6, {"a": 0.17, "b": 1.0})] == [1, 5]
    assert [len(piece) // 2 for piece in cut((2,) * 6, {"a": 0.84, "b": 1.0})] == [5, 1]
    # 2->8, 8->8, 8->2 channels: 16, 64 and 16 of 96 operations.
    assert [len(piece) // 2 for piece in cut((8, 8, 2), {"a": 0.8, "b": 1.0})] == [2, 1]


def test_one_more_size_than_steps_begins_with_the_stem_alone_and_two_more_are_refused():
    assert cut((2, 2), even(3)) == [[], ["conv0", "relu0"], ["conv1", "relu1"]]
    with pytest.raises(ValueError, match="cut to 3 depths at most, not 4"):
        cut((2, 2), even(4))


def test_pieces_and_the_last_exit_are_the_networks_own_and_the_other_exits_fit():
    model = deep_network(4, 6)
    pieces = list(cut_features(model, (1, 6, 6), 3, even(2)).values())
    assert pieces[0][0].conv0 is model.features.conv0
    assert pieces[1][1] is model.classifier
    assert pieces[0][1](torch.zeros(2, 4, 6, 6)).shape == (2, 3)


def test_a_layer_that_stands_in_two_places_of_the_features_stays_in_both():
    model, relu = deep_network(2, 2), nn.ReLU()
    model.features.relu0 = model.features.relu1 = relu
    pieces = cut_features(model, (1, 6, 6), 3, even(2))
    assert [
        dict(features.named_children())[f"relu{k}"] for k, (features, _) in enumerate(pieces.values())
    ] == [
        relu,
        relu,
    ]


def test_too_many_depths_are_a_mistake_in_the_job():
    with pytest.raises(JobError, match=r"model\.sizes = 3: lenet5: it can be cut to 2 depths at most, not 3"):
        make("lenet5", DEPTH, sizes=3)


def test_named_depths_are_taken_and_numbers_mean_equal_steps():
    with torch.device("meta"):
        models = [
            make("vgg16", DEPTH, sizes=sizes, size="small", shape=MNIST)
            for sizes in (2, {"small": 0.5, "full": 1.0}, {"small": 0.05, "full": 1.0})
        ]
    halves, named, shallow = (len(list(model.branches["small"].features)) for model in models)
    assert halves == named > shallow


def test_depths_that_stop_short_of_the_whole_network_are_refused():
    with pytest.raises(JobError, match=r"takes these as depths of the whole network: the last must be 1\.0"):
        make("vgg16", DEPTH, sizes={"small": 0.25, "most": 0.75})


# Narrow networks.


@pytest.mark.parametrize(
    ("channels", "width", "left"), [(64, 1.0, 64), (64, 0.25, 16), (6, 0.5, 3), (3, 0.01, 1)]
)
def test_a_narrower_layer_has_a_part_of_the_channels_and_never_none(channels, width, left):
    assert narrowed(channels, width) == left


@pytest.mark.parametrize("width", [0.0, -1.0, 1.1])
def test_a_width_must_be_a_fraction(width):
    with pytest.raises(ValueError, match="width must be above 0 and at most 1"):
        narrowed(8, width)


@pytest.mark.parametrize("name", ["lenet5", "cifar_cnn", "vgg16", "mobilenet_v2"])
def test_weights_of_a_narrower_network_are_corners(name):
    with torch.device("meta"):
        states = [
            make(name, WIDTH, sizes=3, size=size, shape=MNIST).state_dict()
            for size in ("small", "medium", "full")
        ]
    for small, large in ((states[0], states[1]), (states[1], states[2])):
        assert small.keys() == large.keys()
        for tensor in small:
            assert all(n <= m for n, m in zip(small[tensor].shape, large[tensor].shape, strict=True)), tensor
        assert any(small[tensor].shape != large[tensor].shape for tensor in small)
    for tensor in states[0]:
        if states[0][tensor].dim() and not tensor.startswith("classifier.out."):
            channels, full = states[0][tensor].shape[0], states[2][tensor].shape[0]
            assert channels == pytest.approx(full / 4, abs=3), (
                tensor
            )  # where 1.5 becomes 2, and that six times
    # The input's channels and the classes are never narrowed, so every size can be used by itself.
    first, last = (list(states[0].values())[k] for k in (0, -1))
    assert first.shape[1] == 1
    assert last.shape == (10,)


def test_a_narrower_network_computes_what_its_corner_of_the_full_one_would():
    """With the rest of the full one's weights at zero, the two give the same scores."""
    small, full = (make("lenet5", WIDTH, sizes=2, size=size).double().eval() for size in ("small", "full"))
    state = small.state_dict()
    with torch.no_grad():
        for name, tensor in full.state_dict().items():
            tensor.zero_()
            tensor[tuple(slice(0, end) for end in state[name].shape)] = state[name]
    x = images().double()
    assert torch.allclose(small(x), full(x), atol=1e-12)


def layer_outputs(model, x):
    """What each convolution or dense layer gives for its input, and what it would by itself."""
    found = []

    def note(module, inputs, output):
        by_itself = (
            F.linear(inputs[0], module.weight, module.bias)
            if isinstance(module, nn.Linear)
            else F.conv2d(inputs[0], module.weight, module.bias, padding=module.padding)
        )
        found.append(float((output / by_itself).detach().nanmedian()))

    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    model(x)
    for hook in hooks:
        hook.remove()
    return found


def test_narrow_layers_scale_up_in_training_only_and_never_the_last():
    model, x = make("lenet5", Form("width", scaler=True), sizes=3, size="small"), images()
    assert layer_outputs(model.train(), x) == pytest.approx([4, 4, 4, 4, 1])
    assert layer_outputs(model.eval(), x) == pytest.approx([1] * 5)
    assert layer_outputs(copy.deepcopy(model).train(), x) == pytest.approx([4, 4, 4, 4, 1])


def test_neither_the_full_network_nor_one_without_scaler_is_scaled():
    for model in (
        make("lenet5", Form("width", scaler=True), sizes=3),
        make("lenet5", Form("width", scaler=False), sizes=3, size="small"),
    ):
        assert layer_outputs(model.train(), images()) == pytest.approx([1] * 5)


def test_width_narrows_the_stem_and_the_other_forms_do_not():
    convolutions = {
        form: make("lenet5", Form(form), sizes=2, size="small").stem.conv1.out_channels for form in FORMS
    }
    assert convolutions == {"stem": 6, "cascade": 6, "depth": 6, "width": 3}


# Networks by import path.


IMPORTED = """
from collections import OrderedDict
from torch import nn

MAPS = {"small": 2, "full": 4}

def parts(stem, maps, features=None, num_classes=10):
    features = features or nn.Sequential(OrderedDict(conv=nn.Conv2d(stem, maps, 3), relu=nn.ReLU()))
    classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(maps, num_classes))
    return nn.Sequential(
        OrderedDict(stem=nn.Sequential(nn.Conv2d(1, stem, 3)), features=features, classifier=classifier)
    )

def good(size="full", width=None):
    return parts(3, MAPS[size]) if width is None else parts(round(4 * width), round(8 * width))

def other_stems(size="full"):
    return parts(MAPS[size], 4)

def no_stem(size="full"):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.a(x) + self.b(x)

def own_features(size="full"):
    return parts(3, 4, Own())

def stems_that_shrink(size="full"):
    model = parts(3, MAPS[size])
    model.stem[0].stride = (1, 1) if size == "full" else (2, 2)
    model.classifier[0], model.classifier[2] = nn.Identity(), nn.LazyLinear(10)
    return materialised(model)

def materialised(model):
    import torch
    model(torch.zeros(2, 1, 8, 8))
    return model

def no_maps(size="full"):
    stem = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    features = nn.Sequential(nn.Linear(72, 16), nn.ReLU())
    return nn.Sequential(OrderedDict(stem=stem, features=features, classifier=nn.Linear(16, 10)))

def own_loss(size="full"):
    model = parts(3, MAPS[size])
    model.loss = lambda scores, y: scores.sum()
    return model
"""


@pytest.fixture
def form_nets(tmp_path, monkeypatch):
    (tmp_path / "form_nets.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    yield "form_nets"
    sys.modules.pop("form_nets", None)


@pytest.mark.parametrize("form", FORMS)
def test_a_network_by_import_path_comes_in_every_form(form_nets, form):
    sizes = 2 if form == "width" else ["small", "full"]
    costs = [
        cost_of(make(f"{form_nets}:good", Form(form), sizes=sizes, size=size), DIGITS).parameters
        for size in ("small", "full")
    ]
    assert costs[0] < costs[1]


@pytest.mark.parametrize(
    ("maker", "form", "says"),
    [
        ("no_stem", "cascade", r'form = "cascade" needs an nn\.Sequential whose first part is called stem'),
        ("no_stem", "depth", r'form = "depth" needs an nn\.Sequential whose first part is called stem'),
        (
            "own_features",
            "depth",
            r'form = "depth" needs an .* of stem, features .* and classifier; features is a Own',
        ),
        ("other_stems", "cascade", r"stem\.0\.weight is 2x1x3x3 in small and 4x1x3x3 in full"),
        ("other_stems", "width", r"calling it with \(width=1\.0\) fails"),
        ("stems_that_shrink", "cascade", r"must accept the data's shape, 1x8x8, but fails"),
        ("no_maps", "depth", r"it can be cut only where there are maps"),
        ("own_loss", "cascade", r'form = "cascade" has a loss of its own, and this network brings one'),
        ("own_loss", "depth", r'form = "depth" has a loss of its own'),
    ],
)
def test_a_network_that_cannot_take_a_form_is_refused_in_one_line(form_nets, maker, form, says):
    with pytest.raises(JobError, match=says) as caught:
        make(f"{form_nets}:{maker}", Form(form), sizes=["small", "full"])
    assert f"{form_nets}:{maker}" in str(caught.value)
    assert "\n" not in str(caught.value)
