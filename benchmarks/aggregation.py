"""What aggregated points cost: to make them, once, and to process them, before every epoch.

For each method and ratio, in a process of its own: seconds, peak memory, and the part of the variance within
classes that is left inside subsets (the less, the more alike they are). For each model, the part of an epoch
of training that a forward pass over the points takes, as counted in operations and as timed.

    MANYHANDS_DATA=… python benchmarks/aggregation.py [--data cifar10] [--limit 50000] [--models alexnet]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

RATIOS = (5, 10, 20)


def one(data: str, limit: int | None, method: str, ratio: float) -> dict[str, float]:
    """One aggregation, with a cache of its own."""
    from manyhands.data import DataSection, load
    from manyhands.data.aggregate import aggregate

    train = load(DataSection(name=data, limit=limit), seed=0).train
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        started = time.monotonic()
        made = aggregate(train.x, train.y, method, ratio, seed=0)  # type: ignore[arg-type]
        took = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    flat = train.x.flatten(1).float()
    subsets = zip(made.points, made.members, strict=True)
    within = sum(float(((flat[members] - point.flatten()) ** 2).sum()) for point, members in subsets)
    classes = [flat[train.y == label] for label in train.y.unique()]
    total = sum(float(((pictures - pictures.mean(0)) ** 2).sum()) for pictures in classes)
    return {
        "seconds": took,
        "peak_bytes": peak,
        "points": len(made),
        "examples": len(train),
        "within": within / total,
    }


def cost(data: str, model: str, batch_size: int, num_examples: int, repeats: int) -> dict[str, float]:
    """Processing a point against training on an example: in operations, and timed as a device does both."""
    import torch

    from manyhands.blocks import Weights
    from manyhands.data import DataSection, load
    from manyhands.learn.effects import effects_of
    from manyhands.learn.supervised import Architecture, LearnSection, LocalPhase
    from manyhands.models import FAMILIES, cost_of
    from manyhands.replica import Replica

    torch.set_num_threads(1)
    loaded = load(DataSection(name=data, limit=num_examples), seed=0)
    family = FAMILIES[model]

    def build() -> torch.nn.Module:
        return family.build(family.sizes[-1], shape=loaded.shape, num_classes=len(loaded.classes))

    network = build()
    architecture = Architecture(model, build, cost_of(network, loaded.shape))
    start = Weights(network.state_dict())
    section = LearnSection(batch_size=batch_size, learning_rate=1e-4, momentum=0.9)
    phase = LocalPhase("bench", architecture, {}, loaded.train, section, seed=0)
    times: dict[str, list[float]] = {"point": [], "example": []}
    for _ in range(repeats + 1):
        for what, run in (
            ("point", lambda: effects_of(architecture, start, loaded.train)),
            ("example", lambda: phase.trained(start, Replica(start), phase.batches(0))),
        ):
            started = time.process_time()  # of one thread, so that other work counts as little as can be
            run()
            times[what].append((time.process_time() - started) / len(loaded.train))
    counted = architecture.cost
    # The first of each warms up; the least of the others is the one that was disturbed least.
    return {
        "flops": counted.forward_flops / counted.train_flops,
        "timed": min(times["point"][1:]) / min(times["example"][1:]),
    }


def making(options: argparse.Namespace, methods: tuple[str, ...]) -> None:
    """A row for each method and ratio."""
    print(f"{'method':<14}{'ratio':>6}{'seconds':>9}{'peak GB':>9}{'points':>8}{'within':>8}")
    for method in methods:
        for ratio in RATIOS:
            limit = [] if options.limit is None else ["--limit", str(options.limit)]
            command = [sys.executable, __file__, "--data", options.data, *limit, "--one", method, str(ratio)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(
                f"{method:<14}{ratio:>6}{found['seconds']:>9.1f}{found['peak_bytes'] / 1e9:>9.2f}"
                f"{found['points']:>8}{found['within']:>8.1%}",
                flush=True,
            )


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--models", default="lenet5,alexnet,squeezenet,mobilenet_v2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--examples", type=int, default=512, help="trained on, and processed as points, a time"
    )
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--processing", action="store_true", help="only what processing costs")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "RATIO"), help="used by itself")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.data, options.limit, options.one[0], float(options.one[1]))))
        return
    from manyhands.data.aggregate import METHODS

    if not options.processing:
        making(options, METHODS)
    print(f"\n{'model':<14}" + "".join(f"{f'ratio {ratio}':>26}" for ratio in RATIOS))
    for model in options.models.split(","):
        part = cost(options.data, model, options.batch, options.examples, options.repeats)
        cells = (f"{part['flops'] / r:.1%} flops, {part['timed'] / r:.1%} timed" for r in RATIOS)
        print(f"{model:<14}" + "".join(f"{cell:>26}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
