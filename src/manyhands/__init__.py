"""manyhands trains one convolutional network on the mixed devices you already own.

from manyhands import load_job, train
result = train(load_job(Path("my-job.toml")), Path("runs/my-job"))
"""

from __future__ import annotations

from importlib import metadata

__all__ = [
    "Vary",
    "__version__",
    "compare",
    "load_job",
    "load_network",
    "quick_start",
    "resume",
    "sweep",
    "train",
]

__version__ = metadata.version("manyhands")


def __getattr__(name: str) -> object:
    """The public functions, imported when first asked for, so that `manyhands --help` need not load torch."""
    if name in ("load_job", "quick_start"):
        from manyhands import job  # noqa: PLC0415

        return getattr(job, name)
    if name in ("compare", "resume", "train"):
        from manyhands import run  # noqa: PLC0415

        return getattr(run, name)
    if name == "load_network":
        from manyhands import saved  # noqa: PLC0415

        return saved.load_network
    if name in ("Vary", "sweep"):
        from manyhands import sweeps  # noqa: PLC0415

        return getattr(sweeps, name)
    raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
