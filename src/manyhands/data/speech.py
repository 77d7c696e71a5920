"""Speech Commands: a folder (or the published archive) of one-second WAVs, one sub-folder a word.

Each clip becomes a log-mel picture (`logmel`). No speaker is in both training and test: the test set is
what ``testing_list.txt`` names, and where that file is missing, what the rule that made it says: a hash
of the speaker's id between 10 and 20 %. The clips of ``validation_list.txt`` are trained on, because every
device keeps validation data of its own.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import wave
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from manyhands.data import cache
from manyhands.data.arrays import read_npz
from manyhands.data.examples import Array, Dataset, Examples, Progress, damaged, make_dataset
from manyhands.data.logmel import BANDS, FRAMES, RATE_HZ, SAMPLES, log_mel
from manyhands.errors import JobError

__all__ = ["read_speech", "speaker_percentile"]

TEST_LIST = "testing_list.txt"
CLIPS_AT_ONCE = 128
HASH_STEPS = 2**27 - 1


def read_speech(place: Path, words: Sequence[str] | None, progress: Progress) -> Dataset:
    """Reads a folder of words, the published ``.tar.gz`` or an ``.npz`` of pictures.

    Args:
        place: Which of them.
        words: The words to tell apart, in the order of their labels; None: all there are.
        progress: Told the clips read.
    """
    if place.suffix == ".npz":
        return _only(read_npz(place, place.stem), words, place)
    files = sorted(place.glob("*/*.wav")) if place.is_dir() else [place]
    lists = [file for file in [place / TEST_LIST] if file.is_file()]
    key = f"speech-1-{cache.fingerprint([*files, *lists], words)}"
    kept = cache.remembered(key, lambda: _pictures(place, files, words, progress))
    names, x = kept["names"], kept["x"]
    found = sorted({str(name).split("/")[0] for name in names})
    classes = _known(words, found, place)
    label_of = {word: label for label, word in enumerate(classes)}
    y = np.array([label_of[str(name).split("/")[0]] for name in names], np.int64)
    test = kept["test"]
    parts = x[~test][:, None], y[~test], x[test][:, None], y[test]
    return make_dataset("speech_commands", parts, classes, place)


def speaker_percentile(clip: str) -> float:
    """Where a clip's speaker stands between 0 and 100, by the data set's own rule."""
    speaker = PurePosixPath(clip).name.partition("_nohash_")[0]
    number = int(hashlib.sha1(speaker.encode(), usedforsecurity=False).hexdigest(), 16)
    return (number % (HASH_STEPS + 1)) * (100.0 / HASH_STEPS)


def _pictures(
    place: Path, files: list[Path], words: Sequence[str] | None, progress: Progress
) -> dict[str, Array]:
    """Names, pictures and whether they are for testing, of all clips, in order of name."""
    names: list[str] = []
    blocks: list[Array] = []
    clips: list[Array] = []
    listed: set[str] | None = None
    total = len(files) if place.is_dir() else None
    for name, data in _members(place, files):
        if name == TEST_LIST:
            listed = set(data.decode("utf-8", "replace").split())
            continue
        word = name.split("/")[0]
        if word.startswith(("_", ".")) or (words is not None and word not in words):
            continue  # _background_noise_ is no word
        clips.append(_samples(name, data, place))
        names.append(name)
        if len(clips) == CLIPS_AT_ONCE:
            blocks.append(log_mel(np.stack(clips)))
            clips.clear()
            progress("reading speech_commands", len(names), total)
    if clips:
        blocks.append(log_mel(np.stack(clips)))
    progress("reading speech_commands", len(names), len(names))
    x = np.concatenate(blocks) if blocks else np.empty((0, FRAMES, BANDS), np.uint8)
    test = [name in listed if listed is not None else 10 <= speaker_percentile(name) < 20 for name in names]
    order = np.argsort(np.array(names, str), kind="stable")
    return {"names": np.array(names, str)[order], "x": x[order], "test": np.array(test, bool)[order]}


def _members(place: Path, files: list[Path]) -> Iterator[tuple[str, bytes]]:
    """``word/clip.wav`` and its bytes, and the test list."""
    try:
        if place.is_dir():
            if (place / TEST_LIST).is_file():
                yield TEST_LIST, (place / TEST_LIST).read_bytes()
            for file in files:
                yield f"{file.parent.name}/{file.name}", file.read_bytes()
            return
        with tarfile.open(place, "r|*") as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None and parts[-1] == TEST_LIST:
                    yield TEST_LIST, stream.read()
                elif stream is not None and parts[-1].endswith(".wav") and len(parts) > 1:
                    yield "/".join(parts[-2:]), stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise damaged(place, f"cannot be read ({error})") from error


def _samples(name: str, data: bytes, place: Path) -> Array:
    """The first second of a clip as int16, silence added where it is shorter."""
    file = place / name if place.is_dir() else f"{place} ({name})"
    try:
        with wave.open(io.BytesIO(data)) as sound:
            form = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
            frames = sound.readframes(SAMPLES) if form == (1, 2, RATE_HZ) else b""
    except (wave.Error, EOFError, ValueError) as error:
        raise damaged(file, f"is no readable WAV ({error or 'it ends too soon'})") from error
    if form != (1, 2, RATE_HZ):
        raise damaged(
            file, f"must be mono, 16 bit, 16000 Hz, not {form[0]} x {8 * form[1]} bit, {form[2]} Hz"
        )
    samples = np.zeros(SAMPLES, np.int16)
    heard = np.frombuffer(frames[: len(frames) // 2 * 2], "<i2")
    samples[: len(heard)] = heard
    return samples


def _known(words: Sequence[str] | None, found: list[str], place: Path) -> list[str]:
    if len(found) < 2 and words is None:
        raise damaged(place, "must hold a sub-folder of .wav files for each of two words or more")
    for word in words or ():
        if word not in found:
            raise JobError("data.words", word, f"{place} has no such word")
    return list(words or found)


def _only(dataset: Dataset, words: Sequence[str] | None, place: Path) -> Dataset:
    """The part of a data set that has these labels, numbered anew."""
    if words is None:
        return dataset
    classes = _known(words, list(dataset.classes), place)
    renumbered = torch.full((len(dataset.classes),), -1)
    for label, word in enumerate(classes):
        renumbered[dataset.classes.index(word)] = label

    def part(examples: Examples) -> Examples:
        y = renumbered[examples.y]
        return Examples(examples.x[y >= 0], y[y >= 0])

    return Dataset(dataset.name, part(dataset.train), part(dataset.test), tuple(classes))
