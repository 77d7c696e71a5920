"""Preparing a network for a split by task (paper 000, section II a).

It is trained for a little, or read from a file; each class is given the filters of the deep layers that serve
it most exclusively; the connections between filters of different classes are cut; and what is left is trained
for a little more, because a network that has just been cut knows next to nothing. The same job finds the same
network in the cache folder the next time.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manyhands.blocks import Weights
from manyhands.data import Dataset, Examples, Progress
from manyhands.data.cache import forget, recalled, remembered
from manyhands.data.examples import Array
from manyhands.errors import JobError, RunError
from manyhands.fleet.device import make_devices
from manyhands.job import Job
from manyhands.learn.gradients import as_input
from manyhands.learn.supervised import LocalPhase, accuracy_of
from manyhands.learn.workspace import Architecture, workspace
from manyhands.models import FAMILIES, build, cost_of, sizes_of
from manyhands.models.decoupled import CannotDecouple, Decoupled, decouple, layers_to_choose
from manyhands.models.exclusive import assign, chooser, worth_of_filters
from manyhands.models.imported import load
from manyhands.replica import Replica
from manyhands.seeds import derive
from manyhands.splits import TaskSection

__all__ = ["Prepared", "prepare", "read_decoupling", "save_decoupling"]

SCORED = 500
"""The most examples of a class by which filters are scored."""

DECOUPLING = "decoupling.safetensors"

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Prepared:
    """A network that was decoupled by class.

    Attributes:
        original: The network before it was cut, as trained until then.
        first: The first layer that was decoupled.
        given: Layer -> the filters of each class, [classes, filters].
        whole: The tensors of the decoupled network of all classes, as trained after the cut.
        num_classes: How many classes there are.
        accuracies: Of the original, of the network when it was cut, and when it had settled.
    """

    original: nn.Module
    first: str
    given: Mapping[str, Tensor]
    whole: State
    num_classes: int
    accuracies: tuple[float, float, float]

    @property
    def figures(self) -> dict[str, object]:
        """What result.json says of it."""
        keys = ("accuracy_original", "accuracy_cut", "accuracy")
        return {"first": self.first, **dict(zip(keys, self.accuracies, strict=True))}

    def network(self, classes: Sequence[int]) -> Decoupled:
        """The network of some classes, with its weights."""
        new = decouple(self.original, self.first, classes, chooser(self.given, classes))
        rows = {name: _rows(self.whole[name], classes, self.num_classes) for name in new.by_class}
        new.module.load_state_dict({**self.whole, **rows})
        return new


def prepare(job: Job, data: Dataset, progress: Progress | None = None) -> Prepared:
    """Trains, scores, cuts and settles the job's network, or takes it from the cache.

    Raises:
        JobError: The network cannot be decoupled there, or the file does not hold it.
    """
    section = job.split.task
    assert section is not None
    size = job.model.size or sizes_of(job.model)[-1]
    seed = derive(job.seed, "first weights", size)
    original = build(job.model, data.shape, len(data.classes), seed=seed, size=size)
    first = _first_layer(job, original)
    school = _School(job, section, data, original, progress)
    threads = torch.get_num_threads()
    torch.set_num_threads(job.run.threads)  # which decides the last bits of a result
    try:
        kept = _kept(school.key, partial(_prepare, school, section, original, first))
    finally:
        torch.set_num_threads(threads)
    school.tidy()
    original.load_state_dict(_under(kept, "original."))
    given, whole = _under(kept, "given."), _under(kept, "whole.")
    before, cut, after = kept["accuracies"].tolist()
    return Prepared(original, first, given, whole, len(data.classes), (before, cut, after))


def save_decoupling(prepared: Prepared, folder: Path) -> None:
    """Writes what it takes to build the networks of classes again."""
    file = folder / DECOUPLING
    draft = file.with_suffix(".partial")
    save_file(dict(prepared.given), draft, {"first": prepared.first})
    draft.replace(file)


def read_decoupling(folder: Path, original: nn.Module) -> Callable[[Sequence[int]], nn.Module]:
    """How to build the network of some classes, without their weights, from one that has not been cut.

    Raises:
        JobError: It was not saved there.
    """
    file = folder / DECOUPLING
    try:
        with safe_open(file, "pt") as saved:
            first = saved.metadata()["first"]
            given = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise JobError("run", str(file), f"cannot be read: {error}") from error
    return lambda classes: decouple(original, first, classes, chooser(given, classes)).module


def _prepare(school: _School, section: TaskSection, original: nn.Module, first: str) -> dict[str, Tensor]:
    """What is kept: the original's tensors, the filters of each class, the decoupled network's tensors."""
    num_classes = school.num_classes
    state: State = original.state_dict()
    if section.pretrained is not None:
        state = _read(section.pretrained, state)
    else:
        state = school.train("original", original, state, section.pretrain_epochs)
    original.load_state_dict(dict(state))
    worths = school.worth(original, layers_to_choose(original, first))
    if not all(worth.isfinite().all() for worth in worths.values()):
        remedy = "its weights are not finite; lower split.task.learning_rate, or take another file"
        raise RunError(f"the network cannot be prepared: {remedy}")
    part = section.part or 1 / num_classes
    each = {name: max(1, round(part * worth.shape[1])) for name, worth in worths.items()}
    given = {name: torch.stack(assign(worth, each[name])) for name, worth in worths.items()}
    cut = decouple(original, first, range(num_classes), chooser(given, range(num_classes))).module
    whole = school.train("decoupled", cut, cut.state_dict(), section.settle_epochs)
    accuracies = [
        school.accuracy("original", original, state),
        school.accuracy("decoupled", cut, cut.state_dict()),
        school.accuracy("decoupled", cut, whole),
    ]
    return {
        **{f"original.{name}": tensor for name, tensor in state.items()},
        **{f"given.{name}": channels for name, channels in given.items()},
        **{f"whole.{name}": tensor for name, tensor in whole.items()},
        "accuracies": torch.tensor(accuracies, dtype=torch.float64),
    }


class _School:
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
            _kept(self._epoch_key(name, epoch + 1), partial(_as_tensors, replica))
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


def _first_layer(job: Job, original: nn.Module) -> str:
    """The first decoupled layer as it is named, once it is known that the network can be cut there."""
    assert job.split.task is not None
    family = FAMILIES.get(job.model.name)
    named = job.split.task.first or (family.deep if family else None)
    if named is None:
        layers = [name for name, m in original.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        expected = f"name the first layer that serves single classes, one of {', '.join(layers)}"
        raise JobError("split.task.first", None, expected)
    try:
        layers_to_choose(original, named)
    except CannotDecouple as error:
        raise JobError("split.task.first", named, str(error)) from error
    return named


def _read(path: Path, like: State) -> State:
    """A network's tensors from a file, as runs leave them under ``models/``."""
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise JobError("split.task.pretrained", str(path), f"cannot be read: {error}") from error
    for name, tensor in like.items():
        if name not in state or state[name].shape != tensor.shape:
            found = "is not there" if name not in state else f"is {tuple(state[name].shape)}"
            expected = f"does not hold this job's network: {name} {found}, not {tuple(tensor.shape)}"
            raise JobError("split.task.pretrained", str(path), expected)
    return {name: state[name].to(tensor.dtype) for name, tensor in like.items()}


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


def _kept(key: str, build: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
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
    slots = _under(tensors, "optimizer.")
    weights = Weights(_under(tensors, "weights."))
    return Replica(weights, Weights(slots) if slots else None, int(tensors["num_steps"]), num_rounds)


def _under(tensors: State, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _rows(tensor: Tensor, classes: Sequence[int], num_classes: int) -> Tensor:
    """The rows of some classes, of a tensor that has as many for each of all."""
    return tensor.view(num_classes, -1, *tensor.shape[1:])[list(classes)].flatten(0, 1)
