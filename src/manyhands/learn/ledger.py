"""What a device remembers of its data between epochs: a few numbers for each point or example.

They lie in the replica's memory, so they are saved, resumed and lost with it. Of data that a device has taken
up from another the numbers are kept under the other's name, also while it is not in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from manyhands.blocks import Weights
from manyhands.replica import Replica

__all__ = ["Ledger", "Numbers"]

Numbers = np.ndarray[Any, np.dtype[Any]]


class Ledger:
    """Columns of numbers, those of all shares in a row.

    Args:
        sizes: Owner of a share -> how many rows it has.
        replica: Where they were kept.
        first: Column -> what stands there in the beginning, in the column's type.

    Attributes:
        columns: Column -> its numbers; to be written in place.
    """

    def __init__(self, sizes: Mapping[str, int], replica: Replica, first: Mapping[str, Any]) -> None:
        self._sizes = dict(sizes)
        self._before: Mapping[str, torch.Tensor] = replica.memory[-1] if replica.memory else {}
        self.columns: dict[str, Numbers] = {what: self._read(what, value) for what, value in first.items()}

    def _read(self, what: str, first: Any) -> Numbers:
        parts = [
            self._before[f"{owner}/{what}"].cpu().numpy().copy()
            if f"{owner}/{what}" in self._before
            else np.full(size, first)
            for owner, size in self._sizes.items()
        ]
        return np.concatenate(parts)

    def kept(self) -> Weights:
        """What to remember, also of shares that are not in use now."""
        tensors = dict(self._before)
        ends = np.cumsum(list(self._sizes.values()))[:-1]
        for what, values in self.columns.items():
            for owner, part in zip(self._sizes, np.split(values, ends), strict=True):
                tensors[f"{owner}/{what}"] = torch.from_numpy(np.ascontiguousarray(part))
        return Weights(tensors)
