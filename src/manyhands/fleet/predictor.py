"""The performance predictor: from what others use of a machine to how long training will take there.

Section 3.3 of Han et al., doi:10.1109/TPDS.2020.3046440. The *basic* predictor of a node says t = t0 · RG(U):
the time for an example on a free machine, times a slow-down that a regression gives for the use U of
co-running work. The regression is made from profiling runs. Its coefficients are not negative, so that more
contention never makes a prediction faster. t0 follows what is measured while training goes on, so that a
machine that is slower today than when it was profiled is predicted so. The *extended* one adds up executors:
p = Σ 1/tᵢ.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from manyhands.errors import JobError
from manyhands.fleet.use import Use

__all__ = [
    "Predictor",
    "Regression",
    "Sample",
    "fit",
    "mean_error",
    "read_predictor",
    "throughput",
    "write_predictor",
]

SCHEMA = 1
MOST_CORES = 0.95
MEMORY = 5
"""How many of the last ratios of measured to predicted time t0 is taken from."""


@dataclass(frozen=True)
class Sample:
    """One profiling run: what others used meanwhile, and what an example took."""

    use: Use
    seconds_per_example: float


@dataclass(frozen=True)
class Regression:
    """RG(U): the slow-down, one plus a sum of terms that are 0 on a free machine.

    Attributes:
        cores: For each core share used.
        squeeze: For use / (1 - use) of the cores: what fair sharing of busy cores gives.
        network: For each Gbit/s.
        disk: For each Gbit/s.
    """

    cores: float = 0.0
    squeeze: float = 1.0
    network: float = 0.0
    disk: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= value < float("inf") for value in asdict(self).values()):
            raise ValueError(f"coefficients must be numbers not below 0: {asdict(self)}")

    def __call__(self, use: Use) -> float:
        """The slow-down under this use, at least 1."""
        return 1.0 + float(np.dot(_terms(use), (self.cores, self.squeeze, self.network, self.disk)))


def _terms(use: Use) -> tuple[float, float, float, float]:
    cores = min(use.cores, MOST_CORES)
    return cores, cores / (1 - cores), use.network_bps / 1e9, use.disk_bps / 1e9


def fit(samples: Sequence[Sample], t0_s: float | None = None) -> tuple[float, Regression]:
    """t0 and the regression with the least relative errors.

    Args:
        samples: Of profiling runs, some of them with little contention.
        t0_s: Seconds for an example on a free machine, where it is known; otherwise it is fitted as well.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (who reads a predictor need not wait for it)

    if len(samples) < 2:
        raise ValueError("a regression needs at least two samples")
    terms = np.array([_terms(sample.use) for sample in samples])
    seconds = np.array([sample.seconds_per_example for sample in samples])
    # t = t0 + Σ (t0 c) term, each row divided by its t: errors are relative, and t0 is a coefficient too.
    if t0_s is None:
        rows = np.column_stack([np.ones(len(samples)), terms]) / seconds[:, None]
        found, _ = nnls(rows, np.ones(len(samples)))
        t0_s, slopes = float(found[0]), found[1:]
        if t0_s <= 0:
            raise ValueError("the samples do not tell what an example takes on a free machine")
    else:
        slopes, _ = nnls(terms / seconds[:, None], 1 - t0_s / seconds)
    return t0_s, Regression(*(float(slope) / t0_s for slope in slopes))


class Predictor:
    """Of one node and one training task.

    Args:
        t0_s: Seconds for an example on a free machine.
        regression: From use to slow-down.
    """

    def __init__(self, t0_s: float, regression: Regression | None = None) -> None:
        if not 0 < t0_s < float("inf"):
            raise ValueError(f"t0 must be above 0, not {t0_s}")
        self.regression = regression or Regression()
        self.t0_s = t0_s
        self._first_s = t0_s
        self._ratios: deque[float] = deque(maxlen=MEMORY)

    def predict(self, use: Use) -> float:
        """Seconds for an example under this use."""
        return self.t0_s * self.regression(use)

    def observe(self, use: Use, seconds_per_example: float) -> None:
        """What an example did take: t0 becomes what the median of the last few of these says."""
        if 0 < seconds_per_example < float("inf"):
            self._ratios.append(seconds_per_example / (self._first_s * self.regression(use)))
            self.t0_s = self._first_s * median(self._ratios)


def throughput(seconds_per_example: Iterable[float]) -> float:
    """Examples per second of a platform of several executors: p = Σ 1/tᵢ."""
    return sum(1.0 / seconds for seconds in seconds_per_example)


def mean_error(predictor: Predictor, samples: Sequence[Sample]) -> float:
    """The mean of |predicted - measured| / measured."""
    return fmean(abs(predictor.predict(s.use) / s.seconds_per_example - 1) for s in samples)


def write_predictor(path: Path, t0_s: float, regression: Regression, samples: Sequence[Sample]) -> None:
    """Keeps a predictor, and what it was made from, as JSON."""
    said = {
        "schema": SCHEMA,
        "t0_s": t0_s,
        "regression": asdict(regression),
        "samples": [
            asdict(sample.use) | {"seconds_per_example": sample.seconds_per_example} for sample in samples
        ],
    }
    path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _check_version(said: dict[str, Any]) -> None:
    if said["schema"] != SCHEMA:
        raise ValueError(f"schema {said['schema']} is not {SCHEMA}")


def read_predictor(path: Path, key: str = "predictor") -> Predictor:
    """A predictor that was kept; `key` is what the user calls the file.

    Raises:
        JobError: The file is not there, or not one.
    """
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _check_version(said)
        return Predictor(float(said["t0_s"]), Regression(**said["regression"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = f"is not a predictor ({error}); make one by 'manyhands profile --beside FILE'"
        raise JobError(key, str(path), expected) from error
