"""Networks given by import path, "package.module:Callable": any class or function that makes an `nn.Module`.

Importing runs the module's code, so such a job is to be trusted as a program is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from manyhands.errors import JobError

__all__ = ["call_imported", "load"]


def load(path: str) -> Callable[..., Any]:
    """What stands at an import path.

    Raises:
        JobError: The module cannot be imported, or has nothing callable of that name.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise JobError("model.name", path, "must have the form package.module:Callable")
    try:
        found: Any = import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported
        raise JobError(
            "model.name", path, f"cannot import {module_name} ({_reason(error)}); is it on PYTHONPATH?"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise JobError("model.name", path, f"{module_name} has nothing callable of the name {attribute}")
    return found  # type: ignore[no-any-return]


def call_imported(
    path: str, options: dict[str, Any], shape: tuple[int, int, int], num_classes: int
) -> nn.Module:
    """Calls what stands at an import path, with `shape` and `num_classes` too if it takes them.

    Raises:
        JobError: The call fails, or does not give an `nn.Module`.
    """
    maker = load(path)
    given = {**_taken(maker, shape=shape, num_classes=num_classes), **options}
    try:
        model = maker(**given)
    except Exception as error:  # somebody else's code
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise JobError("model.name", path, f"calling it with ({shown}) fails: {_reason(error)}") from error
    if not isinstance(model, nn.Module):
        raise JobError("model.name", path, f"must give a torch.nn.Module, but gives a {type(model).__name__}")
    return model


def _taken(maker: Callable[..., Any], *, shape: tuple[int, int, int], num_classes: int) -> dict[str, Any]:
    """The arguments of ours that the callable takes by name.

    `num_classes` is so common a name that it is also passed into `**kwargs`; `shape` is not.
    """
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return {}
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    taken: dict[str, Any] = {}
    if "shape" in parameters:
        taken["shape"] = shape
    if "num_classes" in parameters or open_ended:
        taken["num_classes"] = num_classes
    return taken


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
