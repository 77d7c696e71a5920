"""The way back through a group of nodes, for one tile.

A tile begins with the gradient of what it owns and goes back through all that it computed. Pixels that
several tiles computed so have parts of their gradient in several places; at the beginning of the group these
go home to the owner of the pixel, who adds them up. Gradients of weights are put off until a message is
waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.tiles.forward import forward_group
from manyhands.tiles.geometry import Box
from manyhands.tiles.norm import gradient_sums, through_statistics
from manyhands.tiles.peers import sum_in_order
from manyhands.tiles.step import Step
from manyhands.tiles.values import Gradient, Part, unpacked

__all__ = ["backward_group"]

_aten: Any = torch.ops.aten


def backward_group(step: Step, group: int, *, again: bool) -> None:
    """Goes back through one group; `again` if what it made was not kept and must be computed once more."""
    step.group = group
    if again:
        forward_group(step, group, again=True)
    program = step.program
    found = program.regions.groups[group]
    step.inside = {}
    for number in reversed(range(found.first, found.stop)):
        if number in program.norm_acts:
            continue
        if not step.wanted[number]:
            step.gradients.pop(number, None)
            continue
        step.at(number)
        norm = program.norms_of.get(number, number)
        if program.graph.nodes[norm].kind == "norm":
            _norm(step, norm, number)
        else:
            BACKWARD[program.graph.nodes[number].kind](step, number, step.gradient(number))
        step.values[group].pop(number, None)  # whoever reads it came before, on this way
    step.at(None)
    if program.first_norms[group] is None:
        _export(step, group)
    step.values[group] = {}
    step.done(group)


def _export(step: Step, group: int) -> None:
    """Sends the gradients of pixels that others own home, and adds what comes from others to the own ones."""
    program = step.program
    found = program.regions.groups[group]
    wanted = {node for node in found.imports if node and step.wanted[node]}
    outgoing: dict[int, list[Tensor]] = {}
    for tile, pieces in program.receives[group].items():
        outgoing[tile] = [step.inside_view(node, box) for node, box in pieces if node in wanted]
    sizes: dict[int, list[tuple[int, Box]]] = {
        tile: [(node, box) for node, box in pieces if node in wanted]
        for tile, pieces in program.sends[group].items()
    }
    pending = None
    if any(outgoing.values()) or any(sizes.values()):
        pending = step.peers.exchange(
            outgoing,
            {tile: sum(step.size(n, box) for n, box in pieces) for tile, pieces in sizes.items()},
            step.like,
        )
    for node, gradient in step.inside.items():
        if node == 0:
            step.contribute(0, gradient.part, ours=gradient.ours)
            continue
        mine = program.owned(node).and_(gradient.part.box)
        if mine.area:
            step.contribute(node, Part(mine, gradient.part.view(mine)), ours=gradient.ours)
    step.inside = {}
    if pending is None:
        return
    step.catch_up()
    received = pending.wait()
    for tile in sorted(received):
        shapes = [step.shape(node, box) for node, box in sizes[tile]]
        for (node, box), tensor in zip(sizes[tile], unpacked(received[tile], shapes), strict=True):
            step.contribute(node, Part(box, tensor), ours=False)


def _conv(step: Step, number: int, gradient: Gradient) -> None:
    node = step.program.graph.nodes[number]
    module = step.module(number)
    assert isinstance(module, nn.Conv2d)
    (source,) = node.inputs
    x, sight, padding = step.saved.pop(number)
    g = gradient.part.data

    def back(*, inputs: bool, weight: bool, bias: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        sizes = None if module.bias is None else [module.out_channels]
        result: tuple[Tensor | None, Tensor | None, Tensor | None] = _aten.convolution_backward(
            g, x, module.weight, sizes, module.stride, padding, module.dilation, False, [0, 0], module.groups,
            [inputs, weight, bias],
        )  # fmt: skip
        return result

    if step.wanted[source]:
        dx, _, _ = back(inputs=True, weight=False, bias=False)
        assert dx is not None
        step.hand_back(source, Part(sight, dx), ours=True)
    weight = module.weight.requires_grad
    bias = module.bias is not None and module.bias.requires_grad

    def weights() -> None:
        _, dw, db = back(inputs=False, weight=weight, bias=bias)
        if dw is not None:
            step.reducer.add(cast(nn.Parameter, module.weight), dw)
        if db is not None:
            assert module.bias is not None
            step.reducer.add(cast(nn.Parameter, module.bias), db)
        if gradient.pooled is not None:
            step.pool.give(gradient.pooled)

    if weight or bias:
        step.later(weights)


def _norm(step: Step, number: int, out: int) -> None:
    """Batch norm, with the activation after it (`out`) if they were computed together."""
    program = step.program
    gradient = step.gradient(out)
    (source,) = program.graph.nodes[number].inputs
    statistics = step.statistics[number]
    parts = step.values[step.group][source].parts
    box = program.box[number]
    held = [Part(shared, part.view(shared)) for part in parts if (shared := part.box.and_(box)).area]
    slopes = [_slope(step, number, out, gradient, part) for part in held]
    if gradient.pooled is not None and all(slope.pooled is not gradient.pooled for slope in slopes):
        step.pool.give(gradient.pooled)
    del gradient
    sums = sum_in_order(
        [gradient_sums(s.part.data, p.data, statistics) for s, p in zip(slopes, held, strict=True)]
    )
    first = program.first_norms[step.group] == number
    if first:
        sums, total = _first_norm_home(step, number, source, [slope.part for slope in slopes], sums)
    else:
        total = _shared_sums(step, sums) if statistics.count else sums
    _norm_weights(step, number, sums, total)
    own = program.owned(source)
    for each, part in zip(slopes, held, strict=True):
        slope, pooled = each.part, each.pooled
        if not step.wanted[source]:
            continue
        if first and not slope.box.inside(own):
            if pooled is not None:
                step.pool.give(pooled)
            continue
        mine = slope.box.and_(own)
        if statistics.count and mine == slope.box:
            factor, constant = through_statistics(statistics, total)
            torch.addcmul(constant, slope.data, statistics.scale, out=slope.data)
            slope.data.addcmul_(part.data, factor)
        else:
            slope.data.mul_(statistics.scale)
            if statistics.count and mine.area:
                factor, constant = through_statistics(statistics, total)
                slope.view(mine).addcmul_(part.view(mine), factor).add_(constant)
        if first:
            step.contribute(source, slope, ours=True, pooled=pooled)
        else:
            step.hand_back(source, slope, ours=True, pooled=pooled)


def _slope(step: Step, number: int, out: int, gradient: Gradient, part: Part) -> Gradient:
    """The gradient of what the batch norm put out, for one part of its input; in place if that can be."""
    given = gradient.part.view(part.box)
    if gradient.ours and gradient.part.box == part.box:
        made = Gradient(gradient.part, ours=True, pooled=gradient.pooled)
    else:
        fresh = step.pool.take(tuple(part.data.shape), part.data)
        made = Gradient(Part(part.box, fresh), ours=True, pooled=fresh)
    if out != number:
        y = step.values[step.group][out].view(part.box)
        assert y is not None
        step.program.acts[out].back(given, y, made.part.data)
    elif made.part is not gradient.part:
        made.part.data.copy_(given)
    return made


def _shared_sums(step: Step, sums: Tensor) -> Tensor:
    if step.peers.alone:
        return sums
    pending = step.peers.share(sums)
    step.catch_up()
    return sum_in_order(step.peers.in_order(sums, pending.wait()))


def _first_norm_home(
    step: Step, number: int, source: int, slopes: list[Part], sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums over all tiles, and gradients of borders home to their owners, in one message each."""
    program = step.program
    group = step.group
    of_batch = bool(step.statistics[number].count)
    wanted = step.wanted[source]
    if step.peers.alone:
        return sums, sums
    extra = [sums] if of_batch else []
    outgoing: dict[int, list[Tensor]] = {tile: [] for tile in step.peers.others} if of_batch else {}
    sizes: dict[int, int] = dict.fromkeys(outgoing, sums.numel())
    if wanted:
        for tile, pieces in program.receives[group].items():
            boxes = [box for _, box in pieces]
            found = [next(s for s in slopes if box == s.box).data for box in boxes]
            outgoing.setdefault(tile, []).extend(found)
        for tile, pieces in program.sends[group].items():
            sizes[tile] = sizes.get(tile, 0) + sum(step.size(node, box) for node, box in pieces)
    messages = {tile: [*tensors, *extra] for tile, tensors in outgoing.items()}
    pending = step.peers.exchange(messages, sizes, sums)
    step.catch_up()
    received = pending.wait()
    own = next(s for s in slopes if s.box.inside(program.owned(source)))
    for tile, pieces in program.sends[group].items() if wanted else ():
        tensors = unpacked(received[tile], [step.shape(node, box) for node, box in pieces])
        for (_, box), tensor in zip(pieces, tensors, strict=True):
            own.view(box).add_(tensor)
    if not of_batch:
        return sums, sums
    tails = {tile: received[tile][-sums.numel() :] for tile in step.peers.others}
    return sums, sum_in_order(step.peers.in_order(sums, tails))


def _norm_weights(step: Step, number: int, local: Tensor, total: Tensor) -> None:
    module = step.module(number)
    assert isinstance(module, nn.BatchNorm2d)
    summed = bool(step.statistics[number].count)
    by_x, plain = (total if summed else local).chunk(2)
    for parameter, found in ((module.weight, by_x), (module.bias, plain)):
        if parameter is not None and parameter.requires_grad:
            if summed:
                step.reducer.add(parameter, found, summed=True)
            else:  # in line with the convolutions', since all ranks must send in the same order
                step.later(partial(step.reducer.add, parameter, found))


def _pointwise(step: Step, number: int, gradient: Gradient) -> None:
    program = step.program
    node = program.graph.nodes[number]
    act, box = program.acts.get(number), program.box[number]
    if act is not None:
        y = step.values[step.group][number].view(box)
        assert y is not None
        g = gradient.part.data
        if gradient.ours:
            act.back(g, y, g)
            step.hand_back(node.inputs[0], Part(box, g), ours=True, pooled=gradient.pooled)
            return
        made = torch.empty_like(y)
        act.back(g, y, made)
        step.hand_back(node.inputs[0], Part(box, made), ours=True)
    elif number in step.saved:
        _by_autograd(step, number, gradient)
    else:
        alone = len(node.inputs) == 1
        for source in node.inputs:
            step.hand_back(source, gradient.part, ours=alone and gradient.ours)


def _dropout(step: Step, number: int, gradient: Gradient) -> None:
    (source,) = step.program.graph.nodes[number].inputs
    factor = step.saved.pop(number)
    g = gradient.part.data
    if factor is not None:
        g = g.mul_(factor) if gradient.ours else g * factor
    ours = gradient.ours or factor is not None
    step.hand_back(source, Part(gradient.part.box, g), ours=ours, pooled=gradient.pooled)


def _maxpool(step: Step, number: int, gradient: Gradient) -> None:
    (source,) = step.program.graph.nodes[number].inputs
    x, places, seen, padding, pads, (kernel, stride, dilation) = step.saved.pop(number)
    g = gradient.part.data
    if places.stride() != g.stride():
        g = torch.empty_like(places, dtype=g.dtype).copy_(g)
    if any(pads):
        dx = _aten.max_pool2d_with_indices_backward(
            g, x, kernel, stride, list(padding), dilation, False, places
        )
        dx = dx[:, :, pads[2] : dx.shape[2] - pads[3], pads[0] : dx.shape[3] - pads[1]]
        step.hand_back(source, Part(seen, dx), ours=True)
        return
    dx = step.pool.take(tuple(x.shape), x)
    _aten.max_pool2d_with_indices_backward.grad_input(
        g, x, kernel, stride, list(padding), dilation, False, places, grad_input=dx
    )
    if gradient.pooled is not None:
        step.pool.give(gradient.pooled)
    step.hand_back(source, Part(seen, dx), ours=True, pooled=dx)


def _cat(step: Step, number: int, gradient: Gradient) -> None:
    node = step.program.graph.nodes[number]
    if node.options["dim"] != 1 or gradient.part.data.dim() != 4:
        _by_autograd(step, number, gradient)
        return
    pieces = torch.split(gradient.part.data, step.saved.pop(number), 1)
    for source, piece in zip(node.inputs, pieces, strict=True):
        step.hand_back(source, Part(gradient.part.box, piece), ours=gradient.ours)


def _unshuffle(step: Step, number: int, gradient: Gradient) -> None:
    node = step.program.graph.nodes[number]
    assert node.windows is not None
    dx = F.pixel_shuffle(gradient.part.data, node.windows[0].kernel)
    step.hand_back(node.inputs[0], Part(step.saved.pop(number), dx), ours=True)


def _by_autograd(step: Step, number: int, gradient: Gradient) -> None:
    leaves, y, seen = step.saved.pop(number)
    slopes = torch.autograd.grad(y, leaves, gradient.part.data)
    for source, slope in zip(step.program.graph.nodes[number].inputs, slopes, strict=True):
        step.hand_back(source, Part(seen, slope), ours=False)


BACKWARD: dict[str, Callable[[Step, int, Gradient], None]] = {
    "conv": _conv,
    "pointwise": _pointwise,
    "dropout": _dropout,
    "maxpool": _maxpool,
    "avgpool": _by_autograd,
    "cat": _cat,
    "unshuffle": _unshuffle,
    "reshape": _by_autograd,
}
