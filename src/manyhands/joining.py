"""Taking part in a live job as one device: `manyhands join`.

    job, own data -> team -> the hands that live here -> posts -> live engine -> networks

Every device builds the whole team, which costs it nothing but descriptions, and runs the hands that live on
it: its own, and the coordinator's if the job puts that there. All that it does, and needs to go on, is in its
folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from safetensors.torch import save_file

from manyhands.blocks import Weights
from manyhands.engine.life import Diary, Manners
from manyhands.engine.live import LiveDevice, Place
from manyhands.engine.live_hand import HELLO
from manyhands.errors import JobError
from manyhands.exchange.coordination import Progress
from manyhands.fleet.outlook import Slowdown, slowdown_here
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.joiner import Joiner, reasons, stoppable
from manyhands.lessons import Material, load_material
from manyhands.lineup import Lineup
from manyhands.looking import merged_network
from manyhands.rehearsal import check_live
from manyhands.replica import Replica
from manyhands.report.device_folder import DeviceFolder
from manyhands.run import put_together
from manyhands.sizing import Library
from manyhands.team import Team
from manyhands.wire.diagnosis import check_keys
from manyhands.wire.expected import KINDS, expect
from manyhands.wire.post import ZenohPost
from manyhands.wire.session import Wiring

__all__ = ["join"]

MAX_EXAMPLES = 1_000_000_000
"""More than any device has; who claims more is not believed."""


def join(job: Job, joiner: Joiner, watch: Callable[[Facts], None] = lambda _event: None) -> bool:
    """Takes part as one device until the job is over, or until somebody says stop.

    Args:
        job: The same for all devices; they compare its hash.
        joiner: Which device this is, where it keeps what it does, and how it reaches the others.
        watch: Told of every event.

    Returns:
        Whether the job came to its end; False if it was stopped.
    """
    num_bytes = 0

    def counted(event: Facts) -> None:
        nonlocal num_bytes
        if event["event"] in ("sent", "received"):
            num_bytes += event["bytes"]
        watch(event)

    check_live(job)
    if joiner.line.keys is not None:
        check_keys(joiner.line.keys, joiner.name)
    with slowdown_here(job.live.profile, lambda: num_bytes) as slowdown:
        return _take_part(job, joiner, slowdown, counted)


def _take_part(job: Job, joiner: Joiner, slowdown: Slowdown | None, watch: Callable[[Facts], None]) -> bool:
    name, line = joiner.name, joiner.line
    material = load_material(job)
    library = Library(job, material)
    lineup = put_together(job, material, library, live=True, here=(name,), slowdown=slowdown)
    names, team = lineup.fleet.names, lineup.team
    if name not in names:
        raise JobError("--name", name, f"there is no such device; choose one of {', '.join(names[:10])}")
    greeting = {"examples": team.members[name].num_examples, "material": _fingerprint(material)}
    folder = DeviceFolder(joiner.out)
    past = folder.begin(name, job.hash, job.to_toml())
    with folder.open_trace() as trace:

        def write(event: Facts, text: str) -> None:
            trace.write(text + "\n")
            trace.flush()
            watch(event)

        device: LiveDevice | None = None

        def tell(hand: str, event: str, facts: Facts) -> None:
            if device is not None:
                device.emit(hand, event, facts)

        posts = _posts(job, team, joiner, past.incarnation, tell)
        places = {
            hand: Place(team.participants[hand], post, folder.state(hand, job.hash))
            for hand, post in posts.items()
        }
        manners = Manners(
            greeting,
            partial(_compare, job, team, greeting),
            partial(reasons, line.connect or job.live.connect, line.keys),
        )
        diary = Diary(past, write, folder.finish)
        device = LiveDevice(name, places, names, job.live, diary, manners, threads=job.run.threads)
        live = device.run(partial(posts[name].answer_status, device.status))
        ends = asyncio.run(stoppable(live, joiner))
    if ends is None:
        return False
    device.shut()
    _save_models(folder, lineup, ends)
    return True


def _fingerprint(material: Material) -> str:
    """Equal where networks that learn from it mean the same by their inputs and outputs."""
    return hashlib.sha256(json.dumps([material.shape, material.classes]).encode()).hexdigest()[:16]


def _compare(job: Job, team: Team, own: Facts, peer: str, facts: Facts) -> str:
    """Takes what another tells of its data; says why no network can learn from both, if so."""
    if facts.get("material") != own["material"]:
        return "its data has other classes or another shape; give all devices the same classes"
    count = facts.get("examples")
    if job.data.shares == "own" and type(count) is int and 0 < count <= MAX_EXAMPLES:
        team.counts.correct(peer, count)
    return ""


def _posts(
    job: Job, team: Team, joiner: Joiner, incarnation: int, tell: Callable[[str, str, Facts], None]
) -> dict[str, ZenohPost]:
    """A post for each hand that lives on the device."""
    name, line = joiner.name, joiner.line
    expected = expect(team.blocks, job.exchange.rounds, job.exchange.packing)
    expected = replace(expected, kinds=KINDS | {HELLO})
    listen, connect = line.listen or job.live.listen, line.connect or job.live.connect
    here = tuple(_reachable(where) for where in listen)
    posts = {}
    for hand, host in team.hosts.items():
        if host == name:
            wiring = Wiring(
                hand,
                job.hash,
                incarnation,
                listen if hand == name else (),
                connect if hand == name else (*here, *connect),
                line.keys,
                team.hosts,
                multicast=job.live.multicast,
            )

            def told(event: str, facts: Facts, hand: str = hand) -> None:
                tell(hand, event, facts)

            posts[hand] = ZenohPost(wiring, team.hosts, expected, told)
    return posts


def _reachable(where: str) -> str:
    """An address at which this host reaches itself."""
    host, _, port = where.rpartition(":")
    return f"{'127.0.0.1' if host in ('0.0.0.0', '', '*') else host}:{port}"


def _save_models(folder: DeviceFolder, lineup: Lineup, ends: Mapping[str, Any]) -> None:
    """Writes the network of each hand that lives here: a device's own, the coordinator's merged one."""
    networks: dict[str, Weights] = {}
    merged = lineup.split.merged
    for hand, left in ends.items():
        end = getattr(left, "replica", left)  # one that had come to its end before gives what it saved
        if isinstance(end, Replica):
            networks[hand] = end.weights
        elif isinstance(end, Progress) and merged is not None:
            networks["global"] = merged_network(merged, lineup.library, end.blocks)
    folder.models.mkdir(exist_ok=True)
    for name, weights in networks.items():
        path = folder.models / f"{name}.safetensors"
        partial = path.with_suffix(".partial")
        save_file({key: tensor.cpu().contiguous() for key, tensor in weights.items()}, partial)
        partial.replace(path)
