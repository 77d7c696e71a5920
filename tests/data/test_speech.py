from __future__ import annotations

import io
import tarfile
import wave

import numpy as np
import pytest

from manyhands.data import DataSection, load
from manyhands.data.logmel import FRAMES, filters, log_mel
from manyhands.data.speech import speaker_percentile
from manyhands.errors import JobError


def wav(samples, rate=16_000, channels=1, width=2):
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(np.asarray(samples, "<i2").tobytes())
    return out.getvalue()


def tone(hz, seconds=1.0, amplitude=0.5):
    return np.rint(
        amplitude * 32767 * np.sin(2 * np.pi * hz * np.arange(int(16_000 * seconds)) / 16_000)
    ).astype(np.int16)


SPEAKERS = [f"{n:08x}" for n in range(40)]


@pytest.fixture
def folder(tmp_path):
    """Two words by forty speakers, and noise that is no word."""
    home = tmp_path / "speech"
    for word, hz in (("low", 300), ("high", 3000), ("_background_noise_", 50)):
        (home / word).mkdir(parents=True)
        for speaker in SPEAKERS:
            (home / word / f"{speaker}_nohash_0.wav").write_bytes(wav(tone(hz, 0.7)))
    return home


def read(path, **more):
    return load(DataSection(name="speech_commands", path=path, **more), seed=0)


def test_a_tone_lights_up_its_band():
    picture = log_mel(tone(1000)[None])[0]
    assert picture.shape == (FRAMES, 40) == (49, 40)
    centre_hz = (filters() * np.arange(513)[:, None]).sum(0) / filters().sum(0) * 16_000 / 1024
    assert (np.abs(picture.argmax(1) - np.abs(centre_hz - 1000).argmin()) <= 1).all()
    # A sine of amplitude a under a Hann window of N: power (a N / 4)**2, the filter takes all of it or more.
    assert 20 * np.log10(0.5 * 640 / 4) + 60 - 3 <= picture.max() <= 20 * np.log10(0.5 * 640 / 4) + 60 + 3


def test_a_tenth_of_the_amplitude_is_twenty_decibel_less():
    loud, soft = log_mel(np.stack([tone(800), tone(800, amplitude=0.05)])).max((1, 2)).astype(int)
    assert loud - soft == pytest.approx(20, abs=1)


def test_silence_is_black_and_noise_stays_in_range():
    assert log_mel(np.zeros((2, 16_000), np.int16)).max() == 0
    noise = log_mel(np.random.default_rng(0).integers(-32768, 32768, (1, 16_000)).astype(np.int16))
    assert 60 < noise.min() <= noise.max() < 130


def test_filters_cover_20_to_7600_hz():
    hz = np.arange(513) * 16_000 / 1024
    heard = filters().max(1) > 0
    assert hz[heard].min() > 20
    assert hz[heard].max() < 7600
    assert heard[3:480].all()
    assert filters().max() <= 1


def test_the_speaker_rule_is_the_data_sets_own():
    # A clip of the published testing list: its speaker stands between 10 and 20.
    assert speaker_percentile("right/bb05582b_nohash_3.wav") == pytest.approx(18.1327, abs=1e-4)
    assert speaker_percentile("a/bb05582b_nohash_0.wav") == speaker_percentile("b/bb05582b_nohash_9.wav")


def test_words_become_pictures_and_speakers_stay_apart(folder):
    data = read(folder)
    assert data.classes == ("high", "low")
    assert data.shape == (1, 49, 40)
    in_test = sum(10 <= speaker_percentile(f"{s}_nohash_0.wav") < 20 for s in SPEAKERS)
    assert (len(data.train), len(data.test)) == (2 * (40 - in_test), 2 * in_test)
    low = data.train.x[data.train.y == 1][0, 0]
    assert (low[:33].argmax(1) < 15).all()
    assert low[-10:].max() == 0  # a shorter clip ends in silence


def test_the_test_list_decides_where_there_is_one(folder):
    wanted = [f"{word}/{speaker}_nohash_0.wav" for word in ("low", "high") for speaker in SPEAKERS[:3]]
    (folder / "testing_list.txt").write_text("\n".join(wanted) + "\n")
    assert len(read(folder).test) == 6
    (folder / "testing_list.txt").write_text("\n".join(wanted[:4]) + "\n")
    assert len(read(folder).test) == 4  # what was remembered is not taken for the new list


def test_the_archive_reads_as_the_folder_does(folder, tmp_path):
    (folder / "testing_list.txt").write_text("low/00000001_nohash_0.wav\nhigh/00000001_nohash_0.wav\n")
    archive = tmp_path / "speech_commands_v0.02.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, ".")
    one, other = read(folder), read(archive)
    assert one.classes == other.classes
    assert (one.train.x == other.train.x).all()
    assert (one.test.y == other.test.y).all()
    archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(JobError, match=r"v0\.02\.tar\.gz"):
        read(archive)


def test_words_choose_and_order_the_classes(folder):
    assert read(folder, words=("low", "high")).classes == ("low", "high")
    with pytest.raises(JobError, match="no such word") as caught:
        read(folder, words=("low", "middle"))
    assert caught.value.key == "data.words"


def test_clips_are_read_once(folder):
    told = []
    for _ in range(2):
        load(DataSection(name="speech_commands", path=folder), seed=0, progress=lambda *now: told.append(now))
    assert told == [("reading speech_commands", 80, 80)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"RIFF", "no readable WAV"),
        (b"", "no readable WAV"),
        (wav(tone(100))[:30], "no readable WAV"),
        (wav(tone(100), rate=8000), "must be mono, 16 bit, 16000 Hz, not 1 x 16 bit, 8000 Hz"),
        (wav(tone(100), channels=2), "must be mono"),
    ],
)
def test_a_clip_that_cannot_be_used_is_named(folder, content, message):
    file = folder / "low" / "00000007_nohash_0.wav"
    file.write_bytes(content)
    with pytest.raises(JobError, match=message) as caught:
        read(folder)
    assert str(file) in str(caught.value)


def test_one_word_is_nothing_to_tell_apart(folder):
    for file in (folder / "high").iterdir():
        file.unlink()
    with pytest.raises(JobError, match="two words or more"):
        read(folder)
