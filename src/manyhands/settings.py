"""The common ground of all settings: immutable, and strict about keys they do not know.

Each part of manyhands declares its own settings beside the code that reads them, as a `Section`;
`job/` puts the sections together and turns what pydantic finds wrong into one line.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """One table of a job file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
