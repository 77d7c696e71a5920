from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from manyhands.blocks import Part, Weights, whole_model
from manyhands.data import Examples
from manyhands.errors import RunError
from manyhands.learn.optimizers import OptimizerSection, first_slots, restored_slots, saved_slots, step
from manyhands.learn.randomness import own_randomness
from manyhands.learn.supervised import Architecture, LearnSection, LocalPhase, accuracy_of
from manyhands.models import cost_of
from manyhands.replica import Replica
from manyhands.seeds import torch_generator

SHAPE = (1, 8, 8)


def network(dropout: float = 0.2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout2d(dropout / 2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(144, 3),
        )


def examples(count: int = 60) -> Examples:
    draws = torch_generator(0, "test examples")
    y = torch.arange(count) % 3
    x = torch.randint(0, 60, (count, *SHAPE), generator=draws) + 70 * y[:, None, None, None]
    return Examples(x.to(torch.uint8), y)


ARCHITECTURE = Architecture("test network", partial(copy.deepcopy, network()), cost_of(network(), SHAPE))
FIRST = Weights({name: tensor.clone() for name, tensor in network().state_dict().items()})


def phase(**changes: Any) -> LocalPhase:
    learn = LearnSection(**({"learning_rate": 0.1, "batch_size": 8} | changes.pop("learn", {})))
    layout = changes.pop("layout", whole_model(FIRST))
    return LocalPhase("pi", ARCHITECTURE, layout, changes.pop("train", examples()), learn, seed=1, **changes)


def trained(
    local: LocalPhase, number: int = 0, replica: Weights = FIRST, optimizer: Weights | None = None
) -> Any:
    return local.work(Replica(replica, optimizer, num_rounds=number), {}, number).run()


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns() -> None:
    weights = FIRST
    local = phase(layout={}, learn={"learning_rate": 0.003, "epochs": 5})
    for number in range(6):
        weights = trained(local, number, weights).weights["replica"]
    before = accuracy_of(ARCHITECTURE, FIRST, examples())
    after = accuracy_of(ARCHITECTURE, weights, examples())
    assert after["accuracy"] > 0.9 > before["accuracy"]
    assert after["loss"] < before["loss"]


def test_a_phase_is_the_same_on_any_thread_beside_any_other() -> None:
    local = phase()
    expected = [trained(local, number).weights["update/model"] for number in range(8)]
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        got = list(pool.map(lambda number: trained(local, number).weights["update/model"], range(8)))
    assert all(same(a, b) for a, b in zip(expected, got, strict=True))
    assert not same(expected[0], expected[1])


def test_a_network_whose_draws_cannot_be_repeated_is_refused() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.rrelu(x, training=True)

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), Odd())

    architecture = Architecture("odd", make, cost_of(make(), SHAPE))
    local = LocalPhase("pi", architecture, {}, examples(), LearnSection(batch_size=8), seed=1)
    with pytest.raises(RunError, match="cannot be repeated"):
        local.work(Replica(Weights(make().state_dict())), {}, 0).run()


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like, lambda x: torch.randint_like(x, 3)])
def test_draws_like_a_tensor_are_repeated(draw: Any) -> None:
    x, draws = torch.zeros(5), []
    for _ in range(2):
        with own_randomness(torch_generator(1, "x")):
            draws.append(draw(x))
    assert torch.equal(*draws)
    assert draws[0].shape == x.shape


def test_dropout_draws_do_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    trained(phase())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_phase_leaves_what_it_was_given_alone() -> None:
    first = {name: tensor.clone() for name, tensor in FIRST.items()}
    trained(phase())
    assert same(first, dict(FIRST))


def test_only_private_tensors_are_kept_and_shared_ones_go_into_the_update() -> None:
    layout = {"stem": {"w": Part("0.weight"), "b": Part("0.bias")}}
    outcome = trained(phase(layout=layout))
    replica, update = outcome.weights["replica"], outcome.weights["update/stem"]
    assert "0.weight" not in replica
    assert not torch.equal(update["w"], FIRST["0.weight"])
    assert not torch.equal(replica["6.weight"], FIRST["6.weight"])


def test_gradients_are_the_change_that_parameters_show() -> None:
    whole = trained(phase()).weights["update/model"]
    change = trained(phase(send="gradients")).weights["update/model"]
    for name, tensor in whole.items():
        assert torch.allclose(FIRST[name] + change[name], tensor, atol=1e-6)


def test_blocks_are_taken_over_before_training() -> None:
    other = Weights({name: tensor * 2 for name, tensor in FIRST.items()})
    via_block = phase().work(Replica(FIRST), {"model": other}, 0).run()
    direct = trained(phase(), replica=other)
    assert same(via_block.weights["update/model"], direct.weights["update/model"])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_two_phases_with_kept_memory_are_one_long_phase(optimizer: str) -> None:
    local = phase(layout={}, learn={"optimizer": optimizer, "learning_rate": 0.01})
    first = trained(local)
    second = local.work(Replica(first.weights["replica"], first.weights["optimizer"], 8, 1), {}, 1).run()
    forgetful = local.work(Replica(first.weights["replica"], None, 8, 1), {}, 1).run()
    assert second.facts["num_steps"] == 16
    assert not same(second.weights["replica"], forgetful.weights["replica"])


@pytest.mark.parametrize(
    ("section", "reference"),
    [
        ({"optimizer": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        ({"optimizer": "sgd", "momentum": 0.0}, lambda p: torch.optim.SGD(p, lr=0.05)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
        ({"optimizer": "rmsprop"}, lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.9, eps=1e-7)),
        (
            {"optimizer": "sgd", "weight_decay": 0.1},
            lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.1),
        ),
    ],
)
def test_steps_are_those_of_torch_also_across_a_save(section: dict, reference: Any) -> None:
    ours, theirs = [torch.ones(3, requires_grad=True) for _ in range(2)]
    rule = OptimizerSection(**section)
    slots, optimizer = first_slots(rule, [ours]), reference([theirs])
    for number in range(6):
        for parameter in (ours, theirs):
            parameter.grad = torch.tensor([1.0, -2.0, 0.5]) * (number + 1)
        if number == 3:
            slots = restored_slots(rule, [ours], saved_slots(slots))
        step(rule, [ours], slots, number)
        optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-7)


def test_decay_lowers_the_rate_with_the_inverse_of_time() -> None:
    rule = OptimizerSection(learning_rate=1.0, momentum=0.0, decay=0.5)
    parameter = torch.zeros(1, requires_grad=True)
    for number in range(3):
        parameter.grad = torch.ones(1)
        step(rule, [parameter], {}, number)
    assert float(parameter.detach()) == pytest.approx(-(1 + 1 / 1.5 + 1 / 2))


@pytest.mark.parametrize(
    ("count", "learn", "used"),
    [
        (60, {}, 60),
        (60, {"epochs": 3}, 180),
        (57, {}, 56),  # a last batch of one is left out
        (1, {}, 1),
        (60, {"examples": 20}, 20),
        (60, {"examples": 500}, 60),
    ],
)
def test_the_charge_is_for_the_examples_really_used(count: int, learn: dict, used: int) -> None:
    local = phase(train=examples(count), learn=learn)
    assert local.num_used == used
    assert local.flops == used * ARCHITECTURE.cost.train_flops
    if count > 1:
        assert trained(local).facts["examples"] == used


def test_a_model_with_a_loss_of_its_own_is_trained_on_it() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :3] * self.scale

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (outputs.sum() - 1e3).abs()

    architecture = Architecture("own loss", Own, cost_of(Own(), SHAPE))
    first = Weights(Own().state_dict())
    local = LocalPhase("pi", architecture, {}, examples(), LearnSection(batch_size=8), seed=1)
    assert float(local.work(Replica(first), {}, 0).run().weights["replica"]["scale"]) > 1


def test_a_loss_that_is_not_finite_is_none() -> None:
    assert trained(phase(learn={"learning_rate": 1e30})).facts["loss"] is None
