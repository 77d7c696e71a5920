"""Preparing a network for a split by task (paper 000, section II a).

It is trained for a little, or read from a file; each class is given the filters of the deep layers that serve
it most exclusively; the connections between filters of different classes are cut; and what is left is trained
for a little more, because a network that has just been cut knows next to nothing. The same job finds the same
network in the cache folder the next time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from manyhands.data import Dataset, Progress
from manyhands.errors import JobError, RunError
from manyhands.job import Job
from manyhands.models import FAMILIES, build, sizes_of
from manyhands.models.decoupled import CannotDecouple, decouple, layers_to_choose
from manyhands.models.exclusive import assign, chooser
from manyhands.prepared import Prepared
from manyhands.schooling import School, State, remembered_tensors, under
from manyhands.seeds import derive
from manyhands.splits import TaskSection

__all__ = ["prepare"]


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
    school = School(job, section, data, original, progress)
    threads = torch.get_num_threads()
    torch.set_num_threads(job.run.threads)  # which decides the last bits of a result
    try:
        kept = remembered_tensors(school.key, partial(_prepare, school, section, original, first))
    finally:
        torch.set_num_threads(threads)
    school.tidy()
    original.load_state_dict(under(kept, "original."))
    given, whole = under(kept, "given."), under(kept, "whole.")
    before, cut, after = kept["accuracies"].tolist()
    return Prepared(original, first, given, whole, len(data.classes), (before, cut, after))


def _prepare(school: School, section: TaskSection, original: nn.Module, first: str) -> dict[str, Tensor]:
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
