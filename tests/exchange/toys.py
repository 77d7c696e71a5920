"""Devices whose network is one number, for tests of what is said to whom."""

from __future__ import annotations

import torch

from manyhands.blocks import Weights
from manyhands.exchange.member import Member
from manyhands.hand import Outcome, Work
from manyhands.replica import Blocks, Replica


def one(value: float) -> Weights:
    return Weights({"w": torch.tensor(value, dtype=torch.float64)})


def member(step: float = 1.0, flops: float = 0.0) -> Member:
    """A device that holds the block ``model``; a local phase adds `step` to it."""

    def train(replica: Replica, blocks: Blocks, number: int) -> Work:
        def run() -> Outcome:
            facts = {"num_steps": replica.num_steps + 1, "examples": 7, "loss": 0.5}
            new = {"update/model": one(float(blocks["model"]["w"]) + step)}
            return Outcome(facts, {"replica": Weights({}), **new})

        return Work("train", run, flops, {"round": number})

    def settle(_replica: Replica, blocks: Blocks) -> Work:
        return Work("settle", lambda: Outcome({}, {"replica": blocks["model"]}))

    def evaluate(_replica: Replica, _blocks: Blocks) -> Work:
        return Work("evaluate", lambda: Outcome({"accuracy": 0.5, "loss": 0.0}))

    return Member("x", Replica(Weights({})), 7, train, settle, evaluate)
