"""How much slower co-running work makes this machine: the predictor, fed by the monitor.

Section 3.3 of Han et al., doi:10.1109/TPDS.2020.3046440, on a real device: the monitor says what others used
in the last seconds, and the regression of a profile what that costs training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from manyhands.fleet.monitor import monitoring
from manyhands.fleet.predictor import Regression, read_predictor
from manyhands.fleet.use import Use

__all__ = ["Slowdown", "Watcher", "slowdown_here", "slowdown_of"]

Slowdown = Callable[[float, float], float]
"""(from_s, until_s) -> how many times slower co-running work has made a device in that time."""


class Watcher(Protocol):
    """What is asked of a monitor."""

    def over(self, seconds: float) -> Use:
        """What others used on average over so many seconds until now."""
        ...


def slowdown_of(regression: Regression, watcher: Watcher) -> Slowdown:
    """What the regression makes of what a monitor sees; a span ends when it is asked for."""
    return lambda from_s, until_s: regression(watcher.over(max(until_s - from_s, 0.0)))


@contextmanager
def slowdown_here(
    profile: Path | None, own_network: Callable[[], float] | None = None
) -> Iterator[Slowdown | None]:
    """Of this machine, while the context lasts; None where it has no profile.

    Args:
        profile: What ``manyhands profile --beside FILE`` has written on this machine.
        own_network: Bytes that the own process has sent and received so far.

    Raises:
        JobError: The file is not a profile.
    """
    if profile is None:
        yield None
        return
    regression = read_predictor(profile, "live.profile").regression
    with monitoring(own_network=own_network) as monitor:
        yield slowdown_of(regression, monitor)
