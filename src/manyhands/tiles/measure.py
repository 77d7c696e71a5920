"""Measures a device's profile and its links: layers are run at several heights, messages sent to and fro.

Devices that share a machine slow each other down (caches, memory), so the ranks of a group measure at the same
time: what one takes then is what it takes when they train together. torch's own timer reads the clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.benchmark import Timer

from manyhands.tiles.profile import HEIGHTS, NOTHING, Curve, LayerTimes, LinkProfile, Profile

__all__ = ["Layer", "measure_link", "measure_profile"]

# Long enough for a layer of milliseconds to be called several times, short enough for a network of fifty.
LEAST_S = 0.03
PROBE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Layer:
    """One layer as it is to be timed.

    Attributes:
        name: The node's name.
        call: Computes it.
        input_shapes: Of its inputs at full height, without the batch.
        parameters: Its trainable tensors.
        has_input_gradient: Whether backward must hand a gradient on.
    """

    name: str
    call: Callable[..., Tensor]
    input_shapes: tuple[tuple[int, int, int], ...]
    parameters: tuple[Tensor, ...] = ()
    has_input_gradient: bool = True


def measure_profile(
    device: str, layers: Iterable[Layer], batch_size: int, heights: Sequence[float] = HEIGHTS
) -> Profile:
    """Times every layer at parts of its full height, forward and both gradients."""
    times = {layer.name: _measure_layer(layer, batch_size, heights) for layer in layers}
    return Profile(device, times, batch_size, _copy_bytes_per_s())


def _measure_layer(layer: Layer, batch_size: int, heights: Sequence[float]) -> LayerTimes:
    points: dict[int, tuple[float, float, float]] = {}
    full = layer.input_shapes[0][1]
    for height in sorted({max(2, 2 * round(full * part / 2)) for part in heights if full * part >= 1}):
        inputs = [
            torch.randn(batch_size, channels, max(1, rows * height // full), cols)
            .contiguous(memory_format=torch.channels_last)
            .requires_grad_(layer.has_input_gradient)
            for channels, rows, cols in layer.input_shapes
        ]
        try:
            rows, seconds = _measure_at(layer, inputs)
        except RuntimeError:  # a kernel that does not fit into so few rows
            continue
        points.setdefault(rows, seconds)
    found = sorted(points.items())
    curves = [
        Curve(tuple(float(rows) for rows, _ in found), tuple(seconds[i] for _, seconds in found))
        for i in range(3)
    ]
    return LayerTimes(
        curves[0],
        curves[1] if layer.has_input_gradient or not layer.parameters else NOTHING,
        curves[2] if layer.parameters else NOTHING,
    )


def _measure_at(layer: Layer, inputs: list[Tensor]) -> tuple[int, tuple[float, float, float]]:
    """Rows of output, and the seconds of forward, input gradient and weight gradient."""
    forward = _seconds(lambda: layer.call(*inputs))
    output = layer.call(*inputs)
    if not output.requires_grad:
        return output.shape[-2], (forward, 0.0, 0.0)
    gradient = torch.randn_like(output)
    wanted = list(inputs) if layer.has_input_gradient else []
    both = [*wanted, *layer.parameters]

    def backward(to: Sequence[Tensor]) -> float:
        def run() -> None:
            torch.autograd.grad(output, to, gradient, retain_graph=True)

        return _seconds(run) if to else 0.0

    to_input, to_all = backward(wanted), backward(both)
    if not layer.parameters:
        return output.shape[-2], (forward, to_input, 0.0)
    return output.shape[-2], (forward, to_input, max(0.0, to_all - to_input))


def _seconds(call: Callable[[], object]) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=LEAST_S).median


def _copy_bytes_per_s() -> float:
    source = torch.randn(1, 64, 8, 512).contiguous(memory_format=torch.channels_last)
    target = torch.empty_like(source)
    return source.numel() * source.element_size() / _seconds(lambda: target.copy_(source))


def measure_link(group: dist.ProcessGroup | None = None, num_messages: int = 50) -> LinkProfile:
    """Latency and throughput between this rank and its neighbour; every rank of the group must call it.

    Ranks are paired (0 with 1, 2 with 3, …) and all pairs speak at once; an odd one out takes the mean of the
    others' figures, which all ranks are given, so that all plan with the same numbers.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    other = rank ^ 1
    found: list[float] = []
    for num_bytes in (4, PROBE_BYTES):
        if other < world:
            count = num_messages if num_bytes < PROBE_BYTES else max(3, num_messages // 10)
            found.append(_exchange_seconds(num_bytes, other, group, count))
        else:
            found.append(0.0)
        dist.barrier(group)
    everyone = torch.zeros(world, 2, dtype=torch.float64)
    everyone[rank] = torch.tensor(found, dtype=torch.float64)
    dist.all_reduce(everyone, group=group)
    pairs = everyone[: world - world % 2]
    latency_s = statistics.median(pairs[:, 0].tolist())
    transfer_s = statistics.median(pairs[:, 1].tolist()) - latency_s
    return LinkProfile(latency_s, PROBE_BYTES / max(transfer_s, 1e-9))


def _exchange_seconds(num_bytes: int, other: int, group: dist.ProcessGroup | None, count: int) -> float:
    """Seconds in which two ranks have sent each other so many bytes."""
    out, back = torch.zeros(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    peer = other if group is None else dist.get_global_rank(group, other)

    def exchange() -> None:
        sent = dist.isend(out, peer, group)
        received = dist.irecv(back, peer, group)
        assert sent is not None
        assert received is not None
        received.wait()
        sent.wait()

    # `timeit` makes the same number of calls on both sides; an adaptive timer would not.
    return Timer("exchange()", globals={"exchange": exchange}, num_threads=torch.get_num_threads()).timeit(count).mean
