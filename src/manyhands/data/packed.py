"""Reads pictures that were packed without loss into an ordinary ``.npz``.

CIFAR does not deflate well, so the packed form predicts every pixel from those already known and
codes only what the prediction missed. All pictures are decoded side by side, one *lane* each, which
lets numpy do the work a whole column of lanes at a time. What the file holds (``c`` is 0, 1, 2 for
green, red, blue, the order in which the channels of one pixel are decoded):

- ``state`` uint64 [lanes] and ``words`` uint32: a range asymmetric numeral system (rANS, Duda 2013).
  A lane's state gives the next symbol in its low 15 bits; a lane whose state sinks below 2**31 takes
  the next word of the common stream, in the order of the lanes.
- ``freq<c>`` uint16 [contexts, 256]: how often, out of 2**15, a symbol occurs in a context.
- ``act<c>`` and ``lut<c>``: how busy the surroundings are, as a weighted sum of absolute differences
  (16 to a step), and the context that belongs to each degree of busyness.
- ``wt<c>`` int32 [contexts, features + 1]: the linear prediction in units of 2**-14, the last column
  being the constant term. Pixel = prediction + symbol, modulo 256.
- ``x_sha256``: the digest of the pixels, in the order picture, row, column, red-green-blue.

Surroundings are named as on a map: W is the pixel to the left, N the one above, NW, NE, and WW, NN two
away. On the first row all but WW are W; left of a row stands the first pixel of the row above (128 on
the first row), right of it its last pixel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyhands.data.examples import Array, Progress, silent

__all__ = ["digest", "is_packed", "unpack"]

SIDE = 32
PAD = 2  # cells left and right of a row that stand for pixels outside the picture
PLACE = (1, 0, 2)  # where green, red, blue stand in red-green-blue
SCALE_BITS = 15
LOWEST_STATE = np.uint64(1 << 31)


def is_packed(names: Mapping[str, Any] | list[str]) -> bool:
    """Whether the arrays of an ``.npz`` are the packed form."""
    return "words" in names and "x_sha256" in names


def unpack(arrays: Mapping[str, Array], progress: Progress = silent) -> Array:
    """Decodes the pictures.

    Args:
        arrays: The members of the ``.npz`` that the module's docstring lists.
        progress: Told the rows done, out of 32.

    Returns:
        uint8 [pictures, 3, 32, 32], red, green, blue.

    Raises:
        ValueError: The arrays do not belong together or do not decode.
        KeyError: One is missing.
    """
    pixels = np.empty((len(arrays["state"]), 3, SIDE, SIDE), np.uint8)
    for y, row in enumerate(_rows(arrays)):
        pixels[:, :, y] = row
        progress("unpacking", y + 1, SIDE)
    return pixels


def digest(pixels: Array) -> str:
    """SHA-256 of uint8 [pictures, 3, H, W] in the order of ``x_sha256``."""
    sha = hashlib.sha256()
    for start in range(0, len(pixels), 1000):  # in parts, so that no second copy of all pictures is made
        sha.update(np.ascontiguousarray(pixels[start : start + 1000].transpose(0, 2, 3, 1)).data)
    return sha.hexdigest()


def _rows(arrays: Mapping[str, Array]) -> Iterator[Array]:
    """One row after the other of all pictures, uint8 [pictures, 3, 32]."""
    stream = _Stream(arrays["state"].astype(np.uint64), arrays["words"])
    lanes = len(stream.state)
    channels = [_Channel.of(arrays, c, lanes) for c in range(3)]
    row = np.empty((lanes, 3, SIDE), np.uint8)
    for y in range(SIDE):
        for channel in channels:
            channel.next_row(y)
        for x in range(SIDE):
            for c, channel in enumerate(channels):
                features, activity = _surroundings(channels, c, y, x)
                context = channel.context(activity)
                predicted = channel.predict(context, features)
                channel.put(x, predicted, stream.symbols(channel, context))
        for channel, place in zip(channels, PLACE, strict=True):
            row[:, place] = channel.here[PAD:-PAD].T
        yield row
    if stream.taken != len(stream.words):
        raise ValueError("words are left over after the last pixel")


@dataclass
class _Channel:
    """What is known of one colour channel; rows are int16 [cell, lane]."""

    weights: list[Array]  # one int32 [contexts] per feature, the constant last
    activity: list[int]
    context_of: Array  # busyness -> context
    frequency: Array  # uint64 [contexts * 256]
    below: Array  # uint64 [contexts * 256]: the frequencies of all smaller symbols
    symbol_of: Array  # uint8 [contexts * 2**15]
    here: Array
    above: Array
    above2: Array
    miss_here: Array  # pixel minus prediction, -128..127
    miss_above: Array

    @classmethod
    def of(cls, arrays: Mapping[str, Array], c: int, lanes: int) -> _Channel:
        weights, frequency = arrays[f"wt{c}"].astype(np.int64), arrays[f"freq{c}"].astype(np.int64)
        context_of = arrays[f"lut{c}"].astype(np.intp)
        contexts = len(weights)
        if frequency.shape != (contexts, 256) or (frequency.sum(1) != 1 << SCALE_BITS).any():
            raise ValueError(f"freq{c} is no table of frequencies")
        if context_of.min() < 0 or context_of.max() >= contexts:
            raise ValueError(f"lut{c} names a context that is not there")
        if (abs(weights[:, :-1]).sum(1) * 255 + abs(weights[:, -1])).max() >= 2**30:
            raise ValueError(f"wt{c} is too large")  # the sums below are 32 bits wide
        symbols = np.tile(np.arange(256, dtype=np.uint8), contexts)
        below = np.cumsum(frequency, 1) - frequency
        cells = SIDE + 2 * PAD
        return cls(
            weights=list(np.ascontiguousarray(weights.T.astype(np.int32))),
            activity=[int(a) for a in arrays[f"act{c}"]],
            context_of=context_of,
            frequency=frequency.ravel().astype(np.uint64),
            below=below.ravel().astype(np.uint64),
            symbol_of=np.repeat(symbols, frequency.ravel()),
            here=np.full((cells, lanes), 128, np.int16),
            above=np.full((cells, lanes), 128, np.int16),
            above2=np.full((cells, lanes), 128, np.int16),
            miss_here=np.zeros((cells, lanes), np.int16),
            miss_above=np.zeros((cells, lanes), np.int16),
        )

    def next_row(self, y: int) -> None:
        if y == 0:
            return
        self.above2, self.above, self.here = self.above, self.here, self.above2
        self.miss_above, self.miss_here = self.miss_here, self.miss_above
        self.above[-PAD:] = self.above[-PAD - 1]
        self.here[:PAD] = self.above[PAD]

    def around(self, y: int, x: int) -> tuple[Array, ...]:
        """W, N, NW, NE, WW, NN of pixel x."""
        i = x + PAD
        w, ww = self.here[i - 1], self.here[i - 2]
        if y == 0:
            return w, w, w, w, ww, w
        nn = self.above[i] if y == 1 else self.above2[i]
        return w, self.above[i], self.above[i - 1], self.above[i + 1], ww, nn

    def misses(self, x: int) -> list[Array]:
        """How far the predictions at W, N, NW, NE were off."""
        i = x + PAD
        return [self.miss_here[i - 1], self.miss_above[i], self.miss_above[i - 1], self.miss_above[i + 1]]

    def context(self, terms: list[Array]) -> Array:
        busy = np.zeros(len(terms[0]), np.int32)
        for weight, term in zip(self.activity, terms, strict=True):
            busy += np.abs(term) * np.int32(weight)
        busy >>= 4
        return self.context_of.take(busy, mode="clip")

    def predict(self, context: Array, features: list[Array]) -> Array:
        total = self.weights[-1].take(context)
        total += 1 << 13  # rounds the shift below to the nearest
        for weight, feature in zip(self.weights[:-1], features, strict=True):
            total += weight.take(context) * feature
        total >>= 14
        return np.clip(total, 0, 255, out=total).astype(np.int16)

    def put(self, x: int, predicted: Array, symbol: Array) -> None:
        value = predicted + symbol
        value &= 255
        self.here[x + PAD] = value
        self.miss_here[x + PAD] = ((value - predicted + 128) & 255) - 128


@dataclass
class _Stream:
    """The coded symbols of all lanes."""

    state: Array
    words: Array
    taken: int = field(default=0)

    def symbols(self, channel: _Channel, context: Array) -> Array:
        """The next symbol of every lane, as int16."""
        slot = self.state & np.uint64((1 << SCALE_BITS) - 1)
        symbol = channel.symbol_of.take((context << SCALE_BITS) + slot.astype(np.intp)).astype(np.int16)
        entry = (context << 8) + symbol
        self.state >>= np.uint64(SCALE_BITS)
        self.state *= channel.frequency.take(entry)
        self.state += slot
        self.state -= channel.below.take(entry)
        hungry = np.flatnonzero(self.state < LOWEST_STATE)
        food = self.words[self.taken : self.taken + len(hungry)]
        if len(food) < len(hungry):
            raise ValueError("the coded stream ends too soon")
        self.state[hungry] = self.state[hungry] << np.uint64(32) | food
        self.taken += len(hungry)
        return symbol


def _surroundings(channels: list[_Channel], c: int, y: int, x: int) -> tuple[list[Array], list[Array]]:
    """The features of the prediction and the terms of the busyness, for channel c of pixel x."""
    own = channels[c].around(y, x)
    w, n, nw, ne, ww, nn = own
    misses = channels[c].misses(x)
    if c == 0:
        return list(own), [w - nw, n - nw, n - ne, w - ww, n - nn, *misses]
    i = x + PAD
    green = channels[0]
    beside = green.around(y, x)
    tint = [a - b for a, b in zip(own[:4], beside[:4], strict=True)]  # differs little from pixel to pixel
    activity = [tint[0] - tint[2], tint[1] - tint[2], tint[1] - tint[3], green.miss_here[i]]
    if c == 1:
        return [*own, green.here[i], *beside], activity + misses
    red = channels[1]
    beside_red = red.around(y, x)[:4]
    tint = [a - b for a, b in zip(own[:3], beside_red[:3], strict=True)]
    activity += [tint[0] - tint[2], tint[1] - tint[2], red.miss_here[i]]
    return [*own, green.here[i], *beside[:4], red.here[i], *beside_red], activity + misses
