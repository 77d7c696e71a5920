"""One second of sound as a picture of 49 frames x 40 mel bands, one grey level a decibel.

16 kHz, a Hann window of 40 ms every 20 ms, the power spectrum of 1024 points, 40 triangular filters
evenly spaced on the mel scale (2595 log10(1 + f / 700)) from 20 to 7600 Hz, each scaled to a peak of 1.
A value is 10 log10(power) + 60, rounded, cut to 0..255; samples are fractions of full scale.
"""

from __future__ import annotations

import functools

import numpy as np

from manyhands.data.examples import Array

__all__ = ["BANDS", "FRAMES", "RATE_HZ", "SAMPLES", "log_mel"]

RATE_HZ = 16_000
SAMPLES = 16_000
WINDOW = 640
HOP = 320
FFT = 1024
BANDS = 40
FRAMES = 1 + (SAMPLES - WINDOW) // HOP
LOWEST_HZ, HIGHEST_HZ = 20.0, 7600.0
OFFSET_DB = 60.0


def log_mel(clips: Array) -> Array:
    """int16 [clips, 16000] to uint8 [clips, 49, 40]."""
    samples = clips.astype(np.float32) / 32768
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW, axis=1)[:, ::HOP]
    spectrum = np.fft.rfft(frames * _window(), FFT)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32) @ filters()
    level_db = 10 * np.log10(np.maximum(power, 1e-10)) + OFFSET_DB
    return np.clip(np.rint(level_db), 0, 255).astype(np.uint8)


@functools.cache
def _window() -> Array:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)


@functools.cache
def filters() -> Array:
    """float32 [FFT / 2 + 1, BANDS]."""
    lowest, highest = (2595 * np.log10(1 + hz / 700) for hz in (LOWEST_HZ, HIGHEST_HZ))
    corners_hz = 700 * (10 ** (np.linspace(lowest, highest, BANDS + 2) / 2595) - 1)
    left, centre, right = corners_hz[:-2], corners_hz[1:-1], corners_hz[2:]
    hz = np.arange(FFT // 2 + 1)[:, None] * RATE_HZ / FFT
    rising, falling = (hz - left) / (centre - left), (right - hz) / (right - centre)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
