from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from packing import pack

from manyhands.data import DataSection, load
from manyhands.data.packed import _rows, digest, is_packed, unpack
from manyhands.errors import JobError


@pytest.fixture(scope="module")
def pixels():
    rng = np.random.default_rng(5)
    smooth = np.cumsum(rng.integers(-9, 10, (4, 3, 32, 32)), axis=3) + 128
    smooth[0] = rng.integers(0, 256, (3, 32, 32))  # a picture of noise
    smooth[1] = 255
    return smooth.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def arrays(pixels):
    return pack(pixels)


@pytest.fixture
def file(tmp_path, arrays):
    file = tmp_path / "cifar10.npz"
    np.savez(file, **arrays, y_train=np.array([0, 1, 2]), y_test=np.array([1]), class_names=list("abc"))
    return file


def test_unpacking_gives_back_what_was_packed(pixels, arrays):
    assert is_packed(list(arrays))
    told = []
    out = unpack(arrays, lambda *now: told.append(now))
    assert np.array_equal(out, pixels)
    assert digest(out) == str(arrays["x_sha256"])
    assert told[-1] == ("unpacking", 32, 32)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("words", lambda a: a[:-1], "ends too soon"),
        ("words", lambda a: np.append(a, a[:1]), "left over"),
        ("freq1", lambda a: a + 1, "no table of frequencies"),
        ("lut2", lambda a: a + 3, "context that is not there"),
        ("wt0", lambda a: a * 50_000, "too large"),
    ],
)
def test_arrays_that_do_not_belong_together(arrays, name, change, message):
    with pytest.raises(ValueError, match=message):
        unpack(arrays | {name: change(arrays[name])})


def test_a_packed_file_is_unpacked_once_and_remembered(file, pixels, cache):
    told = []
    for _ in range(2):
        data = load(DataSection(name="cifar10", path=file), seed=0, progress=lambda *now: told.append(now))
        assert np.array_equal(data.train.x.numpy(), pixels[:3])
        assert np.array_equal(data.test.x.numpy(), pixels[3:])
        assert data.train.y.tolist() == [0, 1, 2]
        assert data.classes == ("a", "b", "c")
    assert len([now for now in told if now[0] == "unpacking"]) == 32
    assert len(list(cache.glob("arrays/unpacked-*/x.npy"))) == 1
    assert [f.name for f in (cache / "arrays").iterdir() if f.name.startswith(".")] == []


def test_writing_to_remembered_pictures_stays_private(file, pixels):
    section = DataSection(name="cifar10", path=file)
    load(section, seed=0).train.x.zero_()
    assert np.array_equal(load(section, seed=0).train.x.numpy(), pixels[:3])


@pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
def test_a_damaged_cache_is_mended(file, pixels, cache, harm):
    section = DataSection(name="cifar10", path=file)
    load(section, seed=0)
    (kept,) = cache.glob("arrays/unpacked-*/x.npy")
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.unlink()
    kept.write_bytes({"flip": content, "cut": content[:500], "empty": b""}[harm])
    assert np.array_equal(load(section, seed=0).test.x.numpy(), pixels[3:])


def test_without_a_cache_folder_it_works_all_the_same(file, pixels, tmp_path, monkeypatch):
    (tmp_path / "blocked").write_text("a file where the cache folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    data = load(DataSection(name="cifar10", path=file), seed=0)
    assert np.array_equal(data.train.x.numpy(), pixels[:3])


def test_a_damaged_packed_file_is_refused_by_name(file, arrays):
    state = arrays["state"].copy()
    state[2] ^= np.uint64(1 << 20)
    np.savez(file, **arrays | {"state": state}, y_train=np.array([0, 1, 2]), y_test=np.array([1]))
    with pytest.raises(JobError, match=r"cifar10\.npz"):
        load(DataSection(name="cifar10", path=file), seed=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10", "4511f97874b555181bdd4b558783f89bdf15790f34107b0d0d5c017b034210fb"),
        ("cifar100_half", "a8ffeef7fe9009f0e2176cdb817ee133429ff5e113b06569a47483dbdfb9887a"),
    ],
)
def test_the_first_rows_of_the_real_files(data_folder, name, expected):
    """Three rows of all pictures; their digests are of files whose whole digest was right."""
    with np.load(data_folder / f"{name}.npz", allow_pickle=False) as members:
        arrays = {key: members[key] for key in members.files}
    rows = [row.copy() for row in itertools.islice(_rows(arrays), 3)]
    assert hashlib.sha256(np.stack(rows, axis=2).tobytes()).hexdigest() == expected
