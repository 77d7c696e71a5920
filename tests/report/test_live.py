"""The table of a run that goes on."""

import io

from rich.console import Console

from manyhands.progress import LiveTable
from manyhands.report.summary import Tally

NAMES = ("workstation-rtx-2080-ti-1", "raspberry-pi-3b", "laptop")


def drawn(table, console):
    console.file.seek(0)
    console.file.truncate()
    console.print(table._render())
    return console.file.getvalue().splitlines()


def test_columns_stay_where_they_are_and_fit_into_80(small_job):
    console = Console(file=io.StringIO(), width=80, color_system=None)
    table, tally, job = LiveTable(console), Tally({name: name for name in NAMES}), small_job()
    table("homogeneous", job, tally, None)
    before = drawn(table, console)
    for device in tally.devices.values():
        device.rounds, device.loss, device.accuracy = 100, 12.345, 1.0
        device.bytes_sent, device.bytes_received = 99_900, 999_000_000
    tally.devices["laptop"].lost_at_seconds = 100.0
    tally.seconds, tally.round, tally.curve = 750.0, 3, [{"accuracy": 0.389}]
    after = drawn(table, console)
    assert len(before) == len(after) == 3 + len(NAMES)
    assert before[2] == after[2]
    assert "round 3/3" in after[1]
    assert after[1].rstrip().endswith("12 min 30 s simulated  accuracy 38.9%")
    assert before[1].index("round") == after[1].index("round")
    assert max(map(len, before + after)) <= 80
    assert after[-2].split() == ["raspberry-pi-3b", "100", "12.345", "100.0%", "99.9", "kB", "999", "MB"]
    assert after[-1].rstrip().endswith("lost 1 min 40 s")


def test_the_run_before_is_called_so(small_job):
    console = Console(file=io.StringIO(), width=80, color_system=None)
    tally, job = Tally({"a": "a"}), small_job(run={"alone": True})
    alone = job.split_by("isolated").model_copy(update={"run": job.run.model_copy(update={"alone": False})})
    table = LiveTable(console, alone=True)
    table("isolated", alone, tally, None)
    assert drawn(table, console)[0] == "small  first: each device alone"
    table("homogeneous", job, tally, None)
    assert drawn(table, console)[0] == "small  homogeneous"
    plain = LiveTable(console)
    plain("isolated", alone, tally, None)
    assert drawn(plain, console)[0] == "small  isolated"
