"""Gradients of weights, summed over the tiles while the way back goes on.

A large gradient is on its way as soon as it is known, small ones travel together at the end. `finish` waits
for them and adds them to the parameters' own. Under `holding` they are only added up here, for the next
backward pass that is not: several passes, one exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from manyhands.tiles.nearby import SUMS, Nearby, lost
from manyhands.tiles.peers import Peers, sum_in_order

__all__ = ["Reducer"]

SMALL = 16384
"""Gradients of fewer numbers wait for company."""


@dataclass
class _Flight:
    """A message with gradients of some parameters, one after the other."""

    parameters: list[nn.Parameter]
    flat: Tensor
    works: list[dist.Work]
    parts: list[Tensor] | None = None
    total: Tensor | None = None


class Reducer:
    """Sums gradients over the tiles; the order of calls must be the same everywhere.

    Args:
        peers: The tiles.
        wire_dtype: The type in which gradients travel, if not their own. What everybody adds up are the
            rounded ones, so that all still have the same.
    """

    def __init__(self, peers: Peers, wire_dtype: torch.dtype | None) -> None:
        self.peers = peers
        self.wire_dtype = wire_dtype
        self.held: dict[nn.Parameter, Tensor] = {}
        self.is_holding = False
        self._summed: list[tuple[nn.Parameter, Tensor]] = []
        self._small: list[tuple[nn.Parameter, Tensor]] = []
        self._flights: list[_Flight] = []
        self._is_waiting = False

    @property
    def unfinished(self) -> bool:
        """Whether there are gradients that no parameter has yet."""
        return self._is_waiting

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within, gradients are added up here and not sent."""
        before, self.is_holding = self.is_holding, True
        try:
            yield
        finally:
            self.is_holding = before

    def add(self, parameter: nn.Parameter, gradient: Tensor, *, summed: bool = False) -> None:
        """Takes a tile's part in a gradient, or with `summed` the whole, the same everywhere."""
        if summed or self.peers.alone:
            self._summed.append((parameter, gradient))
            return
        if parameter in self.held:
            gradient = self.held.pop(parameter).add_(gradient)
        if self.is_holding:
            self.held[parameter] = gradient.clone() if gradient._is_view() else gradient
        elif gradient.numel() < SMALL:
            self._small.append((parameter, gradient))
        else:
            self._launch([(parameter, gradient)])
            self._land_early()

    def flush(self) -> None:
        """Sends what was waiting for company; called at the end of a pass that is not held."""
        self._is_waiting = True
        small, self._small = self._small, []
        if small:
            self._launch(small)

    def finish(self) -> None:
        """Waits for all sums and adds them to the parameters' gradients."""
        self.flush()
        summed, self._summed = self._summed, []
        for parameter, gradient in summed:
            _accumulate(parameter, gradient.view_as(parameter))
        self._is_waiting = False
        flights, self._flights = self._flights, []
        for flight in flights:
            flat = self._landed(flight)
            start = 0
            for parameter in flight.parameters:
                size = parameter.numel()
                _accumulate(
                    parameter,
                    flat[start : start + size].as_strided(
                        parameter.shape, _strides(parameter), flat.storage_offset() + start
                    ),
                )
                start += size

    def forget(self) -> None:
        """Drops everything, after a pass that failed."""
        self.held.clear()
        self._summed, self._small, self._flights = [], [], []
        self._is_waiting = False

    def _launch(self, gradients: list[tuple[nn.Parameter, Tensor]]) -> None:
        flat = (
            torch.cat([_flat(parameter, gradient) for parameter, gradient in gradients])
            if len(gradients) > 1
            else _flat(*gradients[0])
        )
        parameters = [parameter for parameter, _ in gradients]
        if self.peers.nearby is not None:
            flat = flat if self.wire_dtype is None else flat.to(self.wire_dtype)
            self.peers.nearby.send(SUMS, self.peers.others, [flat])
            self._flights.append(_Flight(parameters, flat, []))
            return
        if self.wire_dtype is None or self.wire_dtype == flat.dtype:
            self._flights.append(
                _Flight(
                    parameters, flat, [_started(dist.all_reduce(flat, group=self.peers.group, async_op=True))]
                )
            )
            return
        mine = flat.to(self.wire_dtype)
        parts = [torch.empty_like(mine) for _ in self.peers.devices]
        work = dist.all_gather(parts, mine, group=self.peers.group, async_op=True)
        self._flights.append(_Flight(parameters, mine, [_started(work)], parts))

    def _land_early(self) -> None:
        """Adds up what has come by now, so that its memory is free again; only the rest is waited for."""
        nearby, others = self.peers.nearby, self.peers.others
        if nearby is None:
            return
        for flight in self._flights:
            if flight.total is None:
                if not nearby.has(SUMS, others):
                    return
                flight.total = self._added_up(nearby, flight)

    def _added_up(self, nearby: Nearby, flight: _Flight) -> Tensor:
        letters = {tile: nearby.receive(SUMS, tile) for tile in self.peers.others}
        flat, dtype = flight.flat, flight.parameters[0].dtype
        parts = self.peers.in_order(flat, {tile: letter.read(flat) for tile, letter in letters.items()})
        if len(parts) == 2 and flat.dtype == dtype:
            total = torch.add(*parts, out=flat)  # of two, either order gives the same bits
        else:
            total = sum_in_order([part.to(dtype) for part in parts])
        for letter in letters.values():
            letter.done()
        return total

    def _landed(self, flight: _Flight) -> Tensor:
        if self.peers.nearby is not None:
            return flight.total if flight.total is not None else self._added_up(self.peers.nearby, flight)
        for work in flight.works:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost("a tile", error) from error
        if flight.parts is None:
            return flight.flat
        dtype = flight.parameters[0].dtype
        return sum_in_order([part.to(dtype) for part in flight.parts])


def _flat(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """A gradient as a line of numbers in the order in which the parameter's lie in memory."""
    if gradient.stride() != _strides(parameter) or gradient.storage_offset():
        gradient = torch.empty_strided(
            parameter.shape, _strides(parameter), dtype=gradient.dtype, device=gradient.device
        ).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))


def _strides(parameter: nn.Parameter) -> tuple[int, ...]:
    """The parameter's own strides, if its numbers lie side by side; else those of a plain tensor."""
    dense = parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
    )
    return parameter.stride() if dense else torch.empty(parameter.shape, device="meta").stride()


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work
