"""The command `manyhands compare`: the same job under several splits, and with several values and seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from manyhands.cli_common import (
    EngineOption,
    JobArgument,
    JsonOption,
    QuietOption,
    SeedOption,
    SetOption,
    check_engine,
    make_console,
    new_folder,
    read_job,
    stoppable,
    watching,
)
from manyhands.display import comparison_table, sweep_tables
from manyhands.errors import JobError, RunError
from manyhands.job import split_labels
from manyhands.progress import SweepProgress
from manyhands.report.atomic import write_atomically
from manyhands.report.learning import learning_figure
from manyhands.report.look import png_bytes
from manyhands.report.page import write_compare_page
from manyhands.report.plots import save_compare_png
from manyhands.report.sweep import save_sweep_png, write_sweep_page
from manyhands.run import compare as run_compare
from manyhands.sweeps import Cell, Vary, comparison, prepare, sweep
from manyhands.variation import check_splits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["compare"]


def compare(
    job: JobArgument = None,
    splits: Annotated[
        str, typer.Option("--splits", help=f"With commas, of {', '.join(split_labels())}.")
    ] = "isolated,homogeneous",
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=V1,V2,...", help="Also with each of these values of a key."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N1,N2,...", help="Also from each of these seeds.")
    ] = None,
    smooth: Annotated[
        int,
        typer.Option("--smooth", min=1, metavar="N", help="Learning curves as the mean of N points each."),
    ] = 1,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="So many runs at a time.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the runs go; without it, runs/NAME-compare."),
    ] = None,
    seed: SeedOption = None,
    changes: SetOption = None,
    engine: EngineOption = "simulate",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the same job under several splits: one table and one plot."""
    if check_engine(engine) != "simulate":
        raise JobError("--engine", engine, "a comparison needs one clock for all runs; take simulate")
    names = [name.strip() for name in splits.split(",") if name.strip()]
    check_splits(names)
    varied, numbers = _read_vary(vary), _read_seeds(seeds, seed)
    swept = varied is not None or bool(numbers)
    if smooth > 1 and not swept:
        raise JobError("--smooth", smooth, "is of the learning curves, which need --seeds or --vary")
    wanted = read_job(job, changes, seed)
    wanted = wanted.model_copy(update={"run": wanted.run.model_copy(update={"alone": False})})
    folder = new_folder(None, f"{wanted.name}-compare") if out is None else out
    console = make_console(quiet or as_json)
    with stoppable(f"the same command with --out {folder}"):
        if jobs == 1 and not swept:
            prepare(wanted, names, folder)
            with watching(console) as live:
                results = run_compare(wanted, names, folder, live, live and live.reading)
            _show_splits(console, results, folder, as_json=as_json)
            return
        with SweepProgress(Console(stderr=True, quiet=console.quiet, highlight=False)) as progress:
            cells = sweep(wanted, names, folder, varied, numbers, jobs, progress)
    finished = [cell for cell in cells if cell.result]
    if finished and not swept:
        results = {cell.split: cell.result for cell in finished if cell.result}
        _show_splits(console, results, folder, as_json=as_json)
    elif finished:
        figures = comparison(wanted, cells, folder, varied)
        curves = learning_figure(figures, [cell.result for cell in finished if cell.result], smooth)
        _show_sweep(console, figures, curves, folder, as_json=as_json)
    _check_failed(cells)


def _read_vary(texts: list[str] | None) -> Vary | None:
    if not texts:
        return None
    if len(texts) > 1:
        raise JobError("--vary", texts[1], "only one key can be varied")
    return Vary.read(texts[0])


def _read_seeds(text: str | None, seed: int | None) -> list[int]:
    if text is None:
        return []
    if seed is not None:
        raise JobError("--seed", seed, "cannot be there together with --seeds")
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise JobError("--seeds", text, "must be whole numbers from 0, with commas, as in 1,2,3")
    return [int(part) for part in parts]


def _show_splits(
    console: Console, results: dict[str, dict[str, Any]], folder: Path, *, as_json: bool
) -> None:
    plot = save_compare_png(results, folder)
    page = write_compare_page(results, folder / "report.html")
    if as_json:
        typer.echo(json.dumps(results))
    console.print(comparison_table(results))
    _show_files(console, plot=plot, report=page)


def _show_sweep(
    console: Console, figures: dict[str, Any], curves: Figure | None, folder: Path, *, as_json: bool
) -> None:
    write_atomically(folder / "compare.json", json.dumps(figures, indent=1, allow_nan=False) + "\n")
    plot = save_sweep_png(figures, folder)
    page = write_sweep_page(figures, folder / "report.html", curves)
    if as_json:
        typer.echo(json.dumps(figures))
    console.print(sweep_tables(figures))
    learned = folder / "curves.png"
    if curves is None:
        learned.unlink(missing_ok=True)  # of an earlier command in this folder
        _show_files(console, plot=plot, report=page)
    else:
        write_atomically(learned, png_bytes(curves))
        _show_files(console, plot=plot, curves=learned, report=page)


def _show_files(console: Console, **files: Path) -> None:
    lines = "".join(f"\n{name:<8}{escape(str(path))}" for name, path in files.items())
    console.print(lines, soft_wrap=True)


def _check_failed(cells: list[Cell]) -> None:
    failed = [f"{cell.title} ({cell.error})" for cell in cells if cell.error is not None]
    if failed:
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise RunError(f"{len(failed)} of {len(cells)} runs failed: {'; '.join(failed[:3])}{more}")
