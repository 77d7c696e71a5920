"""A job: what a TOML file says, validated, with a stable hash.

    TOML, ``--set`` -> paths from the root -> sections -> checks of what they say together -> Job

Whatever is wrong on that way is one line that names the key, the value and what would be right.
"""

from manyhands.job.job import Job, split_labels
from manyhands.job.keys import place_of, toml_value
from manyhands.job.reading import load_job, quick_start
from manyhands.job.sections import RunSection

__all__ = ["Job", "RunSection", "load_job", "place_of", "quick_start", "split_labels", "toml_value"]
