"""Double deep Q-learning (van Hasselt, Guez and Silver 2016), as a learner that acts and makes steps.

The network estimates the return of each action, discounted by γ. What the estimate for an action should have
been is the reward and, if the game goes on, γ times the *target* network's estimate for the action that the
learner itself finds best there. The target is the learner as it was when the phase began: paper 001 copies
the parameters to it whenever devices have exchanged theirs (section 4.2). The loss is Huber's with δ = 1
(equation 9).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from manyhands.blocks import Weights
from manyhands.learn.gradients import as_input
from manyhands.learn.optimizers import OptimizerSection, Slots, first_slots, restored_slots, step
from manyhands.learn.randomness import own_randomness
from manyhands.learn.replay import Batch
from manyhands.learn.transfer import moved
from manyhands.learn.workspace import Architecture, Tensors, load, workspace

__all__ = ["QLearner", "better_estimates", "huber"]


def better_estimates(
    learner: nn.Module,
    target: nn.Module,
    batch: Batch,
    states: torch.Tensor,
    discount: float,
    *,
    double: bool,
) -> torch.Tensor:
    """What the estimates of a batch's actions should have been, [B].

    Args:
        learner: The network that learns, in evaluation.
        target: The one that judges.
        batch: The transitions.
        states: Its next states as the networks' input.
        discount: γ.
        double: Whether the learner chooses the next action; else the target does.
    """
    values: torch.Tensor = target(states)
    best = learner(states).argmax(1) if double else values.argmax(1)
    following = values.gather(1, best[:, None])[:, 0]
    return batch.rewards + discount * batch.goes_on * following


def huber(values: torch.Tensor, actions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean loss of the estimates of the actions taken; of several exits [exits, B, A], the sum of theirs."""
    index = actions[:, None].expand(*values.shape[:-1], 1)
    chosen = values.gather(-1, index)[..., 0]
    loss = F.smooth_l1_loss(chosen, wanted.expand_as(chosen), reduction="sum")
    return loss / len(actions)


class QLearner:
    """A network that plays and learns, on one torch device, with the state that this needs.

    Attributes:
        slots: What its optimizer remembers.
        num_steps: Steps along gradients, those of earlier phases included.
        losses: The sum over this phase's steps.
    """

    def __init__(
        self,
        architecture: Architecture,
        section: OptimizerSection,
        torch_device: str,
        memory_format: torch.memory_format,
        shape: tuple[int, int, int],
    ) -> None:
        self._section, self._torch_device, self._memory_format = section, torch_device, memory_format
        gradients = workspace(architecture, torch_device, memory_format)
        self._module, self._generator = gradients.module, gradients.generator
        self._target = workspace(architecture, torch_device, memory_format, "target").module.eval()
        self._module.eval()
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._seen = torch.zeros((1, *shape), device=torch_device).to(memory_format=memory_format)
        self.slots: Slots = {}
        self.num_steps = 0
        self.losses = torch.zeros((), device=torch_device)

    def load(self, start: Tensors, optimizer: Weights | None, num_steps: int, seed: int) -> None:
        """Takes over weights, which become the target too, and what the optimizer remembers."""
        load(self._module, start)
        load(self._target, start)
        self.slots = (
            restored_slots(self._section, self._parameters, optimizer)
            if optimizer
            else first_slots(self._section, self._parameters)
        )
        self.num_steps = num_steps
        self._generator.manual_seed(seed)

    @property
    def state(self) -> Tensors:
        """The network's live tensors."""
        return self._module.state_dict()

    def best_action(self, state: NDArray[Any]) -> int:
        """The action of which most is expected, at the sight of some frames."""
        with torch.inference_mode():
            self._seen.copy_(torch.from_numpy(state).view(self._seen.shape)).div_(255)
            return int(self._module(self._seen).argmax())

    def learn(self, batch: Batch, discount: float, *, double: bool) -> None:
        """One step along the gradients of a batch."""
        batch = _on(batch, self._torch_device)
        with torch.no_grad():
            states = as_input(batch.next_states, self._memory_format)
            wanted = better_estimates(self._module, self._target, batch, states, discount, double=double)
        for parameter in self._parameters:
            parameter.grad = None
        self._module.train()
        with own_randomness(self._generator):
            values = self._module(as_input(batch.states, self._memory_format))
        loss = huber(values, batch.actions, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        self._module.eval()
        step(self._section, self._parameters, self.slots, self.num_steps)
        self.losses.add_(loss.detach())
        self.num_steps += 1


def _on(batch: Batch, torch_device: str) -> Batch:
    if torch_device == "cpu":
        return batch
    return Batch(
        moved(batch.frames, torch_device),
        moved(batch.actions, torch_device),
        moved(batch.rewards, torch_device),
        moved(batch.goes_on, torch_device),
        batch.channels,
    )
