"""The way forward through a group of nodes, for one tile."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.tiles.early import Early
from manyhands.tiles.geometry import Box, Interval, Window
from manyhands.tiles.graph import Node
from manyhands.tiles.masks import keep_mask
from manyhands.tiles.norm import local_moments, merged_statistics, running_statistics, uses_batch
from manyhands.tiles.peers import Pending
from manyhands.tiles.program import call_again
from manyhands.tiles.regions import conv_sight, seen_box
from manyhands.tiles.step import Step
from manyhands.tiles.values import Part, Value, unpacked

__all__ = ["forward_group"]

_SUMS = (operator.add, operator.iadd, "add_")


def forward_group(step: Step, group: int, *, again: bool = False) -> None:
    """Computes one group. `again`: from what was kept of the first time, without a message."""
    step.group = group
    found = step.program.regions.groups[group]
    first = found.first
    if not again and _import(step, group):
        first += 1
    for number in range(first, found.stop):
        if number not in step.program.norms_of:
            step.at(number)
            FORWARD[step.program.graph.nodes[number].kind](step, number)
    step.at(None)
    for number in found.exports:
        step.exports[number] = step.values[group][number]


def _import(step: Step, group: int) -> bool:
    """Puts together what the group reads: the tile's own part, and what its neighbours send of theirs.

    Over a network, what of the first convolution needs nothing of theirs is computed meanwhile; True if so.
    """
    program = step.program
    found = program.regions.groups[group]
    share = found.shares[program.tile]
    values = step.values[group]
    for node in found.imports:
        if node == 0:
            values[0] = step.exports[0]
            continue
        mine = program.owned(node).and_(share.needed[node])
        tensor = step.exports[node].view(program.owned(node))
        assert tensor is not None
        values[node] = Value([Part(mine, Part(program.owned(node), tensor).view(mine))] if mine.area else [])
    norm = program.first_norms[group]
    moments = _moments(step, norm) if norm is not None else None
    pending = _send(step, group, moments)
    if pending is None:
        if moments is not None:
            _merge(step, norm, [moments])
        return False
    early = program.early[group] if step.peers.far else None
    begun = _begin_conv(step, found.first, early) if early else None
    received = pending.wait()
    if moments is not None:
        tails = {tile: flat[-moments.numel() :] for tile, flat in received.items()}
        _merge(step, norm, step.peers.in_order(moments, tails))
    for tile, pieces in program.receives[group].items():
        shapes = [step.shape(node, box) for node, box in pieces]
        for (node, box), tensor in zip(pieces, unpacked(received[tile], shapes), strict=True):
            values[node].parts.append(Part(box, tensor))
    if early and begun:
        _finish_conv(step, found.first, early, begun)
    return begun is not None


def _send(step: Step, group: int, moments: Tensor | None) -> Pending | None:
    """Posts one message to each tile that needs something of this one, a batch norm's sums packed with it."""
    program = step.program
    sends, receives = program.sends[group], program.receives[group]
    if step.peers.alone or not (sends or receives or moments is not None):
        return None
    extra = [] if moments is None else [moments]
    targets = step.peers.others if moments is not None else tuple(sends)
    outgoing = {}
    for tile in targets:
        pieces = []
        for node, box in sends.get(tile, ()):
            tensor = step.exports[node].view(box)
            assert tensor is not None
            pieces.append(tensor)
        outgoing[tile] = [*pieces, *extra]
    sizes = {}
    for tile in step.peers.others if moments is not None else tuple(receives):
        pixels = sum(step.size(node, box) for node, box in receives.get(tile, ()))
        sizes[tile] = pixels + sum(t.numel() for t in extra)
    return step.peers.exchange(outgoing, sizes, step.like)


def _moments(step: Step, norm: int) -> Tensor | None:
    module = step.module(norm)
    assert isinstance(module, nn.BatchNorm2d)
    if not uses_batch(module):
        return None
    source = step.program.graph.nodes[norm].inputs[0]
    tensor = step.values[step.group][source].view(step.program.owned(source))
    assert tensor is not None
    return local_moments(tensor)


def _merge(step: Step, norm: int | None, moments: list[Tensor]) -> None:
    assert norm is not None
    module = step.module(norm)
    assert isinstance(module, nn.BatchNorm2d)
    counts = [step.batch_size * box.area for box in step.program.regions.owned[norm]]
    step.statistics[norm] = merged_statistics(module, moments, counts)


def _conv(step: Step, number: int) -> None:
    node = step.program.graph.nodes[number]
    module = step.module(number)
    assert isinstance(module, nn.Conv2d)
    (source,) = node.inputs
    sight, padding = conv_sight(node, step.program.box[number], step.program.graph.nodes[source].sides)
    x = step.read(source, sight)
    y = torch.conv2d(x, module.weight, module.bias, module.stride, padding, module.dilation, module.groups)
    step.saved[number] = (x, sight, padding)
    step.keep(number, Part(step.program.box[number], y))


def _begin_conv(step: Step, number: int, early: Early) -> tuple[Part, Part]:
    """What a convolution is handed, with its borders still to come, and its output as far as it goes."""
    node = step.program.graph.nodes[number]
    (own,) = step.values[step.group][node.inputs[0]].parts
    box = step.program.box[number]
    x = Part(early.sight, step.take((step.batch_size, *own.data.shape[1:2], *early.sight.sides), own.data))
    for frame in early.frame:
        x.view(frame).zero_()
    x.view(own.box.and_(x.box)).copy_(own.view(own.box.and_(x.box)))
    y = Part(box, step.take((step.batch_size, node.channels, *box.sides), own.data))
    _conv_into(step, number, x, y, early.inner)
    return x, y


def _finish_conv(step: Step, number: int, early: Early, begun: tuple[Part, Part]) -> None:
    """The rest of it, when its borders are there."""
    x, y = begun
    (source,) = step.program.graph.nodes[number].inputs
    for part in step.values[step.group][source].parts[1:]:
        shared = part.box.and_(x.box)
        x.view(shared).copy_(part.view(shared))
    for strip in early.strips:
        _conv_into(step, number, x, y, strip)
    step.saved[number] = (x.data, x.box, early.padding)
    step.keep(number, y)


def _conv_into(step: Step, number: int, x: Part, y: Part, box: Box) -> None:
    module = step.module(number)
    assert isinstance(module, nn.Conv2d)
    node = step.program.graph.nodes[number]
    sight, padding = conv_sight(node, box, step.program.graph.nodes[node.inputs[0]].sides)
    found = torch.conv2d(
        x.view(sight), module.weight, module.bias, module.stride, padding, module.dilation, module.groups
    )
    y.view(box).copy_(found)


def _norm(step: Step, number: int) -> None:
    program = step.program
    module = step.module(number)
    assert isinstance(module, nn.BatchNorm2d)
    (source,) = program.graph.nodes[number].inputs
    if number not in step.statistics:
        moments = _moments(step, number)
        if moments is None:
            step.statistics[number] = running_statistics(module)
        else:
            said = {} if step.peers.alone else step.peers.share(moments).wait()
            _merge(step, number, step.peers.in_order(moments, said))
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
    "conv": _conv,
    "norm": _norm,
    "pointwise": _pointwise,
    "dropout": _dropout,
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "cat": _cat,
    "unshuffle": _unshuffle,
    "reshape": _reshape,
}
