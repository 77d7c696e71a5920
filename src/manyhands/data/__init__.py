"""What is learned from: the data sets, and the share of them that each device holds."""

from manyhands.data.examples import Dataset, Examples, Progress
from manyhands.data.loading import get, load
from manyhands.data.lookup import Source
from manyhands.data.section import DataSection
from manyhands.data.shares import plan_class_shares, plan_shares, train_validation
from manyhands.data.sources import SOURCES

__all__ = [
    "SOURCES",
    "DataSection",
    "Dataset",
    "Examples",
    "Progress",
    "Source",
    "get",
    "load",
    "plan_class_shares",
    "plan_shares",
    "train_validation",
]
