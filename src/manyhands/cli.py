"""The command line. Every command is a thin face of something that Python can call as well.

Exit status 0: done; 1: the run failed; 2: the job or the command line is wrong, said in one line.
"""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any, NoReturn

# Read when torch is loaded: a lost connection is ours to tell of, in a line and without its C++ frames.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.exceptions import TyperException

from manyhands import __version__
from manyhands.cli_common import (
    EngineOption,
    JobArgument,
    JsonOption,
    OutOption,
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
from manyhands.cli_compare import compare
from manyhands.cli_keys import keys
from manyhands.cli_live import gather, join_job, status
from manyhands.cli_plan import plan
from manyhands.cli_profile import profile
from manyhands.crewing import is_crew_run, train_crew
from manyhands.data import SOURCES, DataSection, load
from manyhands.display import result_table
from manyhands.errors import JobError, ManyhandsError, RunError, Stopped
from manyhands.fleet import CATALOG
from manyhands.job import load_job
from manyhands.models import FAMILIES, cost_of
from manyhands.report.folder import RunFolder
from manyhands.report.units import bytes_text, count_text, counted, memory_text, seconds_text
from manyhands.run import resume as run_resume
from manyhands.run import train as run_train

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train one convolutional network on the mixed devices you already own.",
)


@app.command()
def train(
    job: JobArgument = None,
    out: OutOption = None,
    seed: SeedOption = None,
    changes: SetOption = None,
    engine: EngineOption = "simulate",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a job; without one, the built-in quick start."""
    check_engine(engine)
    wanted = read_job(job, changes, seed)
    folder = new_folder(out, wanted.name)
    console = make_console(quiet or as_json)
    with watching(console, alone=wanted.run.alone) as table, stoppable(f"'manyhands resume {folder}'"):
        if check_engine(engine) == "live" and wanted.split.by == "space":
            result = train_crew(wanted, folder, table, table and table.reading)
        else:
            result = run_train(wanted, folder, table, table and table.reading, check_engine(engine))
    _show_result(console, result, folder, as_json=as_json)


app.command()(compare)
app.command()(profile)
app.command()(plan)
app.add_typer(keys)
app.command("join")(join_job)
app.command()(status)
app.command()(gather)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on where a killed run stopped."""
    console = make_console(quiet or as_json)
    if RunFolder(folder).load_result() is not None:
        console.print(f"{escape(str(folder))} is finished; this is its result.")
    alone = RunFolder(folder).is_run and load_job(RunFolder(folder).job).run.alone
    with watching(console, alone=alone) as table, stoppable(f"'manyhands resume {folder}'"):
        if is_crew_run(folder):
            result = train_crew(load_job(RunFolder(folder).job), folder, table, table and table.reading)
        else:
            result = run_resume(folder, table, table and table.reading)
    _show_result(console, result, folder, as_json=as_json)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show a run's result and open its report."""
    if not RunFolder(folder).is_run:
        raise JobError("RUN", str(folder), "is not a run folder: it has no job.toml")
    result = RunFolder(folder).load_result()
    if result is None:
        raise JobError("RUN", str(folder), f"is not finished; go on with it by 'manyhands resume {folder}'")
    _show_result(make_console(as_json), result, folder, as_json=as_json)
    page = RunFolder(folder).page
    if browser and not as_json and page.is_file():
        webbrowser.open(page.resolve().as_uri())


@app.command()
def devices(
    as_json: JsonOption = False,
    sources: Annotated[bool, typer.Option("--sources", help="Where each figure comes from.")] = False,
) -> None:
    """List the kinds of device that are built in."""
    if as_json:
        typer.echo(json.dumps([vars(kind) | {"sources": dict(kind.sources)} for kind in CATALOG.values()]))
        return
    console = make_console(False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("kind", "training", "memory", "link", "latency", "power"):
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for kind in CATALOG.values():
        table.add_row(
            kind.name,
            f"{count_text(kind.flops)}FLOP/s",
            memory_text(kind.memory_bytes),
            f"{kind.bandwidth_bps / 1e6:g} Mbit/s",
            f"{kind.latency_s * 1e3:g} ms",
            f"{kind.idle_watts:g}-{kind.active_watts:g} W",
        )
    console.print(table)
    if sources:
        for kind in CATALOG.values():
            console.print(f"\n[bold]{kind.name}[/bold]  {escape(kind.title)}", soft_wrap=True)
            for field, source in kind.sources.items():
                console.print(f"  {field:<14} [dim]{escape(source)}[/dim]", soft_wrap=True)
    else:
        console.print("\n'manyhands devices --sources' says where each figure comes from.")


@app.command()
def models(as_json: JsonOption = False) -> None:
    """List the networks that are built in, with what one 32x32 colour image costs them."""
    rows: list[dict[str, Any]] = []
    for family in FAMILIES.values():
        side = max(32, family.min_side)
        for size in family.sizes:
            shape = (3, side, side)
            with torch.device("meta"):  # shapes only: nobody waits for 57 million random numbers
                cost = cost_of(family.build(size, shape=shape, num_classes=10), shape)
            about = {"about": family.about, "any_width": family.any_width}
            figures = {"parameters": cost.parameters, "forward_flops": cost.forward_flops}
            rows.append({"name": family.name, "size": size, **about, "input": list(shape), **figures})
    if as_json:
        typer.echo(json.dumps(rows))
        return
    console = make_console(False)
    for family in FAMILIES.values():
        console.print(f"[bold]{family.name}[/bold]  [dim]{escape(family.about)}[/dim]", soft_wrap=True)
        for row in (row for row in rows if row["name"] == family.name):
            operations = f"{count_text(row['forward_flops'])}FLOP at {'x'.join(map(str, row['input']))}"
            console.print(f"  {row['size']:<8} {row['parameters']:>12,} parameters  {operations:>24}")
    wide = ", ".join(family.name for family in FAMILIES.values() if family.any_width)
    console.print(escape(f"\nIn any width (sizes = 3 in [model], for example): {wide}."), soft_wrap=True)
    console.print(escape('Any nn.Module works too: name = "package.module:Callable" in [model].'))


@app.command()
def data(
    action: Annotated[str | None, typer.Argument(metavar="[get]", help="Fetch a dataset ...")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="... of this name.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the datasets that manyhands reads; 'data get NAME' fetches one."""
    if action is not None:
        if action != "get" or name is None:
            raise JobError(
                "data", " ".join(filter(None, (action, name))), "must read 'manyhands data get NAME'"
            )
        _download(name)
        return
    keys = ("name", "about", "licence", "files", "size_bytes", "address", "built_in", "present")
    rows = [{key: getattr(source, key) for key in keys} for source in SOURCES.values()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    console = make_console(False)
    for source in SOURCES.values():
        absent = "[dim]not here[/dim]" if source.downloads else "[dim]where data.path says[/dim]"
        here = "[green]here[/green]" if source.present else absent
        size = (
            f", {bytes_text(source.size_bytes)} to download"
            if source.downloads and not source.present
            else ""
        )
        console.print(f"[bold]{source.name:<16}[/bold]{here}{size}", soft_wrap=True)
        console.print(f"  [dim]{escape(source.about)} ({escape(source.licence)})[/dim]", soft_wrap=True)
    console.print("\n'manyhands data get NAME' fetches one; $MANYHANDS_DATA names a folder of them.")


def _download(name: str) -> None:
    if name not in SOURCES:
        raise JobError("data get", name, f"there is no such dataset; choose one of {', '.join(SOURCES)}")
    console = make_console(False)
    with console.status("looking ...") as status:

        def progress(what: str, done: int, total: int | None) -> None:
            of = f" of {bytes_text(total)}" if total else ""
            status.update(f"{escape(what)}: {bytes_text(done)}{of}")

        dataset = load(DataSection(name=name, download=True), seed=0, progress=progress)
    console.print(
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test examples are here"
    )


def _show_result(console: Console, result: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        _check_complete(result)
        return
    console.print(result_table(result))
    took, page = seconds_text(result["wall_seconds"]), RunFolder(folder).page
    where = f"report  {escape(str(page))}" if page.is_file() else f"run     {escape(str(folder))}"
    console.print(f"\ntook    {took} here\n{where}", soft_wrap=True)
    _check_complete(result)


def _check_complete(result: dict[str, Any]) -> None:
    if not result["complete"]:
        raise RunError(
            f"the run broke off after {counted(result['rounds'], 'round')}: nobody was left to go on with it"
        )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"manyhands {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one convolutional network on the mixed devices you already own."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The console script: turns errors into one line and an exit status."""
    sys.path.insert(0, "")  # so that [model] name = "own_model:make" finds own_model.py in the current folder
    try:
        status = app(standalone_mode=False)
    except ManyhandsError as error:
        _end(str(error), error.exit_status)
    except TyperException as error:
        _end(f"{error.format_message().rstrip('.')}; see 'manyhands --help'", 2)
    except typer.Abort:
        _end("stopped", Stopped.exit_status)
    except OSError as error:
        _end(f"{error}; what is done so far is kept, 'manyhands resume' goes on with it", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _end(message: str, status: int) -> NoReturn:
    typer.echo(f"manyhands: {' '.join(message.split())}", err=True)
    sys.exit(status)
