"""What a crew would lose: the network, what its optimizer remembers, and how far it has come.

Every device of a tile group holds all of it, because weights are replicated. So when one dies the others go
on from their own copies; a checkpoint on disk is for when all are gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from manyhands.errors import RunError
from manyhands.learn.optimizers import OptimizerSection, first_slots, step
from manyhands.learn.transfer import own_copies
from manyhands.learn.workspace import Architecture, load

__all__ = ["Learner", "Position", "read_checkpoint", "share", "write_checkpoint"]

FILE = "crew.safetensors"


@dataclass
class Position:
    """How far a crew has come.

    Attributes:
        rounds: Rounds of which all steps are done.
        closed: Rounds that were measured and reported as well.
        batches: Batches of the present round that are done.
        num_steps: Steps of all rounds.
        seen: Examples of the present round that are done.
        loss: Sum of their losses.
        started_seconds: When the present round began, on the run's clock.
        seconds: The run's clock.
        num_events: Events in the trace.
    """

    rounds: int = 0
    closed: int = 0
    batches: int = 0
    num_steps: int = 0
    seen: int = 0
    loss: float = 0.0
    started_seconds: float = 0.0
    seconds: float = 0.0
    num_events: int = 0


class Learner:
    """A network under training, with all that a step changes."""

    def __init__(
        self, architecture: Architecture, first: Mapping[str, torch.Tensor], section: OptimizerSection
    ) -> None:
        self.section = section
        self.module = architecture.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module.train()
        load(self.module, first)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.slots = first_slots(section, self.parameters)
        self.position = Position()

    def step(self, gradients: Callable[[], float], num_examples: int) -> float:
        """One step: all of it, or none of it if the gradients cannot be had."""
        before = [buffer.clone() for buffer in self.module.buffers()]
        self.forget_gradients()
        try:
            loss = gradients()
        except BaseException:
            # Statistics are counted on the way forward; the weights have not been touched yet.
            for buffer, value in zip(self.module.buffers(), before, strict=True):
                buffer.copy_(value)
            self.forget_gradients()
            raise
        position = self.position
        step(self.section, self.parameters, self.slots, position.num_steps)
        position.num_steps += 1
        position.batches += 1
        position.seen += num_examples
        position.loss += loss * num_examples
        return loss

    def forget_gradients(self) -> None:
        """Leaves nothing of a batch behind."""
        for parameter in self.module.parameters():
            parameter.grad = None

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the network's tensors."""
        return own_copies(self.module.state_dict())

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors that a step changes, live."""
        state = {f"network/{name}": tensor for name, tensor in self.module.state_dict().items()}
        slots = {f"slot/{name}/{i}": t for name, tensors in self.slots.items() for i, t in enumerate(tensors)}
        return state | slots


def share(learner: Learner, group: dist.ProcessGroup) -> None:
    """Gives every device of a group the state of the one that has come furthest.

    A device may be killed between the last message of a step and the step itself on another; those who have
    made the step are then one ahead.
    """
    reached = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    position = learner.position
    reached[dist.get_rank(group)] = position.num_steps * 1_000_000 + position.closed
    dist.all_reduce(reached, group=group)
    source = int(reached.argmax())
    numbers = torch.tensor(list(asdict(position).values()), dtype=torch.float64)
    dist.broadcast(numbers, source, group=group)
    for key, value in zip(asdict(position), numbers.tolist(), strict=True):
        setattr(position, key, type(getattr(position, key))(value))
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in learner.tensors.values():
        by_type.setdefault(tensor.dtype, []).append(tensor)
    with torch.no_grad():
        for tensors in by_type.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.broadcast(flat, source, group=group)
            pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
            for tensor, piece in zip(tensors, pieces, strict=True):
                tensor.copy_(piece.view(tensor.shape))


def write_checkpoint(folder: Path, job_hash: str, learner: Learner) -> None:
    """Puts the state on disk, in place of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / FILE, folder / f"{FILE}.partial"
    facts = {"job": job_hash, "position": json.dumps(asdict(learner.position))}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in learner.tensors.items()}
    try:
        save_file(tensors, partial, metadata=facts)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: cannot be written ({error}); make room and resume") from error


def read_checkpoint(folder: Path, job_hash: str, learner: Learner) -> bool:
    """Takes up the state that is on disk; False if there is none."""
    path = folder / FILE
    if not path.is_file():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            if facts["job"] != job_hash:
                raise RunError(f"{path}: is of another job; take another folder")
            position = Position(**json.loads(facts["position"]))
            with torch.no_grad():
                for name, tensor in learner.tensors.items():
                    tensor.copy_(file.get_tensor(name))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path}: not a whole checkpoint ({error}); delete {folder} to start over") from error
    learner.position = position
    return True
