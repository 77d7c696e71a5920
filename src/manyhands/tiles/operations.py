"""The way forward through one node of a tile, by its kind."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.tiles.convolving import convolve
from manyhands.tiles.geometry import Box, Interval, Window
from manyhands.tiles.graph import Node
from manyhands.tiles.masks import keep_mask
from manyhands.tiles.norm import local_moments, merged_statistics, running_statistics, uses_batch
from manyhands.tiles.program import call_again
from manyhands.tiles.regions import seen_box
from manyhands.tiles.step import Step
from manyhands.tiles.values import Part

__all__ = ["FORWARD", "merge_moments", "moments_of"]

_SUMS = (operator.add, operator.iadd, "add_")


def _norm(step: Step, number: int) -> None:
    program = step.program
    module = step.module(number)
    assert isinstance(module, nn.BatchNorm2d)
    (source,) = program.graph.nodes[number].inputs
    if number not in step.statistics:
        moments = moments_of(step, number)
        if moments is None:
            step.statistics[number] = running_statistics(module)
        else:
            said = {} if step.peers.alone else step.peers.share(moments).wait()
            merge_moments(step, number, step.peers.in_order(moments, said))
    statistics = step.statistics[number]
    held = step.values[step.group][source].parts
    out = program.norm_acts.get(number, number)
    made = step.framed(out, held[0].data)
    box = program.box[number]
    for part in held:
        shared = part.box.and_(box)
        torch.addcmul(statistics.shift, part.view(shared), statistics.scale, out=made.view(shared))
    if out != number:
        program.acts[out].into(made.data, made.data)
    step.keep(out, made)


def moments_of(step: Step, norm: int) -> Tensor | None:
    """What a batch norm says of the tile's own pixels; None where it goes by its running statistics."""
    module = step.module(norm)
    assert isinstance(module, nn.BatchNorm2d)
    if not uses_batch(module):
        return None
    source = step.program.graph.nodes[norm].inputs[0]
    tensor = step.values[step.group][source].view(step.program.owned(source))
    assert tensor is not None
    return local_moments(tensor)


def merge_moments(step: Step, norm: int | None, moments: list[Tensor]) -> None:
    """The statistics of a batch norm from what all tiles have said, in their order."""
    assert norm is not None
    module = step.module(norm)
    assert isinstance(module, nn.BatchNorm2d)
    counts = [step.batch_size * box.area for box in step.program.regions.owned[norm]]
    step.statistics[norm] = merged_statistics(module, moments, counts)


def _pointwise(step: Step, number: int) -> None:
    node, box = step.program.graph.nodes[number], step.program.box[number]
    if number in step.program.acts:
        _act(step, number)
        return
    inputs = [step.read(source, box) for source in node.inputs]
    operation = step.program.operations[number]
    if operation.op == "call_module" and isinstance(step.module(number), nn.Identity):
        step.keep(number, Part(box, inputs[0]))
    elif operation.target in _SUMS and len(inputs) == 2 and inputs[0].dim() == 4:
        made = step.framed(number, inputs[0])
        torch.add(inputs[0], inputs[1], out=made.view(box))
        step.keep(number, made)
    else:
        _by_autograd(step, number, lambda *tensors: call_again(step.program, number, tensors), inputs)


def _act(step: Step, number: int) -> None:
    program = step.program
    (source,) = program.graph.nodes[number].inputs
    act, box = program.acts[number], program.box[number]
    x = step.read(source, box)
    found = program.regions.groups[step.group]
    # It may stand in the place of its input if nobody else, and no way back, reads that.
    free = len(program.graph.readers(source)) == 1 and program.graph.nodes[source].kind in ("conv", "maxpool")
    if free and source >= found.first and program.extent[number] == box:
        act.into(x, x)
        step.keep(number, Part(box, x))
        return
    if x.dim() != 4:
        step.keep(number, Part(box, torch.empty_like(x)))
        act.into(x, step.read(number, box))
        return
    made = step.framed(number, x)
    act.into(x, made.view(box))
    step.keep(number, made)


def _dropout(step: Step, number: int) -> None:
    node, box = step.program.graph.nodes[number], step.program.box[number]
    module = step.module(number)
    assert isinstance(module, nn.Dropout | nn.Dropout2d)
    x = step.read(node.inputs[0], box)
    if not module.training or not module.p:
        step.saved[number] = None
        step.keep(number, Part(box, x))
        return
    shape, place, width = tuple(x.shape), box, node.sides[1]
    if node.options["whole_maps"]:
        shape, place, width = (*shape[:-2], 1, 1), Box(Interval(0, 1), Interval(0, 1)), 1
    key = (step.seed, step.number, node.name)
    kept = keep_mask(shape, place, module.p, key, device=x.device, width=width)
    factor = kept.to(x.dtype).mul_(0.0 if module.p == 1 else 1 / (1 - module.p))
    step.saved[number] = factor
    if x.dim() != 4:
        step.keep(number, Part(box, x * factor))
        return
    made = step.framed(number, x)
    torch.mul(x, factor, out=made.view(box))
    step.keep(number, made)


def _maxpool(step: Step, number: int) -> None:
    node, box = step.program.graph.nodes[number], step.program.box[number]
    assert node.windows is not None
    (source,) = node.inputs
    seen, padding, pads = _pool_sight(node, box, step.program.graph.nodes[source].sides)
    x = step.read(source, seen)
    x = x.contiguous(memory_format=torch.channels_last) if _scattered(x) else x
    if any(pads):
        x = F.pad(x, pads, value=-torch.inf)
    sizes = [
        list(part) for part in zip(*((w.kernel, w.stride, w.dilation) for w in node.windows), strict=True)
    ]
    shape = (*x.shape[:2], box.rows.size, box.cols.size)
    out = (step.take(shape, x), step.take(shape, _whole_numbers(x)))
    y, places = torch.ops.aten.max_pool2d_with_indices.out(
        x, sizes[0], sizes[1], list(padding), sizes[2], out=out[0], indices=out[1]
    )
    step.saved[number] = (x, places, seen, padding, pads, sizes)
    _keep_framed(step, number, y)


def _avgpool(step: Step, number: int) -> None:
    program = step.program
    node, box = program.graph.nodes[number], program.box[number]
    assert node.windows is not None
    (source,) = node.inputs
    sides = program.graph.nodes[source].sides
    seen = Box(*(w.sees(part) for w, part in zip(node.windows, box, strict=True)))
    x = step.values[step.group][source].whole(seen, step.pool, step.taken[step.group])
    override = node.options["divisor_override"]
    if override is None:
        parts = [
            _divisors(window, part, side, count_pad=node.options["count_include_pad"])
            for window, part, side in zip(node.windows, box, sides, strict=True)
        ]
        divisor = torch.outer(*(torch.tensor(part, dtype=x.dtype, device=x.device) for part in parts))
    else:
        divisor = x.new_full((1, 1), override)
    kernel, stride = ([w.kernel for w in node.windows], [w.stride for w in node.windows])

    def pool(tensor: Tensor) -> Tensor:
        return F.avg_pool2d(tensor, kernel, stride, divisor_override=1) / divisor

    _by_autograd(step, number, pool, [x], seen)


def _divisors(window: Window, outputs: Interval, side: int, *, count_pad: bool) -> list[int]:
    """What sums are divided by along one axis, as torch has it: padding counts, what is beyond it never."""
    found = []
    for place in range(outputs.start, outputs.stop):
        start = place * window.stride - window.padding
        stop = min(start + window.kernel, side + window.padding)
        found.append(stop - start if count_pad else min(stop, side) - max(start, 0))
    return found


def _cat(step: Step, number: int) -> None:
    node, box = step.program.graph.nodes[number], step.program.box[number]
    inputs = [step.read(source, box) for source in node.inputs]
    if node.options["dim"] != 1 or inputs[0].dim() != 4:
        _by_autograd(step, number, lambda *tensors: torch.cat(tensors, node.options["dim"]), inputs)
        return
    made = step.framed(number, inputs[0])
    for tensor, place in zip(
        inputs, torch.split(made.view(box), [t.shape[1] for t in inputs], 1), strict=True
    ):
        place.copy_(tensor)
    step.saved[number] = [t.shape[1] for t in inputs]
    step.keep(number, made)


def _unshuffle(step: Step, number: int) -> None:
    node, box = step.program.graph.nodes[number], step.program.box[number]
    assert node.windows is not None
    (source,) = node.inputs
    seen = seen_box(node, box, step.program.graph.nodes[source].sides)
    x = step.read(source, seen)
    step.saved[number] = seen
    _keep_framed(step, number, F.pixel_unshuffle(x, node.windows[0].kernel))


def _reshape(step: Step, number: int) -> None:
    (source,) = step.program.graph.nodes[number].inputs
    x = step.read(source, step.program.box[number])
    _by_autograd(step, number, lambda *tensors: call_again(step.program, number, tensors), [x])


def _by_autograd(
    step: Step, number: int, call: Callable[..., Tensor], inputs: list[Tensor], seen: Box | None = None
) -> None:
    """An operation without a way back of its own here: torch keeps one, on a graph of this node alone."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        y = call(*leaves)
    step.saved[number] = (leaves, y, seen or step.program.box[number])
    step.keep(number, Part(step.program.box[number], y.detach()))


def _keep_framed(step: Step, number: int, y: Tensor) -> None:
    box = step.program.box[number]
    if step.program.extent[number] == box:
        step.keep(number, Part(box, y))
        return
    made = step.framed(number, y)
    made.view(box).copy_(y)
    step.keep(number, made)


def _pool_sight(node: Node, box: Box, sides: tuple[int, int]) -> tuple[Box, tuple[int, int], list[int]]:
    """What a max-pooling sees, the padding it adds by itself, and what must be added before (by `F.pad`)."""
    assert node.windows is not None
    rows, cols = (w.pads(part, side) for w, part, side in zip(node.windows, box, sides, strict=True))
    alike = all(
        before == after and before <= window.kernel // 2
        for window, (before, after) in zip(node.windows, (rows, cols), strict=True)
    )
    if alike:
        return seen_box(node, box, sides), (rows[0], cols[0]), [0, 0, 0, 0]
    return seen_box(node, box, sides), (0, 0), [*cols, *rows]


def _scattered(x: Tensor) -> bool:
    return not (x.is_contiguous(memory_format=torch.channels_last) or x.is_contiguous())


def _whole_numbers(x: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=x.device)


FORWARD: dict[str, Callable[[Step, int], None]] = {
    "conv": convolve,
    "norm": _norm,
    "pointwise": _pointwise,
    "dropout": _dropout,
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "cat": _cat,
    "unshuffle": _unshuffle,
    "reshape": _reshape,
}
