"""From events to figures: `Tally` counts while a run goes on, `result` makes the contract of result.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.fleet import Device, Fleet
from manyhands.hand import Facts
from manyhands.report.reading import MEASURES, Measure

__all__ = ["NOTABLE", "SCHEMA", "DeviceTally", "Part", "Tally"]

SCHEMA = 1
"""Of result.json. It changes when a key changes its meaning or goes away, not when one is added."""

NOTABLE = frozenset(
    {
        "crashed",
        "left",
        "ignored",
        "mismatch",
        "restarted",
        "stranded",
        "missed",
        "late",
        "refused",
        "peer_lost",
        "peer_back",
        "message_lost",
        "waiting",
        "taken_up",
        "gone_without",
    }
)
"""Events that a person wants to be told of."""

AVERAGING = frozenset({"merge", "cut", "take"})
"""Works that bring versions of a block together."""

MAX_NOTABLE = 500


@dataclass
class DeviceTally:
    """What one hand has done so far."""

    rounds: int = 0
    steps: int = 0
    examples: int = 0
    flops: float = 0.0
    merge_flops: float = 0.0
    busy_seconds: float = 0.0
    slowed_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    accuracy: float | None = None
    score: float | None = None
    loss: float | None = None
    down_seconds: float = 0.0
    lost_at_seconds: float | None = None
    finished: bool = False
    ratios: list[float] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)

    def end(self, measure: Measure) -> float | None:
        """How good its network was when it was last measured."""
        value: float | None = getattr(self, measure.key)
        return value

    def down_or_back(self, kind: str, seconds: float) -> None:
        """Takes note of a crash, or of its end."""
        if kind in ("crashed", "left"):
            self.lost_at_seconds = seconds
        elif kind == "restarted":
            self.down_seconds += seconds - (self.lost_at_seconds or seconds)
            self.lost_at_seconds = None


@dataclass(frozen=True)
class Part:
    """One device's part in each step of its tile group.

    Attributes:
        busy: The part of a step's time in which it computes.
        flops: The part of the group's operations that it carries out.
        memory_bytes: What training takes it.
        sent_bytes: To the others of its group, a step.
        received_bytes: From them, a step.
        lost_at_seconds: When the group went on without it; None if it did not.
    """

    busy: float
    flops: float
    memory_bytes: int
    sent_bytes: int
    received_bytes: int
    lost_at_seconds: float | None = None


class Tally:
    """Counts the events of a run.

    Args:
        hosts: Hand -> the device it lives on. What the coordinator's hand spends is its host's.
        measure: What networks are judged by, a key of `MEASURES`; who shows the tally needs to know it
            before the first network is measured.
        clock: What the run's seconds are, in a word.
    """

    def __init__(self, hosts: Mapping[str, str], measure: str = "accuracy", clock: str = "simulated") -> None:
        self.measure = MEASURES[measure]
        self.clock = clock
        self.seconds = 0.0
        self.round = 0
        self.num_events = 0
        self.merges = 0
        self.curve: list[dict[str, Any]] = []
        self.finished: set[str] = set()
        self.notable: list[dict[str, Any]] = []
        self.num_notable = 0
        self.devices = {host: DeviceTally() for host in hosts.values()}
        self._hosts = dict(hosts)

    def add(self, event: Facts) -> None:
        """Counts one event."""
        self.num_events += 1
        self.seconds = max(self.seconds, event["seconds"])
        hand, kind = event["device"], event["event"]
        device = self.devices[self._hosts[hand]]
        own = self._hosts[hand] == hand
        if kind == "computed":
            merges = event["work"] == "merge"
            device.busy_seconds += event["seconds"] - event["started"]
            device.slowed_seconds += event.get("slowed_seconds", 0.0)
            device.flops += event["flops"]
            device.merge_flops += event["flops"] * (event["work"] in AVERAGING)
            self.merges += merges
            facts = event["facts"] if event["work"] != "try" else {}
            device.examples += facts.get("examples", 0)
            device.steps = facts.get("num_steps", device.steps)
            device.loss = facts.get("loss", device.loss)
        elif kind == "interrupted":
            device.busy_seconds += max(event["seconds"] - event["started"], 0.0)
        elif kind == "sent":
            device.bytes_sent += event["bytes"]
        elif kind == "received":
            device.bytes_received += event["bytes"]
        elif kind == "round":
            device.rounds = event["round"]
        elif kind == "evaluated":
            device.accuracy, device.score = event.get("accuracy"), event.get("score")
            device.curve.append(_point(event) | {"examples": device.examples})
        elif kind in ("merged", "together"):
            self.round = event["round"]
            if MEASURES.keys() & event.keys():
                self.curve.append(_point(event))
        elif kind == "finished":
            self.finished.add(hand)
            device.finished = device.finished or own
        elif kind == "balanced":
            device.ratios.append(event["ratio"])
        elif own:
            device.down_or_back(kind, event["seconds"])
        if kind in NOTABLE:
            self._note(event)

    def _note(self, event: Facts) -> None:
        self.num_notable += 1
        if len(self.notable) < MAX_NOTABLE:
            detail = {k: v for k, v in event.items() if k not in ("seconds", "device", "event")}
            said = ", ".join(
                f"{k} {', '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in detail.items()
            )
            self.notable.append({k: event[k] for k in ("seconds", "device", "event")} | {"detail": said})

    def device_figures(
        self,
        fleet: Fleet,
        statics: Mapping[str, Mapping[str, Any]],
        parts: Mapping[str, Part] | None = None,
    ) -> list[dict[str, Any]]:
        """The `devices` of result.json: what was counted beside what was planned.

        Args:
            fleet: Who took part.
            statics: Participant -> what is known of it beforehand.
            parts: Device of a tile group -> its part in each step.
        """
        figures: list[dict[str, Any]] = []
        for device in fleet.devices:
            whole = self._figures(
                device, device, statics[device.name], self.devices[device.name].busy_seconds
            )
            if not device.executors:
                figures.append(whole)
            for executor in device.executors:
                part = (parts or {})[executor.name]
                figures.append(self._executor_figures(device, executor, part, statics[device.name]))
        return figures

    def _figures(
        self, hand: Device, device: Device, static: Mapping[str, Any], busy_seconds: float
    ) -> dict[str, Any]:
        tally = self.devices[hand.name]
        here_seconds = self.seconds if tally.lost_at_seconds is None else tally.lost_at_seconds
        waiting_seconds = max(here_seconds - tally.down_seconds - busy_seconds, 0.0)
        return {
            "name": device.name,
            "kind": device.kind,
            "group": None if hand is device else hand.name,
            "share": hand.share,
            **static,
            "rounds": tally.rounds,
            "accuracy": tally.accuracy,
            "score": tally.score,
            "accuracy_alone": None,
            "score_alone": None,
            "loss": tally.loss,
            "ratio": sum(tally.ratios) / len(tally.ratios) if tally.ratios else None,
            "flops": tally.flops,
            "merge_flops": tally.merge_flops,
            "examples": tally.examples,
            "bytes_sent": tally.bytes_sent,
            "bytes_received": tally.bytes_received,
            "busy_seconds": busy_seconds,
            "slowed_seconds": tally.slowed_seconds,
            "waiting_seconds": waiting_seconds,
            "energy_joules": device.active_watts * busy_seconds + device.idle_watts * waiting_seconds,
            "down_seconds": tally.down_seconds,
            "lost_at_seconds": tally.lost_at_seconds,
            "finished": tally.finished,
            "curve": tally.curve,
        }

    def _executor_figures(
        self, group: Device, device: Device, part: Part, static: Mapping[str, Any]
    ) -> dict[str, Any]:
        """One device of a tile group: the group's network, and its own part of the work and the traffic."""
        tally = self.devices[group.name]
        figures = self._figures(group, device, static, tally.busy_seconds * part.busy)
        speaks = device.name == max(group.executors, key=lambda d: d.bandwidth_bps).name
        figures["memory_bytes"] = part.memory_bytes
        figures["flops"] = tally.flops * part.flops
        figures["merge_flops"] = tally.merge_flops * speaks
        figures["bytes_sent"] = tally.steps * part.sent_bytes + tally.bytes_sent * speaks
        figures["bytes_received"] = tally.steps * part.received_bytes + tally.bytes_received * speaks
        if part.lost_at_seconds is not None:
            figures["lost_at_seconds"], figures["finished"] = part.lost_at_seconds, False
        return figures


def _point(event: Facts) -> dict[str, Any]:
    return {key: event.get(key) for key in ("seconds", "round", *MEASURES, "loss", "examples")}
