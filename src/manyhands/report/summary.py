"""From events to figures: `Tally` counts while a run goes on, `result` makes the contract of result.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.fleet import Fleet
from manyhands.hand import Facts
from manyhands.report.reading import MEASURES, Measure

__all__ = ["NOTABLE", "SCHEMA", "DeviceTally", "Tally"]

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
    examples: int = 0
    flops: float = 0.0
    merge_flops: float = 0.0
    busy_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    accuracy: float | None = None
    score: float | None = None
    loss: float | None = None
    down_seconds: float = 0.0
    lost_at_seconds: float | None = None
    finished: bool = False
    curve: list[dict[str, Any]] = field(default_factory=list)

    def end(self, measure: Measure) -> float | None:
        """How good its network was when it was last measured."""
        value: float | None = getattr(self, measure.key)
        return value


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
            device.flops += event["flops"]
            device.merge_flops += event["flops"] * (event["work"] in AVERAGING)
            self.merges += merges
            device.examples += event["facts"].get("examples", 0)
            device.loss = event["facts"].get("loss", device.loss)
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
        elif own and kind in ("crashed", "left"):
            device.lost_at_seconds = event["seconds"]
        elif own and kind == "restarted":
            device.down_seconds += event["seconds"] - (device.lost_at_seconds or event["seconds"])
            device.lost_at_seconds = None
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

    def device_figures(self, fleet: Fleet, statics: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The `devices` of result.json: what was counted beside what was planned."""
        figures = []
        for device in fleet.devices:
            tally = self.devices[device.name]
            here_seconds = self.seconds if tally.lost_at_seconds is None else tally.lost_at_seconds
            waiting_seconds = max(here_seconds - tally.down_seconds - tally.busy_seconds, 0.0)
            energy = device.active_watts * tally.busy_seconds + device.idle_watts * waiting_seconds
            figures.append(
                {
                    "name": device.name,
                    "kind": device.kind,
                    "share": device.share,
                    **statics[device.name],
                    "rounds": tally.rounds,
                    "accuracy": tally.accuracy,
                    "score": tally.score,
                    "accuracy_alone": None,
                    "score_alone": None,
                    "loss": tally.loss,
                    "flops": tally.flops,
                    "merge_flops": tally.merge_flops,
                    "examples": tally.examples,
                    "bytes_sent": tally.bytes_sent,
                    "bytes_received": tally.bytes_received,
                    "busy_seconds": tally.busy_seconds,
                    "waiting_seconds": waiting_seconds,
                    "energy_joules": energy,
                    "down_seconds": tally.down_seconds,
                    "lost_at_seconds": tally.lost_at_seconds,
                    "finished": tally.finished,
                    "curve": tally.curve,
                }
            )
        return figures


def _point(event: Facts) -> dict[str, Any]:
    return {key: event.get(key) for key in ("seconds", "round", *MEASURES, "loss", "examples")}
