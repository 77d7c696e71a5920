"""What comes out of a run: the networks that its hands have left, and the figures of result.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.blocks import Weights, extract
from manyhands.coordinated import COORDINATOR
from manyhands.exchange.coordination import Progress
from manyhands.job import Job
from manyhands.lessons import MeasureName
from manyhands.lineup import Lineup
from manyhands.looking import averaged_network, merged_network
from manyhands.replica import Replica
from manyhands.report.folder import RunFolder
from manyhands.report.page import write_page
from manyhands.report.plots import save_pngs
from manyhands.report.summary import SCHEMA, Tally
from manyhands.splits import Seat
from manyhands.tile_groups import linked, parts_of, speaker

__all__ = ["figures_of_networks", "make_result", "networks_left", "publish", "set_beside"]


def make_result(lineup: Lineup, tally: Tally, engine: str) -> dict[str, Any]:
    """The contract of result.json, as far as events tell, but for the time that the run took here."""
    job, material, fleet, team = lineup.job, lineup.material, lineup.fleet, lineup.team
    # One group that has all the data is all there is to measure.
    curve = tally.devices[fleet.names[0]].curve if job.split.by == "space" else tally.curve
    last = curve[-1] if curve else None
    rounds = tally.round if team.coordinator_host else max(d.rounds for d in tally.devices.values())
    leading = {COORDINATOR} if team.coordinator_host else _not_lost(tally)
    return {
        "schema": SCHEMA,
        "job": job.name,
        "hash": job.hash,
        "seed": job.seed,
        "engine": engine,
        "split": job.split.by,
        "form": job.split.form if job.split.by == "capacity" else None,
        "model": job.model.name,
        "data": material.name,
        "input": list(material.shape),
        "classes": list(material.classes),
        "seconds": tally.seconds,
        "wall_seconds": 0.0,
        "complete": bool(leading) and leading <= tally.finished,
        "rounds": rounds,
        "merges": tally.merges,
        "measure": team.measure,
        "accuracy": last["accuracy"] if last else None,
        "score": last["score"] if last else None,
        "merged_size": None,
        "prepared": None,
        "lost_blocks": [],
        "curve": curve,
        "topology": {
            "nodes": [device.name for device in fleet.hardware],
            "edges": linked(fleet),
            "coordinator": team.coordinator_host and speaker(fleet[team.coordinator_host]),
        },
        "groups": [plan.facts for plan in lineup.groups.values()],
        "num_notable": tally.num_notable,
        "events": tally.notable,
        "baseline": None,
        "devices": tally.device_figures(fleet, team.statics, parts_of(lineup.groups)),
    }


def _not_lost(tally: Tally) -> set[str]:
    """The devices that did not crash for good."""
    return {name for name, device in tally.devices.items() if device.lost_at_seconds is None}


def networks_left(
    lineup: Lineup, ends: Mapping[str, Any], finished: set[str]
) -> tuple[dict[str, Weights], list[str]]:
    """The networks of a run, and the blocks that nobody holds any more.

    Args:
        lineup: The run.
        ends: Hand -> what it has left.
        finished: The hands that came to the end.

    Returns:
        Each device's network that came to the end and, as ``global``, the merged one if there is one.
    """
    split, library, members = lineup.split, lineup.library, lineup.team.members
    replicas: dict[str, Replica] = {name: ends[name] for name in members if name in finished}
    networks = {name: replica.weights for name, replica in replicas.items()}
    merged: Progress | None = ends.get(COORDINATOR)
    lost: list[str] = []
    if merged is None:
        num_examples = {name: member.num_examples for name, member in members.items()}
        held = {name: extract(weights, split.seats[name].layout) for name, weights in networks.items()}
        together, lost = averaged_network(split, library, held, num_examples)
    else:
        together = merged_network(split.merged, library, merged.blocks) if split.merged else None
    if split.name == "space":  # what the one group has is what there is
        together = next(iter(networks.values()), None)
    return networks if together is None else {**networks, "global": together}, lost


def figures_of_networks(lineup: Lineup, networks: Mapping[str, Weights]) -> dict[str, Any]:
    """What result.json says of the networks themselves."""
    prepared, merged, team = lineup.library.prepared, lineup.split.merged, lineup.team
    figures: dict[str, Any] = {"prepared": prepared.figures if prepared else None}
    if merged is not None and "global" in networks:
        figures["merged_size"] = merged.size
        if team.coordinator_host is None:
            figures[team.measure] = _measured(lineup, merged, networks["global"])
    return figures


def _measured(lineup: Lineup, merged: Seat, weights: Weights) -> float:
    """Of the network that devices without a coordinator made together; nobody had it while they trained."""
    architecture, team = lineup.library(merged.size).architecture, lineup.team
    return float(team.looker.work(architecture, lambda: weights, "cpu").run().facts[team.measure])


def set_beside(result: dict[str, Any], alone: Mapping[str, Any], measure: MeasureName) -> None:
    """Says in a result what each device has come to alone."""
    by_name = {device["name"]: device for device in alone["devices"]}
    for device in result["devices"]:
        device[f"{measure}_alone"] = by_name[device["name"]][measure]
    result["baseline"] = {key: alone[key] for key in ("split", "seconds")}


def publish(job: Job, result: Mapping[str, Any], folder: RunFolder) -> None:
    """Writes the report, if the job wants one, and the figures; with these the run is finished."""
    if job.run.report:
        save_pngs(result, folder.path)
        write_page(result, job.to_toml(), folder.page)
    folder.finish(result)
