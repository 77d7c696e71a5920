"""Networks that a run has left behind, ready to be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from manyhands.errors import JobError
from manyhands.job import Job, load_job
from manyhands.models import build, build_in_form
from manyhands.prepared import read_decoupling
from manyhands.report.folder import RunFolder
from manyhands.splits.classes import read_classes

__all__ = ["load_network"]


def load_network(run: Path, name: str = "global") -> nn.Module:
    """A network of a finished run, with its weights, in evaluation mode.

    Args:
        run: The run's folder.
        name: A device, or ``global`` for the network that all have made together.

    Raises:
        JobError: There is no such run, or it has left no such network.
    """
    folder = RunFolder(run)
    result = folder.load_result()
    if result is None or "input" not in result:
        raise JobError("run", str(run), "is not the folder of a finished run")
    try:
        state = load_file(folder.models / f"{name}.safetensors")
    except (OSError, SafetensorError) as error:
        there = ", ".join(sorted(file.stem for file in folder.models.glob("*.safetensors"))) or "none"
        expected = f"has left no such network; there are {there} (run.save_models keeps them)"
        raise JobError("name", name, expected) from error
    module = _built(load_job(folder.job), result, folder, name)
    module.load_state_dict(state)
    return module.eval()


def _built(job: Job, result: dict[str, Any], folder: RunFolder, name: str) -> nn.Module:
    channels, height, width = result["input"]
    shape, num_classes = (channels, height, width), len(result["classes"])
    sizes = {device["name"]: device["size"] for device in result["devices"]}
    size = sizes.get(name, result["merged_size"])
    if job.split.task is None:
        return build_in_form(job.model, shape, num_classes, seed=0, size=size, form=job.split.network_form)
    original = build(job.model, shape, num_classes, seed=0)
    if not job.split.decouples:
        return original
    return read_decoupling(folder.path, original)(read_classes(size))
