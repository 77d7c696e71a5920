"""How well the predictor foresees what co-running work costs, on this machine, with real load.

Executors of one thread each, one a core, train a small network beside loads: processes that are busy for a
part of the time, and jobs of MapReduce (WordCount, Sort). From some of the loads the regression is made;
beside the others, which it has never seen, it predicts what an example takes, from the use that the monitor
finds, and t0 follows what is measured. An error is that of the prediction with t0 as it was before the
measurement.

    python benchmarks/predictor.py [--seconds 4] [--rounds 1] [--keep predictor.json] [--limit 200]

Runs that are done are kept in the file and not done again, so it may be stopped and started.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from manyhands.fleet.executor import Executors, executors_running
from manyhands.fleet.monitor import monitoring
from manyhands.fleet.predictor import Predictor, Sample, fit
from manyhands.fleet.profiling import Beside, loads_to_learn_from, profile_run
from manyhands.fleet.use import Use

CORES = os.cpu_count() or 1
HELD_OUT = (
    Beside(),
    *(Beside(level, workers) for workers in (1, CORES) for level in (0.15, 0.4, 0.6, 0.9)),
    Beside(1.0, CORES + 1),
    *(Beside(job=job, num_bytes=size) for job in ("wordcount", "sort") for size in (3 * 10**6, 3 * 10**7)),
)
MONITORED_S = 20.0


class Kept:
    """Measurements in a file, by what they are of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said = json.loads(path.read_text()) if path.exists() else {}

    def put(self, key: str, value: object) -> None:
        """Keeps one."""
        self.said[key] = value
        self.path.write_text(json.dumps(self.said, indent=1))

    def sample(self, key: str) -> Sample:
        """One that is kept."""
        said = self.said[key]
        return Sample(Use(**said["use"]), said["seconds_per_example"])


def plan(rounds: int) -> list[tuple[str, Beside]]:
    """The loads to learn from, then those held out; in each round all of them."""
    kinds = (("learn", loads_to_learn_from(CORES)), ("held out", HELD_OUT))
    return [
        (f"{kind} {number} {place} {beside.label}", beside)
        for kind, loads in kinds
        for number in range(rounds)
        for place, beside in enumerate(loads)
    ]


def measure(kept: Kept, rounds: int, seconds: float, limit_s: float) -> bool:
    """Does what is not done yet; whether all is."""
    started = time.monotonic()
    todo = [(key, beside) for key, beside in plan(rounds) if key not in kept.said]
    if not todo and "monitor" in kept.said:
        return True
    with executors_running() as executors:
        executors.run_for(1.0)
        for key, beside in todo:
            if time.monotonic() - started > limit_s:
                return False
            kept.put(key, asdict(profile_run(executors, beside, seconds)))
        kept.put("monitor", monitor_overhead(executors))
    return True


def monitor_overhead(executors: Executors) -> float:
    """The part of a core that the monitor takes while executors train."""
    with monitoring(own=executors.pids) as monitor:
        started = time.monotonic()
        executors.run_for(MONITORED_S)
        return monitor.spent_s / (time.monotonic() - started)


def table(kept: Kept, rounds: int) -> None:
    keys = [key for key, _ in plan(rounds)]
    learned = [kept.sample(key) for key in keys if key.startswith("learn")]
    t0_s, regression = fit(learned)
    print(f"{len(learned)} profiling runs give t0 = {t0_s * 1e3:.3f} ms and {regression}")
    labels = {key: beside.label for key, beside in plan(rounds)}
    heads = f"{'cores':>7}{'net Mb/s':>10}{'disk Mb/s':>11}{'slow-down':>11}{'ms':>8}{'error':>8}"
    print(f"\n{'beside':<28}{heads}")
    for kind in ("learn", "held out"):
        predictor, errors = Predictor(t0_s, regression), []
        for key in (key for key in keys if key.startswith(kind)):
            sample = kept.sample(key)
            errors.append(abs(predictor.predict(sample.use) / sample.seconds_per_example - 1))
            predictor.observe(sample.use, sample.seconds_per_example)
            use, took_s = sample.use, sample.seconds_per_example
            print(
                f"{labels[key]:<28}{use.cores:>7.2f}{use.network_bps / 1e6:>10.1f}{use.disk_bps / 1e6:>11.1f}"
                f"{took_s / t0_s:>11.2f}{took_s * 1e3:>8.3f}{errors[-1]:>8.1%}"
            )
        print(f"{kind}: mean error {fmean(errors):.2%}, largest {max(errors):.1%}\n")
    print(f"the monitor takes {kept.said['monitor']:.3%} of a core (a sample a second)")


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each profiling run")
    parser.add_argument("--rounds", type=int, default=1, help="how often each load is measured")
    parser.add_argument("--keep", type=Path, default=Path("predictor.json"))
    parser.add_argument("--limit", type=float, default=3600.0, help="stop after so many seconds; go on later")
    options = parser.parse_args()
    kept = Kept(options.keep)
    if measure(kept, options.rounds, options.seconds, options.limit):
        table(kept, options.rounds)
    else:
        print("not all is measured; start it again to go on")


if __name__ == "__main__":
    main()
