"""Measures a device's profile and its links: tiles are run at several heights, messages sent to and fro.

What can be computed in tiles is timed inside of passes (`trial.py`), the layers after it each alone. Devices
that share a machine slow each other down (caches, memory), so the ranks of a group measure at the same time:
what one takes then is what it takes when they train together. torch's own timer reads the clock.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.utils.benchmark import Timer

from manyhands.tiles.graph import TileGraph
from manyhands.tiles.peers import Peers
from manyhands.tiles.profile import HEIGHTS, NOTHING, Curve, LayerTimes, LinkProfile, Profile
from manyhands.tiles.trial import Trial, try_step, try_tiles
from manyhands.tiles.works import all_operations

__all__ = ["TimedLayer", "layers_to_time", "measure_link", "measure_profile"]

# Long enough for a layer of milliseconds to be called several times, short enough for a network of fifty.
LEAST_S = 0.03
PROBE_BYTES = 4 * 2**20
NUM_PASSES = 5
MEETINGS = 20
BATCH_PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)
# A trial holds what a step would, and the machine may be the home of several ranks.
MEMORY_PARTS = 4


@dataclass(frozen=True)
class TimedLayer:
    """One operation as it is to be timed.

    Attributes:
        name: Its name in the graph.
        call: Computes it.
        input_shapes: Of its inputs at full height, without the batch.
        parameters: Its trainable tensors.
        has_input_gradient: Whether backward must hand a gradient on.
    """

    name: str
    call: Callable[..., Tensor]
    input_shapes: tuple[tuple[int, ...], ...]
    parameters: tuple[Tensor, ...] = ()
    has_input_gradient: bool = True


def layers_to_time(graph: TileGraph) -> Iterable[TimedLayer]:
    """Every operation after those that can be tiled; modules are copied, one at a time."""
    operations = all_operations(graph)
    numbers = {operation: number for number, operation in enumerate(operations)}
    for number, operation in enumerate(operations[graph.end :], start=graph.end):
        sources = [source for source in operation.all_input_nodes if source in numbers]
        shapes = tuple(graph.shapes[numbers[source]] for source in sources)
        call, parameters = _callable(graph, operation, sources)
        images_only = all(source.op == "placeholder" for source in sources)
        yield TimedLayer(graph.names[number], call, shapes, parameters, not images_only)


def _callable(
    graph: TileGraph, operation: fx.Node, sources: Sequence[fx.Node]
) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    if operation.op == "call_module":
        module = copy.deepcopy(graph.traced.get_submodule(str(operation.target))).train()
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]  # the same input is used again and again
        return module, tuple(p for p in module.parameters() if p.requires_grad)

    def call(*inputs: Tensor) -> Tensor:
        found = dict(zip(sources, inputs, strict=True))
        args = fx.node.map_arg(operation.args, lambda node: found[node])
        kwargs = fx.node.map_arg(operation.kwargs, lambda node: found[node])
        if operation.op == "call_method":
            result = getattr(args[0], str(operation.target))(*args[1:], **kwargs)
        else:
            assert callable(operation.target)
            result = operation.target(*args, **kwargs)
        assert isinstance(result, Tensor)
        return result

    return call, ()


def measure_profile(
    device: str,
    graph: TileGraph,
    batch_size: int,
    heights: Sequence[float] = HEIGHTS,
    *,
    group: dist.ProcessGroup | None = None,
    num_passes: int = NUM_PASSES,
    least_s: float = LEAST_S,
) -> Profile:
    """Times every layer at parts of its full height, forward and both gradients.

    Where there is a process group, all its ranks (or all of `group`) must call it together.
    """
    copy_bps = _copy_bytes_per_s(least_s)
    most_bytes = torch.tensor(psutil.virtual_memory().available / MEMORY_PARTS, dtype=torch.float64)
    together = dist.is_initialized() and dist.get_world_size(group) > 1
    if together:  # they must try the same
        dist.all_reduce(most_bytes, dist.ReduceOp.MIN, group=group)
    meet = partial(dist.barrier, group) if together else lambda: None
    trials = list(try_tiles(graph, batch_size, heights, num_passes, most_bytes.item(), meet))
    times = {graph.name(number): _layer_times(trials, number) for number in range(1, graph.end)}
    times |= {layer.name: _measure_layer(layer, batch_size, least_s) for layer in layers_to_time(graph)}
    begins = [trial.begin_s(batch_size, copy_bps) for trial in trials if trial.num_exchanges]
    waits = [trial.wait_s for trial in trials if trial.num_exchanges] if together else []
    skew_s = max(0.0, statistics.median(waits) - _repeated(meet, MEETINGS)) if waits else 0.0
    calls_s, update_s = _calls(graph, times, batch_size, num_passes)
    group_s = statistics.median(begins or [0.0])
    return Profile(device, times, batch_size, copy_bps, group_s, skew_s, calls_s, update_s)


def _calls(
    graph: TileGraph, times: Mapping[str, LayerTimes], batch_size: int, num_passes: int
) -> tuple[float, float]:
    """What a step takes beside all layers, and its optimizer."""
    try:
        beside_s, update_s = try_step(graph, num_passes)
    except (RuntimeError, ValueError):  # a norm after the tiles that has too few examples
        return 0.0, 0.0
    after = (
        curve.at(_rows_of(graph, number) * 2 / batch_size)
        for number in range(graph.end, len(graph.names))
        for curve in _curves(times[graph.name(number)])
    )
    return max(0.0, beside_s - sum(after)), update_s


def _curves(times: LayerTimes) -> tuple[Curve, Curve, Curve]:
    return times.forward, times.input_gradient, times.weight_gradient


def _rows_of(graph: TileGraph, number: int) -> int:
    shape = graph.shapes[number]
    return shape[-2] if len(shape) >= 3 else 1


def _layer_times(trials: Sequence[Trial], number: int) -> LayerTimes:
    points: dict[float, tuple[float, ...]] = {}
    for trial in trials:
        if (seconds := trial.node_seconds(number)) is not None:
            points.setdefault(trial.rows(number), seconds)
    found = sorted(points.items())
    curves = [Curve(tuple(rows for rows, _ in found), tuple(s[i] for _, s in found)) for i in range(3)]
    return LayerTimes(*(curve if any(curve.seconds) else NOTHING for curve in curves))


def _measure_layer(layer: TimedLayer, batch_size: int, least_s: float) -> LayerTimes:
    """A layer after the tiles, at parts of the batch, which is what of it devices share out."""
    points: dict[float, tuple[float, float, float]] = {}
    for part in sorted({max(1, round(batch_size * part)) for part in BATCH_PARTS}):
        try:
            rows, seconds = _measure_at(layer, _inputs(layer, part), least_s)
        except (RuntimeError, ValueError):  # a norm that has too few examples
            continue
        points[rows * part / batch_size] = seconds
    if not points:
        return LayerTimes(NOTHING)
    found = sorted(points.items())
    curves = [Curve(tuple(rows for rows, _ in found), tuple(s[i] for _, s in found)) for i in range(3)]
    return LayerTimes(
        curves[0],
        curves[1] if layer.has_input_gradient else NOTHING,
        curves[2] if layer.parameters else NOTHING,
    )


def _inputs(layer: TimedLayer, batch_size: int) -> list[Tensor]:
    """Random inputs, channels last."""
    made = []
    for shape in layer.input_shapes:
        tensor = torch.rand(batch_size, *shape)
        if tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        made.append(tensor.requires_grad_(layer.has_input_gradient))
    return made


def _measure_at(
    layer: TimedLayer, inputs: list[Tensor], least_s: float
) -> tuple[int, tuple[float, float, float]]:
    """Rows of output, and the seconds of forward, input gradient and weight gradient."""
    forward = _seconds(lambda: layer.call(*inputs), least_s)
    output = layer.call(*inputs)
    if not output.requires_grad:
        return _rows(output), (forward, 0.0, 0.0)
    gradient = torch.randn_like(output)
    wanted = list(inputs) if layer.has_input_gradient else []

    def backward(to: Sequence[Tensor]) -> float:
        def run() -> None:
            torch.autograd.grad(output, to, gradient, retain_graph=True)

        return _seconds(run, least_s) if to else 0.0

    if all(parameter.dim() <= 1 for parameter in layer.parameters):
        # A norm's gradients come out of one pass, whichever is asked for.
        return _rows(output), (forward, backward([*wanted, *layer.parameters]), 0.0)
    return _rows(output), (forward, backward(wanted), backward(layer.parameters))


def _rows(output: Tensor) -> int:
    return output.shape[-2] if output.dim() >= 4 else 1


def _seconds(call: Callable[[], object], least_s: float) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    # Whatever else runs on the machine only ever adds to a time: the least is the layer's own.
    timer.timeit(1)
    once = timer.timeit(1).mean
    return min(once, *(timer.timeit(max(1, int(least_s / 3 / once))).mean for _ in range(3)))


def _copy_bytes_per_s(least_s: float) -> float:
    source = torch.randn(1, 64, 8, 512).contiguous(memory_format=torch.channels_last)
    target = torch.empty_like(source)
    return source.numel() * source.element_size() / _seconds(lambda: target.copy_(source), least_s)


def measure_link(
    group: dist.ProcessGroup | None = None, num_messages: int = 50, *, share_memory: bool = True
) -> LinkProfile:
    """Latency and throughput between this rank and its neighbour; every rank of the group must call it.

    Ranks are paired (0 with 1, 2 with 3, …) and all pairs speak at once, in the way in which tiles will; all
    are given the median of the pairs, an odd one out too, so that all plan with the same numbers.
    `share_memory` is to be what `tile` will be told.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if world == 1:
        return LinkProfile(0.0, inf)
    other = rank ^ 1
    found = [0.0, 0.0]
    peers = Peers(range(world), group, may_share=share_memory)
    if other < world:
        found[0] = _both_ways_seconds(peers, other, 1, num_messages)
    dist.barrier(group)
    if other < world:
        count = max(2, num_messages // 10)
        if peers.nearby is not None:
            found[1] = _both_ways_seconds(peers, other, PROBE_BYTES // 8, count)
        else:
            found[1] = _there_and_back_seconds(other, group, count) / 2
    dist.barrier(group)
    everyone = torch.zeros(world, 2, dtype=torch.float64)
    everyone[rank] = torch.tensor(found, dtype=torch.float64)
    dist.all_reduce(everyone, group=group)
    pairs = everyone[: world - world % 2]
    latency_s = statistics.median(pairs[:, 0].tolist())
    transfer_s = statistics.median(pairs[:, 1].tolist()) - latency_s
    return LinkProfile(latency_s, PROBE_BYTES / max(transfer_s, 1e-9), peers.nearby is not None)


def _both_ways_seconds(peers: Peers, other: int, numbers: int, count: int) -> float:
    """Seconds in which two ranks have sent each other so many numbers."""
    out = torch.zeros(numbers)

    def exchange() -> object:
        return peers.exchange({other: [out]}, {other: numbers}, out).wait()

    exchange()  # memory is shared when it is first used
    return _repeated(exchange, count)


def _there_and_back_seconds(other: int, group: dist.ProcessGroup | None, count: int) -> float:
    """Seconds in which a large message has gone to the other and another one come back."""
    data = torch.zeros(PROBE_BYTES, dtype=torch.uint8)
    first = dist.get_rank(group) < other

    def there_and_back() -> None:
        for sends in (first, not first):
            if sends:
                dist.send(data, group=group, group_dst=other)
            else:
                dist.recv(data, group=group, group_src=other)

    return _repeated(there_and_back, count)


def _repeated(call: Callable[[], object], count: int) -> float:
    # `timeit` makes the same number of calls on both sides; an adaptive timer would not.
    return Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads()).timeit(count).mean
