"""Where a network is prepared for a split by task: what is trained and measured there, and kept in the cache.

Preparing takes longer than much else and is the same for every run of a job, so what has been done is kept
under a key of all that it depends on.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn

from manyhands.blocks import Weights
from manyhands.data import Dataset, Examples, Progress
from manyhands.data.cache import forget, recalled, remembered
from manyhands.data.examples import Array
from manyhands.fleet.tables import make_devices
from manyhands.job import Job
from manyhands.learn.gradients import as_input
from manyhands.learn.supervised import LocalPhase, accuracy_of
from manyhands.learn.workspace import Architecture, workspace
from manyhands.models import cost_of
from manyhands.models.exclusive import worth_of_filters
from manyhands.models.imported import load
from manyhands.replica import Replica
from manyhands.splits import TaskSection

__all__ = ["School", "State", "remembered_tensors", "under"]

SCORED = 500
"""The most examples of a class by which filters are scored."""

State = Mapping[str, Tensor]


class School:
    """Where the network is prepared: on the fastest device, with all training examples.

    What an epoch has brought is kept until the preparation is done, so that one that was killed goes on.
    """

    def __init__(
        self, job: Job, section: TaskSection, data: Dataset, original: nn.Module, progress: Progress | None
    ) -> None:
        rate = section.learning_rate or job.learn.learning_rate
        self._learn = job.learn.model_copy(update={"epochs": 1, "examples": None, "learning_rate": rate})
        self._job, self._data, self._progress = job, data, progress
        limit = job.run.evaluate_examples
        self._test = data.test if limit is None else data.test.spread(limit)
        self._torch_device = _fastest_torch_device(job)
        self._stages = {"original": section.pretrain_epochs, "decoupled": section.settle_epochs}
        self.key = _key(job, section, data, original)
        self.num_classes = len(data.classes)

    def train(self, name: str, module: nn.Module, state: State, epochs: int) -> State:
        """The network's tensors after some epochs."""
        architecture, seed = self._architecture(name, module), self._job.seed
        phase = LocalPhase(name, architecture, {}, self._data.train, self._learn, seed, self._torch_device)
        first = Replica(Weights({name: tensor.detach().clone() for name, tensor in state.items()}))

        replica, begin = first, 0
        for epoch in range(epochs, 0, -1):  # the newest that was kept
            if (found := recalled(self._epoch_key(name, epoch))) is not None:
                replica, begin = _as_replica(_from_arrays(found), epoch), epoch
                break
        for epoch in range(begin, epochs):
            if self._progress is not None:
                self._progress(f"training the {name} network", epoch, epochs)
            replica = replica.after(phase.work(replica, {}, epoch).run())
            remembered_tensors(self._epoch_key(name, epoch + 1), partial(_as_tensors, replica))
            forget(self._epoch_key(name, epoch))
        return replica.weights

    def _epoch_key(self, name: str, epoch: int) -> str:
        return f"{self.key}-{name}-{epoch}"

    def tidy(self) -> None:
        """Forgets the epochs, which are of no more use when all is done."""
        for name, epochs in self._stages.items():
            for epoch in range(1, epochs + 1):
                forget(self._epoch_key(name, epoch))

    def worth(self, module: nn.Module, layers: Sequence[str]) -> dict[str, Tensor]:
        """The worth of filters to classes, on some examples of each class."""
        data, num_classes = self._data.train, len(self._data.classes)
        picked = data.take(
            torch.cat([(data.y == c).nonzero().flatten()[:SCORED] for c in range(num_classes)])
        )
        architecture = self._architecture("original", module)
        here = workspace(architecture, self._torch_device, torch.contiguous_format, "scored").module
        here.load_state_dict(module.state_dict())
        return worth_of_filters(here, layers, self._batches(picked), num_classes)

    def accuracy(self, name: str, module: nn.Module, state: State) -> float:
        """On the test set, or as many examples of it as the job's networks are measured on."""
        architecture = self._architecture(name, module)
        found = accuracy_of(architecture, state, self._test, self._torch_device)
        return float(found["accuracy"] or 0.0)

    def _batches(self, examples: Examples) -> list[tuple[Tensor, Tensor]]:
        return [
            (
                as_input(examples.x[i : i + 100].to(self._torch_device), torch.contiguous_format),
                examples.y[i : i + 100].to(self._torch_device),
            )
            for i in range(0, len(examples), 100)
        ]

    def _architecture(self, name: str, module: nn.Module) -> Architecture:
        task = self._job.split.task
        key = (name, repr(module), repr(task), self._data.shape, len(self._data.classes))
        return Architecture(key, partial(copy.deepcopy, module), cost_of(module, self._data.shape))


def _fastest_torch_device(job: Job) -> str:
    devices = make_devices(job.fleet.device)
    return max(devices, key=lambda device: device.flops).torch_device


def _key(job: Job, section: TaskSection, data: Dataset, original: nn.Module) -> str:
    """Equal for preparations that give the same network.

    Of a network that the job brings itself, its drawing and the text of its file are looked at.
    """
    learn = job.learn.model_dump(exclude={"epochs", "examples", "keep_optimizer"})
    preparation = section.model_dump(mode="json", exclude={"assign", "overlap", "classes_per_device", "data"})
    content = [zlib.crc32(t.contiguous().numpy().data) for e in (data.train, data.test) for t in (e.x, e.y)]
    stamp = section.pretrained.stat().st_mtime_ns if section.pretrained and section.pretrained.exists() else 0
    source = ""
    if ":" in job.model.name:
        with contextlib.suppress(OSError, TypeError):
            source = inspect.getsource(sys.modules[load(job.model.name).__module__])
    drawn = (repr(original), [tuple(tensor.shape) for tensor in original.state_dict().values()], source)
    test = job.run.evaluate_examples
    told = (
        job.seed,
        job.run.threads,
        test,
        drawn,
        job.model.model_dump(mode="json"),
        learn,
        preparation,
        content,
        stamp,
        data.classes,
    )
    where = _fastest_torch_device(job).partition(":")[0]
    return "prepared-" + hashlib.sha256(repr((told, where, torch.__version__)).encode()).hexdigest()[:24]


def remembered_tensors(key: str, build: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a key in the cache folder, or those that are built for it."""
    # The cache makes files of the names, and an optimizer's have slashes.
    arrays = remembered(key, lambda: {quote(n, safe=""): t.cpu().numpy() for n, t in build().items()})
    return _from_arrays(arrays)


def _from_arrays(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {unquote(name): torch.from_numpy(array).clone() for name, array in arrays.items()}


def _as_tensors(replica: Replica) -> dict[str, Tensor]:
    return {
        **{f"weights.{name}": tensor for name, tensor in replica.weights.items()},
        **{f"optimizer.{name}": tensor for name, tensor in (replica.optimizer or {}).items()},
        "num_steps": torch.tensor(replica.num_steps),
    }


def _as_replica(tensors: State, num_rounds: int) -> Replica:
    slots = under(tensors, "optimizer.")
    weights = Weights(under(tensors, "weights."))
    return Replica(weights, Weights(slots) if slots else None, int(tensors["num_steps"]), num_rounds)


def under(tensors: State, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
