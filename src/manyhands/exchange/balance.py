"""How much of its data each device goes through in the next epoch (paper 002, algorithm 1).

Plain numbers in, plain numbers out. Every device runs this by itself on what it has heard of the others;
those who heard the same come to the same ratios, and nobody coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

LEAST = 0.01
"""The part of an epoch's time in which everybody trains, whatever else it has to do."""

__all__ = ["Announced", "Balance", "balance", "heirs", "with_inheritance"]


@dataclass(frozen=True)
class Announced:
    """What a device says before an epoch.

    Attributes:
        throughput: p, the examples a second that it expects to train on; 0 if it is gone.
        num_examples: |X|, the examples that it holds.
        fixed_s: What an epoch takes it besides training, however little it trains: writing its state, sending
            and merging networks. On a busy device that is slow as well.
    """

    throughput: float
    num_examples: int
    fixed_s: float = 0.0

    @property
    def training_s(self) -> float:
        """How long it trains on all of its data."""
        return self.num_examples / self.throughput


@dataclass(frozen=True)
class Balance:
    """What follows from the announcements.

    Attributes:
        ratios: r, the part of its data that each device which has not failed goes through.
        epoch_s: T[1], how long that takes each of them, with what it does besides.
        failed: Those whose F is 1.
        halted: Whether more than the threshold have failed, which calls for the exception's path.
    """

    ratios: Mapping[str, float]
    epoch_s: float
    failed: tuple[str, ...]
    halted: bool


def balance(
    announced: Mapping[str, Announced],
    least_throughput: float = 0.001,
    failure_threshold: float = 0.1,
    part: float = 1.0,
) -> Balance:
    """Algorithm 1, by its line numbers.

    Unlike the paper's it still gives ratios for those who are there when it halts: if nobody can take up what
    the failed ones held, training goes on without it. And what an epoch takes besides training counts too.

    Args:
        announced: What was heard of each device (line 1).
        least_throughput: The threshold of p below which a device has failed.
        failure_threshold: The part of the devices that may fail.
        part: The part of its data that the one who is done first goes through.
    """
    times_s: dict[str, float] = {}
    failed: list[str] = []
    for name, said in announced.items():  # lines 2 to 13
        if said.throughput < least_throughput:
            failed.append(name)
            times_s[name] = math.inf
        else:
            times_s[name] = said.fixed_s + part * said.training_s if said.num_examples else 0.0
    halted = bool(announced) and len(failed) / len(announced) > failure_threshold
    ranked = sorted((n for n in times_s if n not in failed), key=lambda n: times_s[n])  # line 14
    # One that holds next to nothing is done at once and would stop all the others.
    first_s = next((times_s[n] for n in ranked if times_s[n] > 0), 0.0)
    ratios = {  # lines 15 to 18
        n: part if times_s[n] <= first_s else _ratio(announced[n], first_s, part) for n in ranked
    }
    return Balance(ratios, first_s, tuple(failed), halted)


def _ratio(said: Announced, epoch_s: float, part: float) -> float:
    """What one that is not done first goes through; a little, if what it does besides leaves it no time."""
    least = LEAST * min(epoch_s / said.training_s, part)
    return min(max((epoch_s - said.fixed_s) / said.training_s, least), part)


def heirs(
    failed: Sequence[str], holders: Mapping[str, Collection[str]], announced: Mapping[str, Announced]
) -> dict[str, str]:
    """Who takes up the data of each failed device: of those who hold a copy and are there, the first done.

    Each that takes something up is later done by that much, so copies of several failed ones spread out.

    Args:
        failed: Those that have failed.
        holders: Device -> those who hold a copy of its data.
        announced: What was heard of each device.

    Returns:
        Failed device -> heir, without those of whose data nobody holds a copy.
    """
    found: dict[str, str] = {}
    load = {name: said.num_examples for name, said in announced.items()}
    for name in failed:
        able = [h for h in holders.get(name, ()) if h in announced and h not in failed]
        if able:
            more = announced[name].num_examples
            heir = min(able, key=lambda h: ((load[h] + more) / announced[h].throughput, h))
            load[heir] += more
            found[name] = heir
    return found


def with_inheritance(announced: Mapping[str, Announced], found: Mapping[str, str]) -> dict[str, Announced]:
    """The announcements with what heirs have taken up counted as theirs."""
    sizes = {name: said.num_examples for name, said in announced.items()}
    for name, heir in found.items():
        sizes[heir] += announced[name].num_examples
    return {name: replace(said, num_examples=sizes[name]) for name, said in announced.items()}
