"""The networks that a job can train, and what training them costs.

One file per network family; `families.py` lists them and builds one for the data at hand, by name or by
import path; `cost.py` says what a training step takes in operations and memory, without doing the
arithmetic.
"""

from __future__ import annotations

from manyhands.models.cost import Cost, LayerCost, cost_of, layer_costs
from manyhands.models.families import FAMILIES, Family, ModelSection, build, sizes_of
from manyhands.models.forms import Form, FormName, build_in_form

__all__ = [
    "FAMILIES",
    "Cost",
    "Family",
    "Form",
    "FormName",
    "LayerCost",
    "ModelSection",
    "build",
    "build_in_form",
    "cost_of",
    "layer_costs",
    "sizes_of",
]
