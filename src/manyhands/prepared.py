"""A network that was decoupled by class: how to build that of some classes, also from a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from manyhands.errors import JobError
from manyhands.models.decoupled import Decoupled, decouple
from manyhands.models.exclusive import chooser

__all__ = ["Prepared", "read_decoupling", "save_decoupling"]

DECOUPLING = "decoupling.safetensors"


@dataclass(frozen=True)
class Prepared:
    """A network that was decoupled by class.

    Attributes:
        original: The network before it was cut, as trained until then.
        first: The first layer that was decoupled.
        given: Layer -> the filters of each class, [classes, filters].
        whole: The tensors of the decoupled network of all classes, as trained after the cut.
        num_classes: How many classes there are.
        accuracies: Of the original, of the network when it was cut, and when it had settled.
    """

    original: nn.Module
    first: str
    given: Mapping[str, Tensor]
    whole: Mapping[str, Tensor]
    num_classes: int
    accuracies: tuple[float, float, float]

    @property
    def figures(self) -> dict[str, object]:
        """What result.json says of it."""
        keys = ("accuracy_original", "accuracy_cut", "accuracy")
        return {"first": self.first, **dict(zip(keys, self.accuracies, strict=True))}

    def network(self, classes: Sequence[int]) -> Decoupled:
        """The network of some classes, with its weights."""
        new = decouple(self.original, self.first, classes, chooser(self.given, classes))
        rows = {name: _rows(self.whole[name], classes, self.num_classes) for name in new.by_class}
        new.module.load_state_dict({**self.whole, **rows})
        return new


def save_decoupling(prepared: Prepared, folder: Path) -> None:
    """Writes what it takes to build the networks of classes again."""
    file = folder / DECOUPLING
    draft = file.with_suffix(".partial")
    save_file(dict(prepared.given), draft, {"first": prepared.first})
    draft.replace(file)


def read_decoupling(folder: Path, original: nn.Module) -> Callable[[Sequence[int]], nn.Module]:
    """How to build the network of some classes, without their weights, from one that has not been cut.

    Raises:
        JobError: It was not saved there.
    """
    file = folder / DECOUPLING
    try:
        with safe_open(file, "pt") as saved:
            first = saved.metadata()["first"]
            given = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise JobError("run", str(file), f"cannot be read: {error}") from error
    return lambda classes: decouple(original, first, classes, chooser(given, classes)).module


def _rows(tensor: Tensor, classes: Sequence[int], num_classes: int) -> Tensor:
    """The rows of some classes, of a tensor that has as many for each of all."""
    return tensor.view(num_classes, -1, *tensor.shape[1:])[list(classes)].flatten(0, 1)
