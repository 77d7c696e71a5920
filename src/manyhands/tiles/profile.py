"""How long a device takes for each layer of a tiled network, and a message between two devices.

A profile holds, for every layer, the seconds of its forward pass, of its input's gradient and of its
weights' gradient at several heights, because time is not proportional to height: a small tile pays the same
calls and fills the vector units worse. Between heights it is interpolated. Profiles are measured
(`measure.py`) or, for a device that is not at hand, predicted from its arithmetic and memory rates; a
predicted one says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from manyhands.errors import RunError

__all__ = ["Curve", "LayerTimes", "LayerWork", "LinkProfile", "Profile", "predicted_profile", "read_profile"]

HEIGHTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)


@dataclass(frozen=True)
class Curve:
    """Seconds against rows of output, at the full width of the map; rows rise."""

    rows: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.seconds):
            raise ValueError(
                f"a curve needs as many seconds as rows, got {len(self.seconds)} and {len(self.rows)}"
            )
        if any(b <= a for a, b in zip(self.rows, self.rows[1:], strict=False)):
            raise ValueError(f"the rows of a curve must rise, got {self.rows}")

    def at(self, rows: float) -> float:
        """The time of so many rows; what lies outside of the measured heights follows the nearest two."""
        if rows <= 0:
            return 0.0
        if len(self.rows) == 1:
            return self.seconds[0] * rows / self.rows[0]
        right = min(max(bisect_right(self.rows, rows), 1), len(self.rows) - 1)
        (low, high), (start, end) = self.rows[right - 1 : right + 1], self.seconds[right - 1 : right + 1]
        line = start + (end - start) * (rows - low) / (high - low)
        # Noise may give the lowest two heights a slope that cuts the axis: never below proportional.
        return max(line, self.seconds[0] * rows / self.rows[0]) if rows < self.rows[0] else max(line, 0.0)

    def scaled(self, factor: float) -> Curve:
        """The curve of a device that takes `factor` times as long."""
        return Curve(self.rows, tuple(second * factor for second in self.seconds))


NOTHING = Curve((1.0,), (0.0,))


@dataclass(frozen=True)
class LayerTimes:
    """A layer's three passes; a layer without weights has nothing in the last."""

    forward: Curve
    input_gradient: Curve = NOTHING
    weight_gradient: Curve = NOTHING


@dataclass(frozen=True)
class Profile:
    """One device's times.

    Attributes:
        device: What it is called in messages to people.
        layers: By the name of the graph's node.
        batch_size: Images a step for which the times hold.
        copy_bps: Bytes a second that it packs into or unpacks from a message.
        group_s: What beginning a group costs in calls, forward and back together, however small its borders.
        skew_s: How much longer than a message takes others are waited for, since of devices that do the same
            now the one and now the other is late.
        calls_s: What a step costs beside its layers, however large it is.
        update_s: What the optimizer costs, without numbers of its own for each weight.
        predicted: Not measured, but derived from rates.
    """

    device: str
    layers: Mapping[str, LayerTimes]
    batch_size: int
    copy_bps: float = 4e9
    group_s: float = 4e-5
    skew_s: float = 0.0
    calls_s: float = 0.0
    update_s: float = 0.0
    predicted: bool = False

    def scaled(self, factor: float) -> Profile:
        """The profile of a device that is slower by `factor` in all it computes."""
        layers = {
            name: LayerTimes(
                times.forward.scaled(factor),
                times.input_gradient.scaled(factor),
                times.weight_gradient.scaled(factor),
            )
            for name, times in self.layers.items()
        }
        return Profile(
            self.device,
            layers,
            self.batch_size,
            self.copy_bps / factor,
            self.group_s * factor,
            self.skew_s * factor,
            self.calls_s * factor,
            self.update_s * factor,
            self.predicted,
        )

    def save(self, path: Path) -> None:
        """Writes it in one step, so that nobody reads half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_bytes(_FILE.dump_json(self, indent=1))
        draft.replace(path)


@dataclass(frozen=True)
class LinkProfile:
    """A message of n bytes between two devices takes latency_s + n / bytes_per_s.

    Attributes:
        latency_s: From the call that sends to the call that has received, for a message of nothing.
        bytes_per_s: What passes in each direction, as the payload sees it.
        through_memory: Whether it is memory that processes of one machine share: then it is the processors
            that carry messages, and none of that goes on behind their computing.
    """

    latency_s: float
    bytes_per_s: float
    through_memory: bool = False

    def seconds(self, num_bytes: float) -> float:
        """The time of one message."""
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True)
class LayerWork:
    """What one layer does for a batch, from which its time on an absent device is predicted.

    Attributes:
        name: The node's name.
        rows: Rows of its output.
        forward_flops: Operations of the forward pass over all rows.
        weight_bytes: Size of its weights, read in every pass however few the rows.
        map_bytes: What the forward pass reads and writes of maps.
        has_input_gradient: False for the first layer.
    """

    name: str
    rows: int
    forward_flops: float
    weight_bytes: float
    map_bytes: float
    has_input_gradient: bool = True


_FILE: TypeAdapter[Profile] = TypeAdapter(Profile)


def read_profile(path: Path) -> Profile | None:
    """A profile that was saved, or None where there is none.

    Raises:
        RunError: There is a file, and it is no profile.
    """
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise RunError(f"{path}: not a profile of tiles ({type(error).__name__}); delete it") from error


def predicted_profile(
    device: str,
    works: Iterable[LayerWork],
    batch_size: int,
    *,
    flops_per_s: float,
    memory_bytes_per_s: float,
    call_s: float = 0.0,
) -> Profile:
    """A profile by the roofline: a pass lasts as long as the slower of its arithmetic and its memory traffic.

    Args:
        device: What the device is called.
        works: The layers, for a whole batch.
        batch_size: The images of that batch.
        flops_per_s: What the device sustains in convolutions.
        memory_bytes_per_s: What it sustains between memory and processor.
        call_s: What starting an operation costs, whatever its size.
    """

    def curve(rows: Sequence[int], flops: float, fixed_bytes: float, moved_bytes: float, total: int) -> Curve:
        seconds = (
            call_s
            + max(
                flops * r / total / flops_per_s, (fixed_bytes + moved_bytes * r / total) / memory_bytes_per_s
            )
            for r in rows
        )
        return Curve(tuple(float(r) for r in rows), tuple(seconds))

    layers = {}
    works = tuple(works)
    for work in works:
        rows = sorted({max(1, round(work.rows * part)) for part in HEIGHTS})
        passes = curve(rows, work.forward_flops, work.weight_bytes, work.map_bytes, work.rows)
        layers[work.name] = LayerTimes(
            passes,
            passes if work.has_input_gradient else NOTHING,
            passes if work.weight_bytes else NOTHING,
        )
    weight_bytes = sum(work.weight_bytes for work in works)
    copy_bps = memory_bytes_per_s / 2
    return Profile(
        device, layers, batch_size, copy_bps, update_s=1.5 * weight_bytes / copy_bps, predicted=True
    )
