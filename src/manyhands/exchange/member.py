"""A member: what the program of a device is given to work with.

The exchange knows nothing of networks, data or optimizers. A `Member` hands it those as functions that
make `Work`: one local phase, taking over blocks, and looking at how good the network is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.blocks import Weights
from manyhands.hand import Outcome, Work
from manyhands.replica import Blocks, Replica

__all__ = ["Member", "looks", "updated_blocks"]


@dataclass(frozen=True)
class Member:
    """One device's part in a job.

    Attributes:
        name: The device.
        replica: Its network before the first round.
        num_examples: How much it trains on; the weight of its updates (paper 001, appendix A).
        train: ``(replica, blocks, round) -> Work``: takes over the blocks and trains; gives the weights
            ``replica``, ``optimizer`` and ``update/<block>``, and the facts ``num_steps``, ``examples`` and
            ``loss``.
        settle: ``(replica, blocks) -> Work``: takes over the blocks and gives the weights ``replica``.
        evaluate: ``(replica, blocks) -> Work``: how good the network is with these blocks; facts
            ``accuracy`` and ``loss``.
        together: ``(round, blocks) -> (round, Work) | None``: takes note of what it has after a round;
            if all have come to a further one by that, to which, and how good what they have is.
    """

    name: str
    replica: Replica
    num_examples: int
    train: Callable[[Replica, Blocks, int], Work]
    settle: Callable[[Replica, Blocks], Work]
    evaluate: Callable[[Replica, Blocks], Work]
    together: Callable[[int, Blocks], tuple[int, Work] | None] = lambda _round, _blocks: None


def updated_blocks(trained: Outcome) -> dict[str, Weights]:
    """What a local phase has to say about the shared blocks."""
    prefix = "update/"
    return {name.removeprefix(prefix): w for name, w in trained.weights.items() if name.startswith(prefix)}


def looks(number: int, every: int, last: int) -> bool:
    """Whether the experimenter looks at the network after this round; always after the last."""
    return number == last or (every > 0 and number % every == 0)
