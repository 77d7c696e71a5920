"""What pydantic finds wrong with a job, in the user's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from manyhands.engine.faults import Fault
from manyhands.errors import JobError, did_you_mean
from manyhands.fleet import CoRunning
from manyhands.job.sections import Sections

__all__ = ["explained"]

_KINDS: dict[Any, dict[str, type[BaseModel]]] = {
    key: {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(get_args(union)[0])}
    for key, union in (("fault", Fault), ("contention", CoRunning))
}
_TABLE_KINDS = {name: kind for kinds in _KINDS.values() for name, kind in kinds.items()}

_PLAINLY = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a table"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be an integer"),
    "string_pattern_mismatch": (
        "may have letters, digits, '.', '_' and '-', and begins with a letter or a digit"
    ),
}


def explained(error: ValidationError) -> JobError:
    """The first thing pydantic found wrong, with its key and value."""
    first = error.errors()[0]
    kind, value = first["type"], first["input"]
    # Not of the user's making: a fault's kind, which chose its table's type, and the type that a value was
    # tried as where it may be of several.
    where = [step for step in first["loc"] if not (isinstance(step, str) and _is_type(step))]
    key = _written(where)
    if kind == "missing":
        return JobError(key, None, "is missing")
    if kind == "extra_forbidden":
        keys = _keys_beside(first["loc"])
        hint = did_you_mean(str(where[-1]), keys)
        return JobError(key, value, f"there is no such key{hint} (there are {', '.join(keys)})")
    if kind == "union_tag_not_found":
        return JobError(f"{key}.kind", None, f"is missing; choose one of {', '.join(_KINDS[where[0]])}")
    if kind == "union_tag_invalid":
        expected = f"there is no such kind of {where[0]}; choose one of {', '.join(_KINDS[where[0]])}"
        return JobError(f"{key}.kind", first["ctx"]["tag"], expected)
    return JobError(key or "job", None if isinstance(value, dict) else value, _expected(first))


def _expected(first: ErrorDetails) -> str:
    """What would have been right."""
    if first["type"] == "too_short":
        return f"must have at least {first['ctx']['min_length']} entries"
    if first["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        hint = did_you_mean(str(first["input"]), known)
        return f"there is no such choice{hint}; choose one of {', '.join(known)}"
    message = _PLAINLY.get(first["type"]) or re.sub(r"^Value error, ", "", first["msg"])
    return message[0].lower() + message[1:]


def _written(where: Sequence[int | str]) -> str:
    """A place in a job as a user writes it: ``fleet.device[0].size``."""
    return re.sub(
        r"\.\[", "[", ".".join(f"[{step}]" if isinstance(step, int) else str(step) for step in where)
    )


def _is_type(step: str) -> bool:
    return step in (*_TABLE_KINDS, "int", "str") or step.startswith(("constrained-", "dict["))


def _keys_beside(location: tuple[str | int, ...]) -> list[str]:
    """The keys of the table in which an unknown one was found."""
    table: type[BaseModel] = Sections
    for step in location[:-1]:
        if isinstance(step, int):
            continue
        if step in _TABLE_KINDS:
            table = _TABLE_KINDS[step]
        elif step in table.model_fields:
            table = next((t for t in _tables_in(table.model_fields[step].annotation)), table)
    return list(table.model_fields)


def _tables_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for part in get_args(annotation) for table in _tables_in(part)]
