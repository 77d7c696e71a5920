"""How many messages a second of real time the simulator carries: 1,000 hands that talk and do not train.

Each hand sends to its two neighbours on a ring and waits for theirs, round after round. The full trace is
written to a file, as in a run.

    python benchmarks/messages.py
"""

from __future__ import annotations

import argparse
import datetime
import platform
import tempfile
import time
from pathlib import Path

from manyhands.engine.cores import Cores
from manyhands.engine.participant import Participant
from manyhands.engine.simulate import Simulation
from manyhands.fleet import DeviceSection, FleetSection, make_fleet
from manyhands.hand import Facts, Hand, Message


async def talk(hand: Hand, num_rounds: int) -> int:
    heard = 0
    for number in range(num_rounds):
        for peer in hand.peers:
            await hand.send(peer, Message("note", number))
        for _ in hand.peers:
            heard += await hand.receive("note") is not None
    return heard


def run(num_hands: int, num_rounds: int) -> tuple[int, float]:
    """The number of messages and the seconds they took."""
    section = FleetSection(device=(DeviceSection(kind="raspberry-pi-4", count=num_hands),), topology="ring")
    fleet = make_fleet(section, seed=0)
    participants = {
        device.name: Participant(
            lambda hand: talk(hand, num_rounds), device.name, fleet.neighbours(device.name)
        )
        for device in fleet.devices
    }
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "trace.jsonl").open("w") as trace:

        def write(_event: Facts, line: str) -> None:
            trace.write(line + "\n")

        simulation = Simulation(fleet, participants, write, cores=Cores(0))
        started = time.perf_counter()
        heard = simulation.run()
        return sum(heard.values()), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hands", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, {datetime.date.today()}")
    print(f"{options.hands} hands on a ring, {options.rounds} rounds, trace written\n")
    print(f"{'messages':>10} {'seconds':>9} {'messages/s':>12}")
    for _ in range(options.repeats):
        count, seconds = run(options.hands, options.rounds)
        print(f"{count:>10,} {seconds:>9.2f} {count / seconds:>12,.0f}")


if __name__ == "__main__":
    main()
