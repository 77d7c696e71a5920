"""What the devices of a live job have left in their folders, brought together on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from manyhands.errors import JobError
from manyhands.job import Job, load_job
from manyhands.lineup import Lineup, Watch
from manyhands.report.atomic import write_atomically
from manyhands.report.device_folder import DeviceFolder, merged_events
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Tally

__all__ = ["collect", "left_behind"]


def left_behind(out: Path, data: Path | None = None) -> tuple[Job, list[DeviceFolder]]:
    """The job of which devices have left their folders under ``OUT/devices``, and these.

    Args:
        out: The folder of the run.
        data: Where this machine has the job's data.

    Raises:
        JobError: There are none, or they are of several jobs.
    """
    found = [DeviceFolder(path) for path in sorted(RunFolder(out).devices.glob("*")) if path.is_dir()]
    found = [device for device in found if device.is_there]
    if not found:
        raise JobError("RUN", str(out), "has no folder of a device: copy each to RUN/devices/NAME")
    job = load_job(found[0].job)
    for device in found:
        if (theirs := device.about()["job"]) != job.hash:
            raise JobError("RUN", str(device.path), f"is of another job: {theirs}, not {job.hash}")
    if data is not None:
        job = job.model_copy(update={"data": job.data.model_copy(update={"path": data.resolve()})})
    return job, found


def collect(
    lineup: Lineup, folder: RunFolder, tally: Tally, _watch: Watch | None = None
) -> Mapping[str, Any]:
    """Merges the traces of all devices, counts them, and gives what each hand has left."""
    team = lineup.team
    folders = {name: DeviceFolder(folder.devices / name) for name in team.members}
    events = merged_events(folders)
    write_atomically(folder.trace, b"".join(to_json(event, inf_nan_mode="null") + b"\n" for event in events))
    for event in events:
        tally.add(event)
    ends = {}
    for hand, host in team.hosts.items():
        state = folders[host].state(hand, lineup.job.hash).read() if folders[host].is_there else None
        # Neighbours save where they stand, and end with their replica.
        ends[hand] = getattr(state, "replica", state)
    return ends
