"""What makes a local phase fast: memory layout and torch threads, side by side.

One phase of the product's own code per variant, variants interleaved, seconds a phase as the best of the
repeats (a shared machine only ever adds time).

    python benchmarks/local_phase.py [--torch-device cuda]
"""

from __future__ import annotations

import argparse
import copy
import datetime
import itertools
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from manyhands.blocks import Weights, whole_model
from manyhands.data import Examples
from manyhands.learn.supervised import Architecture, LearnSection, LocalPhase
from manyhands.models import ModelSection, build, cost_of
from manyhands.replica import Replica

SHAPE = (3, 32, 32)
NETWORKS = ("lenet5", "two_conv", "cifar_cnn", "squeezenet", "mobilenet_v2", "vgg16")


def make_phase(name: str, layout: str, batch_size: int, num_examples: int, torch_device: str) -> tuple:
    section = ModelSection(name=name)

    module = build(section, SHAPE, 10, seed=0)
    draws = torch.Generator().manual_seed(0)
    examples = Examples(
        torch.randint(0, 256, (num_examples, *SHAPE), generator=draws, dtype=torch.uint8),
        torch.randint(0, 10, (num_examples,), generator=draws),
    )
    weights = Weights(module.state_dict())
    learn = LearnSection(batch_size=batch_size, memory_format=layout, learning_rate=0.001)
    architecture = Architecture((name, layout), partial(copy.deepcopy, module), cost_of(module, SHAPE))
    phase = LocalPhase("bench", architecture, whole_model(weights), examples, learn, 0, torch_device)
    return phase, weights


def seconds(phase: LocalPhase, weights: Weights, threads: int, workers: int) -> float:
    """Real seconds a phase when `workers` of them run side by side with `threads` torch threads each."""

    def one(number: int) -> None:
        torch.set_num_threads(threads)
        phase.work(Replica(weights), {}, number).run()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(workers)))  # builds each thread's network
        started = time.perf_counter()
        list(pool.map(one, range(2 * workers)))
        return (time.perf_counter() - started) / (2 * workers)


def compare(options: argparse.Namespace) -> None:
    cores = torch.get_num_threads()
    plans = [(1, cores), (cores, 1)] if options.torch_device == "cpu" else [(1, 1), (1, 2)]
    print(f"{'network':14}{'layout':16}" + "".join(f"{f'{w} x {t} thread':>16}" for t, w in plans))
    for name in options.networks.split(","):
        best: dict[tuple[str, int], float] = {}
        variants = list(itertools.product(("contiguous", "channels_last"), range(len(plans))))
        phases = {
            layout: make_phase(name, layout, options.batch, options.examples, options.torch_device)
            for layout in ("contiguous", "channels_last")
        }
        for _ in range(options.repeats):
            for layout, plan in variants:
                took = seconds(*phases[layout], *plans[plan])
                best[layout, plan] = min(took, best.get((layout, plan), took))
        for layout in ("contiguous", "channels_last"):
            print(
                f"{name:14}{layout:16}" + "".join(f"{best[layout, p]:>14.3f} s" for p in range(len(plans))),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--torch-device", default="cpu")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{platform.platform()}, torch {torch.__version__}, {datetime.date.today()}")
    print(f"{options.examples} examples of {SHAPE}, batch {options.batch}, SGD, best of {options.repeats}\n")
    compare(options)


if __name__ == "__main__":
    main()
