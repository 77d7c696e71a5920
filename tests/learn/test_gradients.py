"""Gradients of a batch: as a plain loop would compute them, and on a GPU the same by a recording."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.learn.gradients import Gradients, as_input
from manyhands.learn.randomness import own_randomness
from manyhands.models import Form, ModelSection, build_in_form

SHAPE = (1, 8, 8)
FORMATS = [torch.contiguous_format, torch.channels_last]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine")


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(144, 10),
        )


def in_form(form: str) -> nn.Module:
    section = ModelSection(name="lenet5", sizes=2)
    return build_in_form(section, SHAPE, 10, seed=0, size="full", form=Form(form, distillation=0.3))


def batch(seed: int, count: int = 12, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, *SHAPE), generator=draws, dtype=torch.uint8)
    y = torch.randint(0, 10, (count,), generator=draws)
    return x.to(device), y.to(device)


def gradients_of(
    module: nn.Module, device: str = "cpu", layout: torch.memory_format = FORMATS[0]
) -> Gradients:
    gradients = Gradients(module.train(), device, layout)
    gradients.generator.manual_seed(5)
    return gradients


def descend(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def plain_loop(module: nn.Module, num_batches: int) -> list[float]:
    """Three lines a batch, as every tutorial has them."""
    generator = torch.Generator().manual_seed(5)
    losses = []
    module.train()
    for number in range(num_batches):
        x, y = batch(number)
        module.zero_grad()
        with own_randomness(generator):
            outputs = module(x.float() / 255)
        loss = module.loss(outputs, y) if hasattr(module, "loss") else F.cross_entropy(outputs, y)
        loss.backward()
        losses.append(loss.item())
        descend(module)
    return losses


@pytest.mark.parametrize("make", ["plain", "cascade", "depth"])
def test_on_a_cpu_it_is_a_plain_loop(make: str) -> None:
    ours = network() if make == "plain" else in_form(make)
    theirs = copy.deepcopy(ours)
    gradients = gradients_of(ours)
    gradients.prepare(batch(0)[0].shape)  # changes nothing here
    losses = []
    for number in range(4):
        losses.append(float(gradients(*batch(number))))
        descend(ours)
    assert losses == plain_loop(theirs, 4)
    expected = theirs.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items())


def test_gradients_are_of_this_batch_alone() -> None:
    gradients = gradients_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    gradients(*batch(0))
    gradients(*batch(1))
    twice = [parameter.grad.clone() for parameter in gradients.module.parameters()]
    gradients(*batch(1))
    assert all(torch.equal(a, b.grad) for a, b in zip(twice, gradients.module.parameters(), strict=True))


def test_a_part_that_took_no_part_has_no_gradient() -> None:
    class Idle(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(64, 10))
            self.idle = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x))

    module = Idle()
    gradients_of(module)(*batch(0))
    assert module.idle.grad is None


def test_bytes_become_numbers_from_0_to_1_in_the_layout_asked_for() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(2, 3, 4, 4)
    for layout in FORMATS:
        found = as_input(x, layout)
        assert found.is_contiguous(memory_format=layout)
        assert found.unique().tolist() == pytest.approx([0, 0.2, 1])
    assert int(x[0, 2, 0, 0]) == 255


# On a GPU.


def recorded_and_eager(make: str, num_batches: int = 5) -> tuple[Gradients, Gradients, list[torch.Tensor]]:
    """The same steps, by a recording and without one; and each step's two losses."""
    first = (network() if make == "plain" else in_form(make)).to("cuda")
    recorded, eager = (gradients_of(copy.deepcopy(first), "cuda") for _ in range(2))
    recorded.prepare(batch(0)[0].shape)
    recorded.module.load_state_dict(first.state_dict())  # recording used it up
    recorded.generator.manual_seed(5)
    losses = []
    for number in range(num_batches):
        pair = []
        for gradients in (recorded, eager):
            pair.append(gradients(*batch(number, device="cuda")).clone())
            descend(gradients.module)
        losses.append(torch.stack(pair))
    return recorded, eager, losses


@needs_gpu
@pytest.mark.parametrize("make", ["plain", "cascade", "depth"])
def test_a_recording_gives_what_computing_gives(make: str) -> None:
    """Dropout and branch dropout included: both draw the same masks from the same seed."""
    recorded, eager, losses = recorded_and_eager(make)
    assert any(graph is not None for graph in recorded._graphs.values()), "nothing was recorded"
    for pair in losses:
        assert torch.allclose(pair[0], pair[1], rtol=1e-3)
    expected = eager.module.state_dict()
    for name, tensor in recorded.module.state_dict().items():
        assert torch.allclose(tensor.double(), expected[name].double(), rtol=1e-2, atol=1e-3), name


@needs_gpu
def test_a_batch_of_another_size_is_computed_and_not_replayed() -> None:
    recorded, eager, _ = recorded_and_eager("cascade", 1)
    for gradients in (recorded, eager):
        gradients.generator.manual_seed(6)
    losses = [gradients(*batch(9, count=7, device="cuda")) for gradients in (recorded, eager)]
    assert torch.allclose(*losses, rtol=1e-3)


@needs_gpu
def test_a_network_that_cannot_be_recorded_is_computed() -> None:
    class Reads(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.sum().item() >= 0 else -x)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Reads(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10))
    twin = Reads(*copy.deepcopy(module).children())
    first = copy.deepcopy(module.state_dict())
    gradients, plain = gradients_of(module.to("cuda"), "cuda"), gradients_of(twin.to("cuda"), "cuda")
    gradients.prepare(batch(0)[0].shape)
    assert list(gradients._graphs.values()) == [None]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    module.load_state_dict(first)
    gradients.generator.manual_seed(5)
    losses = [found(*batch(0, device="cuda")) for found in (gradients, plain)]
    assert torch.allclose(*losses, rtol=1e-3)
    assert module[2].weight.grad.any()
    # The GPU still works, and other networks can still be recorded.
    recorded, _, _ = recorded_and_eager("plain", 1)
    assert any(graph is not None for graph in recorded._graphs.values())
