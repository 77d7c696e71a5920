"""From the trace of a tile group that trained for real to its result.

Where each device has left a folder of its own, several have written down the same events; the trace of the
run has each of them once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_core import to_json

from manyhands.collecting import left_behind
from manyhands.data import Progress as ReadingProgress
from manyhands.engine.clock import wall_seconds
from manyhands.fleet import make_fleet
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.lessons import Material, load_material
from manyhands.report.atomic import write_atomically
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Part, Tally
from manyhands.result import make_result, publish
from manyhands.run import put_together
from manyhands.sizing import Library
from manyhands.tile_groups import GroupPlan

__all__ = ["conclude", "gather_crew", "told_once"]


def conclude(
    job: Job, material: Material, library: Library, folder: RunFolder, started: float | None = None
) -> dict[str, Any]:
    """Makes the result of a crew's run from its trace."""
    lineup = put_together(job, material, library)
    (name,), team = lineup.fleet.names, lineup.team
    tally = Tally(team.hosts, team.measure)
    events = [event for event in folder.events() if event["device"] == name]
    for event in events:
        tally.add(event)
    plan = _measured(lineup.groups[name], events)
    result = make_result(replace(lineup, groups={name: plan}), tally, "live")
    result["groups"] = [_group_facts(plan, events)]
    result["wall_seconds"] = wall_seconds() - started if started is not None else tally.seconds
    publish(job, result, folder)
    return result


def _measured(plan: GroupPlan, events: list[Facts]) -> GroupPlan:
    """The plan with what its devices really took: processor time, memory, and who was lost when."""
    parts = dict(plan.parts)
    busy, total_s = dict.fromkeys(plan.devices, 0.0), max((e["seconds"] for e in events), default=0.0)
    for event in events:
        if event["event"] == "peer_back":
            parts[event["peer"]] = replace(parts[event["peer"]], lost_at_seconds=None)
        elif event["event"] == "peer_lost":
            parts[event["peer"]] = replace(parts[event["peer"]], lost_at_seconds=event["seconds"])
        elif event["event"] == "usage":
            used = zip(event["peers"], event["cpu_s"], event["memory_bytes"], strict=True)
            for name, cpu_s, peak in used:
                busy[name] += cpu_s
                parts[name] = replace(parts[name], memory_bytes=peak)
    sums = sum(busy.values())
    return replace(plan, parts={name: _used(parts[name], busy[name], total_s, sums) for name in plan.devices})


def _used(part: Part, busy_s: float, total_s: float, sums_s: float) -> Part:
    if not sums_s or not total_s:
        return part
    return replace(part, busy=min(busy_s / total_s, 1.0), flops=busy_s / sums_s)


def _group_facts(plan: GroupPlan, events: list[Facts]) -> dict[str, Any]:
    """The group as it last was, its prediction beside what was measured."""
    formed = [event for event in events if event["event"] == "formed"]
    facts = dict(formed[-1]["plan"]) if formed else plan.facts
    since = formed[-1]["seconds"] if formed else 0.0
    steps = [e["measured_s"] for e in events if e["event"] == "step" and e["seconds"] >= since]
    # The first steps fill caches and choose kernels.
    settled = steps[min(3, len(steps) // 2) :]
    facts["measured_step_seconds"] = median(settled) if settled else None
    return facts


# Devices on hosts of their own.


def gather_crew(
    out: Path, data: Path | None = None, progress: ReadingProgress | None = None
) -> dict[str, Any]:
    """Makes one run of what the devices of a tile group have left, brought to ``OUT/devices/NAME``.

    Args:
        out: The folder of the run.
        data: Where this machine has the data.
        progress: Told how far reading it is.
    """
    job, found = left_behind(out, data)
    material = load_material(job, progress)
    folder = RunFolder(out)
    folder.begin(job.to_toml())
    (group,) = make_fleet(job.fleet, seed=job.seed, tiled=True).names
    events = told_once((device.events() for device in found), group)
    write_atomically(folder.trace, b"".join(to_json(event) + b"\n" for event in events))
    for device in found:
        for network in device.models.glob("*.safetensors"):
            folder.models.mkdir(exist_ok=True)
            shutil.copyfile(network, folder.models / network.name)
    return conclude(job, material, Library(job, material, progress), folder)


def told_once(traces: Iterable[Iterable[Facts]], group: str) -> list[Facts]:
    """What several devices have written down, each event of their group once, in order of time.

    Who has seen most tells; others only add the rounds and steps that it was not there for.
    """
    own, kept = [], []
    theirs: list[list[Facts]] = []
    for trace in traces:
        events = list(trace)
        own += [event for event in events if event["device"] != group]
        theirs.append([event for event in events if event["device"] == group])
    known: set[tuple[Any, ...]] = set()
    for events in sorted(theirs, key=len, reverse=True):
        news = [event for event in events if _what(event) not in known]
        if any(event["event"] in ("step", "round", "finished") for event in news):
            kept += news
            known |= {_what(event) for event in news}
    return sorted(own + kept, key=lambda event: float(event["seconds"]))


def _what(event: Facts) -> tuple[Any, ...]:
    """The same for all who tell of the same thing; figures each has measured by itself."""
    return tuple(event.get(key) for key in ("event", "formation", "round", "step", "peer"))
