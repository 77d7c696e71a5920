"""What every local phase has in common, whatever it learns from.

A phase takes over the blocks that the others sent, trains, and gives back what the device keeps to itself,
what its optimizer remembers and an update of each block that it shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from manyhands.blocks import Layout, Weights, absorb, extract, private_names
from manyhands.hand import Facts, Outcome, Work
from manyhands.learn.workspace import Tensors
from manyhands.replica import Blocks, Replica

__all__ = ["Send", "Trained", "settle_work", "train_work"]

Send = Literal["parameters", "gradients"]
"""Whether updates carry parameters or the change since the round began."""


@dataclass(frozen=True)
class Trained:
    """What training made of a network.

    Attributes:
        state: All of its tensors.
        slots: What its optimizer remembers; nothing, if that is not kept.
        facts: For the trace.
        experience: What was seen in this phase, where it is learned from again.
    """

    state: Mapping[str, torch.Tensor]
    slots: Mapping[str, torch.Tensor]
    facts: Facts
    experience: Weights | None = None


def train_work(
    train: Callable[[Tensors], Trained],
    layout: Layout,
    send: Send,
    replica: Replica,
    blocks: Blocks,
    *,
    flops: float,
    number: int,
) -> Work:
    """Training, from the replica's weights with the blocks in them."""

    def run() -> Outcome:
        start = absorb(replica.weights, layout, blocks)
        trained = train(start)
        return Outcome(trained.facts, _results(start, trained, layout, send))

    return Work("train", run, flops, {"round": number})


def settle_work(layout: Layout, replica: Replica, blocks: Blocks) -> Work:
    """Takes over the blocks without training."""
    return Work("settle", lambda: Outcome({}, {"replica": Weights(absorb(replica.weights, layout, blocks))}))


def _results(start: Tensors, trained: Trained, layout: Layout, send: Send) -> dict[str, Weights]:
    state = trained.state
    results = {"replica": Weights({n: state[n] for n in private_names(state, layout)})}
    if trained.slots:
        results["optimizer"] = Weights(trained.slots)
    if trained.experience is not None:
        results["experience"] = trained.experience
    updates = extract(state, layout)
    if send == "gradients":
        before = extract(start, layout)
        updates = {
            b: {n: t - before[b][n].to(t.device) for n, t in tensors.items()}
            for b, tensors in updates.items()
        }
    return results | {f"update/{block}": Weights(tensors) for block, tensors in updates.items()}
