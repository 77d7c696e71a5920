"""Packs pictures as `manyhands.data.packed` unpacks them, slowly, so that tests need no large file."""

from __future__ import annotations

import hashlib

import numpy as np

from manyhands.data import packed


def pack(pixels, contexts=3, seed=0):
    """uint8 [n, 3, 32, 32] -> the arrays of a packed .npz, with made-up weights and contexts."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for c, (features, terms) in enumerate(((6, 9), (13, 8), (16, 11))):
        weights = rng.integers(-3000, 3000, (contexts, features + 1))
        weights[:, 0] += 16384
        arrays[f"wt{c}"] = weights.astype(np.int32)
        arrays[f"act{c}"] = rng.integers(-5, 40, terms).astype(np.int32)
        arrays[f"lut{c}"] = np.sort(rng.integers(0, contexts, 64)).astype(np.uint8)
        frequency = rng.integers(1, 200, (contexts, 256))
        frequency[:, 0] += (1 << 15) - frequency.sum(1)
        arrays[f"freq{c}"] = frequency.astype(np.uint16)
    steps = _symbols(pixels, arrays)
    arrays["state"], arrays["words"] = _encode(steps, arrays, len(pixels))
    picture_order = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    arrays["x_sha256"] = np.array(hashlib.sha256(picture_order.tobytes()).hexdigest())
    return arrays


def _symbols(pixels, arrays):
    """Channel, context and symbol of every step, all lanes at once."""
    lanes = len(pixels)
    channels = [packed._Channel.of(arrays, c, lanes) for c in range(3)]
    steps = []
    for y in range(32):
        for channel in channels:
            channel.next_row(y)
        for x in range(32):
            for c, channel in enumerate(channels):
                features, activity = packed._surroundings(channels, c, y, x)
                context = channel.context(activity)
                predicted = channel.predict(context, features)
                symbol = (pixels[:, packed.PLACE[c], y, x].astype(np.int16) - predicted) & 255
                channel.put(x, predicted, symbol)
                steps.append((c, context, symbol))
    return steps


def _encode(steps, arrays, lanes):
    frequency = [arrays[f"freq{c}"].astype(int).tolist() for c in range(3)]
    below = [(np.cumsum(f, 1) - f).tolist() for f in (np.array(g) for g in frequency)]
    state, words = [1 << 31] * lanes, []
    for c, context, symbol in reversed(steps):
        for lane in reversed(range(lanes)):
            k, s = int(context[lane]), int(symbol[lane])
            f = frequency[c][k][s]
            if state[lane] >= f << 48:  # would grow beyond 64 bits
                words.append(state[lane] & 0xFFFFFFFF)
                state[lane] >>= 32
            state[lane] = (state[lane] // f << 15) + below[c][k][s] + state[lane] % f
    return np.array(state, np.uint64), np.array(words[::-1], np.uint32)
