"""What each device of a crew does: meet the others, train with them, and go on with those who are left.

A step is whole or has not happened. When a device is gone, the others keep what they had after their last
whole step, form anew without it, agree on the furthest of these states and go on from there under a new plan.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist

from manyhands.crew.log import Log
from manyhands.crew.meeting import Broken, Meeting
from manyhands.crew.state import Learner, read_checkpoint, share, write_checkpoint
from manyhands.engine.clock import Interval
from manyhands.errors import RunError
from manyhands.exchange.member import looks
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.report.folder import RunFolder

__all__ = ["Duty", "Step", "finish", "serve", "train"]

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor, int], float]
"""``(images as bytes, labels, number of the step) -> loss``; leaves the whole batch's gradients behind."""


@dataclass(frozen=True)
class Duty:
    """One device's part in a crew.

    Attributes:
        job: The job.
        group: The name of the tile group.
        name: This device.
        folder: The run's folder, which the leader writes; or, with `keeps`, this device's own.
        learner: The network.
        batches: ``(round) -> its batches``, the same on every device.
        flops: Operations of a round.
        form: ``(devices, process group) -> (step, facts of the plan)``.
        look: How good the network is: measure and loss.
        measure: What networks are judged by.
        fits: Raises `JobError` if these devices cannot hold the network.
        keeps: Whether this device writes trace and state also when it does not lead.
        regroups: Asked of the leader after each round: whether the group should form anew, with others.
    """

    job: Job
    group: str
    name: str
    folder: RunFolder
    learner: Learner
    batches: Callable[[int], Iterator[Batch]]
    flops: float
    form: Callable[[tuple[str, ...], dist.ProcessGroup], tuple[Step, Facts]]
    look: Callable[[], Facts]
    measure: str
    fits: Callable[[tuple[str, ...]], None]
    keeps: bool = False
    regroups: Callable[[], bool] = lambda: False


def serve(duty: Duty, meeting: Meeting, everyone: tuple[str, ...]) -> bool:
    """Trains with the others to the end; returns whether this device led them there.

    Raises:
        RunError: The group cannot be formed, or has gone on without this device.
    """
    position = duty.learner.position
    if read_checkpoint(duty.folder.checkpoint, duty.job.hash, duty.learner):
        position = duty.learner.position
    log = Log(duty.folder, duty.group, position.num_events, position.seconds)
    roster, generation, cause = everyone, 0, ""
    try:
        while True:
            here = meeting.gather(generation, roster)
            if not here:
                return False  # the others have come to the end
            if generation and here == roster:
                raise RunError(
                    f"{duty.name}: {cause}; all devices are there, so another try would end the same"
                )
            try:
                with meeting.group(generation, here) as group:
                    train(duty, log, here, roster, group, generation)
                    meeting.part(generation, here)
                if here[0] == duty.name:
                    finish(duty, log)
                    meeting.say_done(len(here) - 1)
                    return True
            except Broken as error:
                cause = str(error)
                _say(f"{duty.name}: step {duty.learner.position.num_steps + 1} was broken off: {cause}")
            else:
                if meeting.wait_done(here[0]):
                    return False
            roster, generation = here, generation + 1
    finally:
        log.close()


def train(
    duty: Duty,
    log: Log,
    here: tuple[str, ...],
    before: tuple[str, ...],
    group: dist.ProcessGroup,
    number: int,
) -> bool:
    """All that is left of the job, with the devices that are here; False if they are to form anew first.

    Args:
        duty: This device's part.
        log: What it leaves behind.
        here: The devices, by rank.
        before: Those of the last time.
        group: Their connections.
        number: Which formation of the group this is.
    """
    job, learner, leads = duty.job, duty.learner, here[0] == duty.name
    share(learner, group)
    step, facts = duty.form(here, group)
    position = learner.position
    log.set_clock(_latest(log.seconds, group) if position.num_steps else 0.0)
    log.lead(leads or duty.keeps)
    for name in before:
        if name not in here:
            log.report("peer_lost", peer=name, formation=number)
            _say(f"{duty.name}: going on without {name} from step {position.num_steps}")
    for name in here:
        if name not in before:
            log.report("peer_back", peer=name, formation=number)
            _say(f"{duty.name}: going on with {name} again from step {position.num_steps}")
    log.report("formed", peers=list(here), step=position.num_steps, formation=number, plan=facts)
    due, meter = Interval(job.run.checkpoint_every_s), _Meter()
    while position.closed < job.exchange.rounds:
        if position.rounds > position.closed:
            regroups = _close_round(duty, log, group, here, meter)
            _keep(duty, log, due, leads)
            if regroups and position.closed < job.exchange.rounds:
                return False
            continue
        for x, y in islice(duty.batches(position.rounds), position.batches, None):
            started = log.seconds
            loss = learner.step(lambda x=x, y=y: step(x, y, position.num_steps), len(x))  # type: ignore[misc]
            log.report(
                "step",
                round=position.rounds,
                step=position.num_steps,
                loss=_finite(loss),
                measured_s=log.seconds - started,
                predicted_s=facts["step_seconds"],
            )
            _keep(duty, log, due, leads)
        position.rounds, position.batches = position.rounds + 1, 0
    return True


def _latest(seconds: float, group: dist.ProcessGroup) -> float:
    """What the furthest clock of the group says."""
    found = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return found.item()


def _close_round(
    duty: Duty, log: Log, group: dist.ProcessGroup, here: tuple[str, ...], meter: _Meter
) -> bool:
    """Reports a round; the leader measures the network, off the clock, and says whether to form anew."""
    position, job = duty.learner.position, duty.job
    number = position.closed + 1
    now = log.seconds
    loss = position.loss / max(position.seen, 1)
    told = torch.full((3,), math.nan, dtype=torch.float64)
    leads = here[0] == duty.name
    looked = looks(number, job.run.evaluate_every, job.exchange.rounds)
    spent_s = meter.spent_s()  # before the leader looks, which is not the devices' work
    if leads and looked:
        found = duty.look()
        told[0], told[1] = _number(found[duty.measure]), _number(found["loss"])
    if leads:
        told[2] = duty.regroups()
    dist.broadcast(told, 0, group=group)
    usage = _usage(group, spent_s)
    meter.spent_s()
    log.set_clock(now)
    log.report(
        "computed",
        work="train",
        started=position.started_seconds,
        flops=duty.flops,
        round=number - 1,
        facts={"examples": position.seen, "num_steps": position.num_steps, "loss": _finite(loss)},
        bytes={},
    )
    if looked:
        value, test_loss = (_finite(number) for number in told[:2].tolist())
        log.report("evaluated", round=number, **{duty.measure: value}, loss=test_loss)
    peaks = [int(peak) for peak in usage[1]]
    log.report("usage", round=number, peers=list(here), cpu_s=usage[0], memory_bytes=peaks)
    log.report("round", round=number)
    position.closed, position.seen, position.loss = number, 0, 0.0
    position.started_seconds = log.seconds
    return bool(told[2])


def _keep(duty: Duty, log: Log, due: Interval, leads: bool) -> None:
    """Takes note of where the run is; the leader, or every device, puts it on disk now and then."""
    position = duty.learner.position
    position.seconds, position.num_events = log.seconds, log.num_events
    if (leads or duty.keeps) and due.due():
        log.to_disk()
        write_checkpoint(duty.folder.checkpoint, duty.job.hash, duty.learner)


def finish(duty: Duty, log: Log) -> None:
    """Leaves the network behind."""
    if duty.job.run.save_models:
        weights = duty.learner.weights
        duty.folder.save_models({duty.group: weights, "global": weights})
    log.report("finished", round=duty.learner.position.closed)
    log.to_disk()


class _Meter:
    """Processor time of this process, since it was last asked."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self.spent_s()

    def spent_s(self) -> float:
        """Seconds that a processor worked for this process, all threads together."""
        now = os.times()
        spent_s, self._last_s = now.user + now.system - self._last_s, now.user + now.system
        return spent_s


def _usage(group: dist.ProcessGroup, spent_s: float) -> tuple[list[float], list[float]]:
    """Of every device: seconds that its processor worked in a round, and the most memory it ever took."""
    found = torch.zeros(dist.get_world_size(group), 2, dtype=torch.float64)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found[dist.get_rank(group)] = torch.tensor([spent_s, peak], dtype=torch.float64)
    dist.all_reduce(found, group=group)
    return found[:, 0].tolist(), found[:, 1].tolist()


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
