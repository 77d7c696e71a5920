"""Many runs of one job: under several splits, with several values of one key, from several seeds.

Each run lies in ``OUT/SPLIT/KEY=VALUE/seed-N``, without the levels that were not asked for. What is finished
there is taken as it is and what was broken off is gone on with; so the same call, or one that asks for
more, goes on where the last one stopped.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from manyhands.errors import JobError
from manyhands.job import Job
from manyhands.lessons import Material, load_material
from manyhands.parallel import attempt, side_by_side
from manyhands.report.atomic import write_atomically
from manyhands.report.folder import RunFolder
from manyhands.report.reading import MEASURES, measure_of
from manyhands.run import check, train
from manyhands.variation import Cell, Vary, naming, plan

__all__ = ["Cell", "SweepWatch", "Vary", "comparison", "prepare", "sweep"]

SCHEMA = 1
"""Of compare.json. It changes when a key changes its meaning or goes away, not when one is added."""

SweepWatch = Callable[[Cell, int, int], None]
"""Told of a run that begins (it has no result and no error yet) or ended, how many have ended, of how many.

One call at a time, but not always from the same thread.
"""


def sweep(
    job: Job,
    splits: Sequence[str],
    out: Path,
    vary: Vary | None = None,
    seeds: Sequence[int] = (),
    jobs: int = 1,
    watch: SweepWatch | None = None,
) -> list[Cell]:
    """Runs a job under each split, with each value, from each seed.

    Args:
        job: What all runs have in common.
        splits: Of `split_labels`.
        out: The folder of the whole comparison.
        vary: A key of the job and its values. Where it is a device's share of the data, the shares of the
            other devices are scaled so that all sum to 1.
        seeds: Without any, the job's.
        jobs: So many runs at a time, each in a process of its own (a program that asks for that must guard
            its main module, as `multiprocessing` demands); 1 stays in this process.
        watch: Told of every run that begins or ends.

    Returns:
        A cell for each run, in the order of splits, values, seeds. One that failed has an `error` in place of
        a `result`, and does not keep the others from finishing.

    Raises:
        JobError: A job or the folder is not right; then nothing was run.
    """
    cells = prepare(job, splits, out, vary, seeds)
    ended = {i: _ended(cell, None) for i, cell in enumerate(cells) if _is_finished(cell)}
    waiting = [i for i in range(len(cells)) if i not in ended]

    def begins(i: int) -> None:
        if watch is not None:
            watch(cells[i], len(ended), len(cells))

    def ends(i: int, error: str | None) -> None:
        ended[i] = _ended(cells[i], error)
        if watch is not None:
            watch(ended[i], len(ended), len(cells))

    if (jobs := min(jobs, len(waiting))) > 1:
        runs = [(_with_fewer_cores(cells[i].job, jobs), cells[i].folder) for i in waiting]
        side_by_side(runs, jobs, lambda n: begins(waiting[n]), lambda n, error: ends(waiting[n], error))
    else:
        for i in waiting:
            begins(i)
            ends(i, attempt(cells[i].job, cells[i].folder))
    return [ended[i] for i in range(len(cells))]


def prepare(
    job: Job, splits: Sequence[str], out: Path, vary: Vary | None = None, seeds: Sequence[int] = ()
) -> list[Cell]:
    """Every run of a comparison, checked with its data, and the folder made that of the comparison.

    Raises:
        JobError: A job or the folder is not right; then the folder is as it was.
    """
    cells = plan(job, splits, out, vary, seeds)
    _check_mark(job, out, vary, seeds)
    _check([cell for cell in cells if not _is_finished(cell)], vary)
    _claim(job, out, vary, seeds)
    return cells


def _is_finished(cell: Cell) -> bool:
    return RunFolder(cell.folder).result.is_file()


def _ended(cell: Cell, error: str | None) -> Cell:
    """The cell with what its run left; a finished run is not run again."""
    return replace(cell, error=error) if error else replace(cell, result=train(cell.job, cell.folder))


def _with_fewer_cores(job: Job, jobs: int) -> Job:
    """The job with its part of the cores, unless it says itself how many it wants."""
    if job.run.workers is not None:
        return job
    workers = max(1, (psutil.cpu_count(logical=True) or 1) // jobs)
    return job.model_copy(update={"run": job.run.model_copy(update={"workers": workers})})


def _check(cells: Sequence[Cell], vary: Vary | None) -> None:
    """Puts each split with each value together once, with its data, before anything is trained."""
    seen: list[tuple[str, Any]] = []
    read: tuple[Any, Material] | None = None
    for cell in cells:
        if (cell.split, cell.value) in seen:
            continue
        seen.append((cell.split, cell.value))
        wanted = (cell.job.data, cell.job.game, cell.job.seed)
        if read is None or read[0] != wanted:
            read = wanted, load_material(cell.job)
        with naming(vary, cell.value, cell.split):
            check(cell.job, read[1])


def _claim(job: Job, out: Path, vary: Vary | None, seeds: Sequence[int]) -> None:
    """Makes a folder that of this comparison, if it is not so already."""
    if _check_mark(job, out, vary, seeds):
        return
    common = tomllib.loads(_common(job, seeds).to_toml())
    mark = {"vary": vary.key if vary else "", "seeds": bool(seeds), "job": common}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "compare.toml", tomli_w.dumps(mark))
    except OSError as error:
        raise JobError("--out", str(out), f"cannot be written to ({error.strerror})") from error


def _check_mark(job: Job, out: Path, vary: Vary | None, seeds: Sequence[int]) -> bool:
    """Whether there is a mark; one of another comparison is refused."""
    mark = out / "compare.toml"
    if not mark.is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise JobError("--out", str(out), "is not empty and holds no comparison; take another folder")
        return False
    try:
        said = tomllib.loads(mark.read_text(encoding="utf-8"))
        of_job = Job.model_validate(said["job"])
        kind = (said["vary"], said["seeds"])
    except (OSError, ValueError, KeyError, TypeError):
        raise JobError(
            "--out", str(out), "has a compare.toml that cannot be read; take another folder"
        ) from None
    if kind != (vary.key if vary else "", bool(seeds)):
        varied = f"that varies {kind[0]}" if kind[0] else "that varies no key"
        runs = "several seeds" if kind[1] else "the job's seed"
        raise JobError("--out", str(out), f"holds a comparison {varied}, with {runs}; take another folder")
    if of_job.hash != _common(job, seeds).hash:
        raise JobError("--out", str(out), "holds a comparison of another job; take another folder")
    return True


def _common(job: Job, seeds: Sequence[int]) -> Job:
    """What all runs of a comparison have in common."""
    return job.split_by("isolated").model_copy(update={"seed": 0} if seeds else {})


def comparison(job: Job, cells: Sequence[Cell], out: Path, vary: Vary | None = None) -> dict[str, Any]:
    """The contract of compare.json (docs/result.md says what each key means)."""
    finished = [cell.result for cell in cells if cell.result is not None]
    return {
        "schema": SCHEMA,
        "job": job.name,
        "measure": measure_of(finished[0] if finished else {}).key,
        "key": vary.key if vary else None,
        "values": list(vary.values) if vary else [],
        "seeds": list(dict.fromkeys(cell.seed for cell in cells)),
        "splits": list(dict.fromkeys(cell.split for cell in cells)),
        "runs": [_figures(cell, cell.result, out) for cell in cells if cell.result is not None],
        "failed": [_which(cell, out) | {"error": cell.error} for cell in cells if cell.error is not None],
    }


def _which(cell: Cell, out: Path) -> dict[str, Any]:
    folder = cell.folder.relative_to(out).as_posix()
    return {"split": cell.split, "value": cell.value, "seed": cell.seed, "folder": folder}


def _figures(cell: Cell, result: dict[str, Any], out: Path) -> dict[str, Any]:
    keys = ("name", "kind", "share", "size")
    return _which(cell, out) | {
        **{key: result[key] for key in ("form", "hash", "complete", "rounds", "seconds")},
        **_judged(result),
        "bytes_sent": sum(device["bytes_sent"] for device in result["devices"]),
        "devices": [{key: d[key] for key in keys} | _judged(d) for d in result["devices"]],
    }


def _judged(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Both measures of a result or a device; runs of old have one of them."""
    return {key: holder.get(key) for key in MEASURES}
