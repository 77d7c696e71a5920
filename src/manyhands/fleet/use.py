"""What co-running work takes of a device: of its cores, its network link and its disk.

The monitor measures it, the predictor makes a slow-down of it, and the simulator's contention prescribes it.
The three are those of table 4 of Han et al., doi:10.1109/TPDS.2020.3046440.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["IDLE", "Use", "together"]


@dataclass(frozen=True)
class Use:
    """What is taken, now or on average.

    Attributes:
        cores: Of the device's computing power, the part from 0 to 1.
        network_bps: Bits sent and received per second.
        disk_bps: Bits read and written per second.
    """

    cores: float = 0.0
    network_bps: float = 0.0
    disk_bps: float = 0.0

    @property
    def figures(self) -> tuple[float, float, float]:
        """Cores, network, disk."""
        return self.cores, self.network_bps, self.disk_bps

    @property
    def slowdown(self) -> float:
        """How many times longer work takes on what is left of the cores."""
        return 1.0 / (1.0 - self.cores)


IDLE = Use()


def together(uses: Sequence[Use]) -> Use:
    """What works take that run at once: each finds the cores that the others have left."""
    if len(uses) == 1:
        return uses[0]
    return Use(
        1.0 - math.prod(1.0 - use.cores for use in uses),
        sum(use.network_bps for use in uses),
        sum(use.disk_bps for use in uses),
    )
