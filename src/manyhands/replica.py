"""A replica: what a device keeps of its learning between local phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from manyhands.blocks import Weights
from manyhands.hand import Outcome

__all__ = ["Blocks", "Replica"]

Blocks = Mapping[str, Weights]
"""Block name -> its tensors."""


@dataclass(frozen=True)
class Replica:
    """What a device keeps of its network, and of what it has seen, between local phases.

    Before the first and after the last round the weights are all of its network; in between, the tensors
    that are its own. What it made of the shared ones has gone into its update, and the next message brings
    them back.

    Attributes:
        weights: The network's tensors.
        optimizer: What its optimizer remembers.
        num_steps: How many steps it has made along gradients.
        num_rounds: How many local phases it has done.
        memory: What it has seen and learns from again, a piece a phase, the oldest first.
    """

    weights: Weights
    optimizer: Weights | None = None
    num_steps: int = 0
    num_rounds: int = 0
    memory: tuple[Weights, ...] = ()

    def after(self, trained: Outcome) -> Replica:
        """The replica that a local phase leaves behind.

        A phase that gives the weights ``experience`` also gives the fact ``remembered``: how many pieces of
        memory, this one included, are kept.
        """
        memory = self.memory
        if (experience := trained.weights.get("experience")) is not None:
            memory = (*memory, experience)[-int(trained.facts["remembered"]) :]
        return Replica(
            trained.weights["replica"],
            trained.weights.get("optimizer"),
            int(trained.facts["num_steps"]),
            self.num_rounds + 1,
            memory,
        )

    def settled(self, outcome: Outcome) -> Replica:
        """The replica that has taken over blocks for good, and has nothing left to learn from."""
        return replace(self, weights=outcome.weights["replica"], memory=())
