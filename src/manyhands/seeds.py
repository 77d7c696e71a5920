"""Random numbers that do not depend on who draws first.

Every draw in a run comes from a generator derived from the job's seed and what the draw is for,
``derive(seed, "pi-kitchen", 3, "batches")``, so the order in which devices happen to run, the number
of worker threads and a resumed run change nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

__all__ = ["derive", "numpy_generator", "torch_generator"]


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose; equal arguments give equal seeds on every machine."""
    text = "\x1f".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))


def torch_generator(seed: int, *purpose: str | int, device: str = "cpu") -> torch.Generator:
    """A torch generator for one purpose, on the torch device that will draw from it."""
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))
