"""What a crew would lose: steps that are whole or have not happened, and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from manyhands.crew.state import Learner, Position, read_checkpoint, write_checkpoint
from manyhands.errors import RunError
from manyhands.learn.optimizers import OptimizerSection
from manyhands.learn.workspace import Architecture
from manyhands.models import cost_of


def make_learner(seed: int = 0) -> Learner:
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    architecture = Architecture("small", lambda: module, cost_of(module, (1, 6, 6)))
    first = {
        name: torch.rand(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor.clone()
        for name, tensor in module.state_dict().items()
    }
    return Learner(architecture, first, OptimizerSection())


def gradients_of(learner: Learner, *, fails: bool = False) -> float:
    images = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(learner.position.num_steps))
    loss = learner.module(images).square().mean()
    loss.backward()
    if fails:
        raise RuntimeError("a device is gone")
    return float(loss.detach())


def copies(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.tensors.items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_step_that_is_broken_off_has_not_happened() -> None:
    learner = make_learner()
    learner.step(lambda: gradients_of(learner), 4)
    before = copies(learner)
    with pytest.raises(RuntimeError, match="gone"):
        learner.step(lambda: gradients_of(learner, fails=True), 4)
    assert equal(copies(learner), before)  # the running statistics of the batch norm among them
    assert (learner.position.num_steps, learner.position.seen) == (1, 4)
    assert all(parameter.grad is None for parameter in learner.module.parameters())


def test_a_checkpoint_gives_all_back(tmp_path: Path) -> None:
    learner, other = make_learner(), make_learner(seed=1)
    for _ in range(3):
        learner.step(lambda: gradients_of(learner), 4)
    write_checkpoint(tmp_path, "job", learner)
    assert not equal(copies(other), copies(learner))
    assert read_checkpoint(tmp_path, "job", other)
    assert equal(copies(other), copies(learner))
    assert other.position == learner.position != Position()
    for each in (learner, other):
        each.step(lambda each=each: gradients_of(each), 4)
    assert equal(copies(other), copies(learner))


def test_a_checkpoint_that_is_not_there_damaged_or_of_another_job(tmp_path: Path) -> None:
    learner = make_learner()
    assert not read_checkpoint(tmp_path, "job", learner)
    write_checkpoint(tmp_path, "job", learner)
    with pytest.raises(RunError, match="is of another job"):
        read_checkpoint(tmp_path, "other", learner)
    (tmp_path / "crew.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match="not a whole checkpoint"):
        read_checkpoint(tmp_path, "job", learner)
