"""Taking part in a tile group as one device on a host of its own: `manyhands join` of a job split by space.

    job, data -> duty -> post -> mate -> network

The devices find each other over the wire and form a group of ``torch.distributed`` (`crew.mate`). All that
one does, and needs to go on, is in its folder, as of every device of a live job.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial

from manyhands.crew.log import Log
from manyhands.crew.mate import EXPECTED, Mate
from manyhands.crew.muster import Muster
from manyhands.crew.state import read_checkpoint
from manyhands.data import Dataset
from manyhands.duties import check_crew, make_duty, muster_roll
from manyhands.errors import JobError
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.joiner import Joiner, reasons, stoppable
from manyhands.lessons import Material, load_material
from manyhands.report.device_folder import DeviceFolder
from manyhands.sizing import Library
from manyhands.wire.diagnosis import check_keys
from manyhands.wire.post import ZenohPost
from manyhands.wire.session import Wiring

__all__ = ["join_crew"]

NOT_SECRET = (
    "warning: the keys protect who forms the group, not what its devices send each other then: tiles travel "
    "by torch.distributed, neither encrypted nor authenticated; use a VPN (WireGuard)"
)


def join_crew(job: Job, joiner: Joiner, watch: Callable[[Facts], None] = lambda _event: None) -> bool:
    """Takes part in a tile group as one device; what enters and leaves is as in `joining.join`."""
    ranked = _admitted(job, joiner)
    name, line, material = joiner.name, joiner.line, load_material(job)
    duty = make_duty(job, material, Library(job, material), name, joiner.out, keeps=True)
    folder = DeviceFolder(joiner.out)
    past = folder.begin(name, job.hash, job.to_toml())
    read_checkpoint(duty.folder.checkpoint, job.hash, duty.learner)

    def told(event: Facts) -> None:
        mate.take(event)
        watch(event)

    num_events, seconds = sum(1 for _ in folder.events()), duty.learner.position.seconds
    log = Log(duty.folder, duty.group, num_events, seconds, told)
    log.lead(True)
    wiring = Wiring(
        name,
        job.hash,
        past.incarnation,
        line.listen or job.live.listen,
        line.connect or job.live.connect,
        line.keys,
        {device: device for device in ranked},
        multicast=job.live.multicast,
    )
    # One that is started again goes on, after a while, with whoever is there.
    quorum = job.live.quorum if past.incarnation == 1 else 1
    mate = Mate(
        duty,
        Muster(name, ranked, _fingerprint(material), quorum),
        ZenohPost(wiring, ranked, EXPECTED, partial(log.emit, name)),
        log,
        job.live,
        past,
        partial(folder.finish, name),
        partial(reasons, wiring.connect, line.keys),
    )
    try:
        return bool(asyncio.run(stoppable(mate.run(), joiner)))
    finally:
        log.close()


def _admitted(job: Job, joiner: Joiner) -> tuple[str, ...]:
    """Looks whether a device may take part; all that may, by rank.

    Raises:
        JobError: The job cannot be trained so, or has no such device, or its keys are not this one's.
    """
    check_crew(job)
    if job.fault:
        raise JobError("fault", None, "is for the simulator: on real hosts things go wrong by themselves")
    ranked, name, keys = muster_roll(job), joiner.name, joiner.line.keys
    if name not in ranked:
        raise JobError("--name", name, f"there is no such device; choose one of {', '.join(ranked[:10])}")
    if keys is not None:
        check_keys(keys, name)
        print(f"manyhands: {NOT_SECRET}", file=sys.stderr, flush=True)
    return ranked


def _fingerprint(material: Material) -> str:
    """Equal where batches are: every device of a tile group makes the same ones."""
    assert isinstance(material, Dataset)
    digest = hashlib.sha256(json.dumps([material.shape, material.classes]).encode())
    for tensor in (material.train.x, material.train.y):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]
