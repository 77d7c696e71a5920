"""``manyhands plan``: what the tile groups of a job should take, before anything is trained."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.table import Table

from manyhands.cli_common import JobArgument, JsonOption, SeedOption, SetOption, make_console, read_job
from manyhands.errors import JobError
from manyhands.lessons import load_material
from manyhands.lineup import Lineup
from manyhands.report.units import bytes_text, memory_text, percent_text, seconds_text
from manyhands.run import put_together
from manyhands.sizing import Library
from manyhands.tile_groups import GroupPlan

__all__ = ["plan"]


def plan(
    job: JobArgument = None, seed: SeedOption = None, changes: SetOption = None, as_json: JsonOption = False
) -> None:
    """Predict step time, memory and traffic of a job's tile groups; of all devices as one, if it has none."""
    wanted = read_job(job, changes, seed)
    if wanted.split.by != "space" and not wanted.fleet.has_groups:
        wanted = wanted.split_by("space")
    material = load_material(wanted)
    lineup = put_together(wanted, material, Library(wanted, material))
    if not lineup.groups:
        raise JobError("fleet.device", None, "a tile group needs two devices or more")
    flops = {device.name: device.flops for device in lineup.fleet.hardware}
    found = [_figures(lineup, group, flops) for group in lineup.groups.values()]
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = make_console(False)
    for figures in found:
        console.print(_headline(figures), style="bold", soft_wrap=True)
        console.print(_table(figures))
        console.print(f"[dim]{_how(figures)}[/dim]\n", soft_wrap=True)


def _figures(lineup: Lineup, group: GroupPlan, flops: dict[str, float]) -> dict[str, Any]:
    """The plan, each device's part in it, and what the fastest would take alone."""
    job, network = lineup.job, lineup.library(lineup.split.seats[group.name].size).architecture
    fastest = max(group.devices, key=lambda name: flops[name])
    alone_s = job.learn.batch_size * network.cost.train_flops / flops[fastest]
    parts = [{"name": name} | vars(group.parts[name]) for name in group.devices]
    for part in parts:
        part.pop("lost_at_seconds")
    return group.facts | {
        "batch_size": job.learn.batch_size,
        "fastest": fastest,
        "fastest_alone_seconds": alone_s,
        "speed_up": alone_s / group.step_s,
        "device_parts": parts,
    }


def _headline(figures: dict[str, Any]) -> str:
    return (
        f"{figures['name']}: {seconds_text(figures['step_seconds'])} a step of {figures['batch_size']}, "
        f"{figures['speed_up']:.2f} x as fast as {figures['fastest']} alone "
        f"({seconds_text(figures['fastest_alone_seconds'])})"
    )


def _table(figures: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("device", "busy", "memory", "sent a step"):
        table.add_column(name, justify="left" if name == "device" else "right", no_wrap=True)
    for part in figures["device_parts"]:
        table.add_row(
            part["name"],
            percent_text(part["busy"]),
            memory_text(part["memory_bytes"]),
            bytes_text(part["sent_bytes"]),
        )
    return table


def _how(figures: dict[str, Any]) -> str:
    """The plan in a sentence."""
    rows, cols = figures["rows"], figures["cols"]
    starts = ", ".join(figures["group_starts"]) or "nowhere"
    spent = ", ".join(f"{name} {seconds_text(s)}" for name, s in figures["parts"].items() if s)
    return (
        f"rows {' + '.join(map(str, rows))}, columns {' + '.join(map(str, cols))}; "
        f"borders are given at: {starts}; tiles up to {figures['tail']}, the rest by {figures['tail_mode']}"
        f"{'; maps are computed again on the way back' if figures['checkpoint'] else ''}. A step: {spent}."
    )
