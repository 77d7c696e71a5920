from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from manyhands.data import SOURCES, DataSection, Dataset, Examples, get, load
from manyhands.data.download import Download
from manyhands.data.section import NAMES
from manyhands.errors import JobError, RunError


def write_npz(file, count=12, **more):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (count, 6, 5), np.uint8),
        "y_train": np.arange(count) % 3,
        "x_test": rng.integers(0, 256, (4, 6, 5), np.uint8),
        "y_test": np.arange(4) % 3,
    } | more
    np.savez(file, **{key: a for key, a in arrays.items() if a is not None})
    return arrays


def test_digits_need_nothing_and_never_change():
    data = load(DataSection(), seed=1)
    assert isinstance(data, Dataset)
    assert data.shape == (1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.dtype == torch.int64
    assert (len(data.train), len(data.test)) == (1442, 355)
    assert data.train.x.max() == 255
    assert data.classes == tuple("0123456789")
    assert torch.bincount(data.test.y).tolist() == pytest.approx([35.5] * 10, abs=2)
    again = load(DataSection(), seed=2)
    assert torch.equal(data.test.x, again.test.x)


def test_limit_takes_the_first_of_a_seeded_shuffle():
    whole = load(DataSection(), seed=3)
    small, large, other = (load(DataSection(limit=n), seed=s).train for n, s in ((50, 3), (100, 3), (50, 4)))
    assert torch.equal(small.x, large.x[:50])
    assert not torch.equal(small.x, other.x)
    assert len(load(DataSection(limit=10**6), seed=3).train) == len(whole.train)
    assert len(load(DataSection(limit=50), seed=3).test) == len(whole.test)


def test_take_copies_what_is_asked_for():
    examples = Examples(torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2), torch.tensor([5, 6, 7]))
    taken = examples.take(np.array([2, 0]))
    assert taken.y.tolist() == [7, 5]
    assert taken.x[0].flatten().tolist() == [8, 9, 10, 11]
    assert len(examples.take([])) == 0


def test_the_list_is_the_names():
    assert tuple(SOURCES) == NAMES
    for source in SOURCES.values():
        assert source.about
        assert source.licence
        assert source.files
        assert bool(source.downloads) == bool(source.address) == (source.size_bytes > 0)
    assert SOURCES["digits"].present
    assert not SOURCES["cifar10"].present


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"name": "cifr10"}, 'did you mean "cifar10"'),
        ({"limit": 0}, "greater than 0"),
        ({"alpha": 0}, "greater than 0"),
        ({"alpha": float("inf")}, "finite"),
        ({"shares": "fair"}, "by_class"),
        ({"side": 2}, "greater than or equal to 4"),
        ({"test_fraction": 1}, "less than 1"),
        ({"words": ["go", "go"]}, "twice"),
        ({"colour": True}, "Extra inputs"),
    ],
)
def test_settings_that_are_wrong(setting, message):
    with pytest.raises(ValidationError, match=message):
        DataSection(**setting)


# --- where it is looked for


def test_missing_says_where_it_looked_and_what_would_help(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path / "mine"))
    with pytest.raises(JobError) as caught:
        load(DataSection(name="cifar10"), seed=0)
    message = str(caught.value)
    assert caught.value.key == "data.path"
    assert "\n" not in message
    for part in (
        str(tmp_path / "mine"),
        str(cache),
        "download = true",
        "manyhands data get cifar10",
        "toronto.edu",
    ):
        assert part in message


@pytest.mark.parametrize("name", ["images", "npz"])
def test_ones_own_data_needs_a_path(name, tmp_path, cache):
    (cache / "arrays").mkdir(parents=True)  # would pass for a class of pictures
    assert not SOURCES[name].present
    for path in (None, tmp_path / "nowhere"):
        with pytest.raises(JobError, match=r"set data\.path to"):
            load(DataSection(name=name, path=path, download=True), seed=0)


def test_path_then_environment_then_cache(tmp_path, cache, monkeypatch):
    folders = [tmp_path / "path", tmp_path / "environment", cache]
    for count, folder in enumerate(folders, 5):
        folder.mkdir(parents=True)
        write_npz(folder / "mnist.npz", count)
    monkeypatch.setenv("MANYHANDS_DATA", str(folders[1]))
    section = DataSection(name="mnist", path=folders[0], verify=False)
    assert len(load(section, seed=0).train) == 5
    section = DataSection(name="mnist", verify=False)
    assert len(load(section, seed=0).train) == 6
    (folders[1] / "mnist.npz").unlink()
    assert len(load(section, seed=0).train) == 7
    assert SOURCES["mnist"].found() == cache / "mnist.npz"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(JobError, match="empty"):  # an explicit path is the only place
        load(DataSection(name="mnist", path=empty), seed=0)


def test_download_when_asked_for(tmp_path, cache, monkeypatch):
    fetched = []

    def fake(download: Download, folder, progress):
        fetched.append((download.file, folder))
        folder.mkdir(parents=True, exist_ok=True)
        write_npz(folder / "mnist.npz")

    monkeypatch.setattr("manyhands.data.loading.fetch", fake)
    # The stand-in brings an .npz where the real ones are idx files; four files are asked for.
    assert (
        len(load(DataSection(name="mnist", download=True, verify=False, path=tmp_path / "a"), seed=0).train)
        == 12
    )
    assert [folder for _, folder in fetched] == [tmp_path / "a"] * 4
    fetched.clear()
    assert get("mnist", path=tmp_path / "a") == tmp_path / "a" / "mnist.npz"
    assert fetched == []
    with pytest.raises(RunError, match="not found"):
        get("cifar10")
    assert fetched == [("cifar-10-binary.tar.gz", cache / "cifar10")]
    with pytest.raises(JobError, match="must be one of"):
        get("cifar11")
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="must be a folder"):
        get("cifar10", path=tmp_path / "file")


# --- npz


def test_npz_in_each_layout(tmp_path):
    file = tmp_path / "own.npz"
    section = DataSection(name="npz", path=file)
    arrays = write_npz(file, class_names=np.array(["a", "b", "c", "d"]))
    data = load(section, seed=0)
    assert (data.name, data.shape, data.classes) == ("own", (1, 6, 5), ("a", "b", "c", "d"))
    assert np.array_equal(data.train.x[:, 0].numpy(), arrays["x_train"])

    first = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 7), np.uint8)
    write_npz(file, x_train=first, x_test=first[:4])
    assert np.array_equal(load(section, seed=0).train.x.numpy(), first)
    assert load(section, seed=0).classes == ("0", "1", "2")
    write_npz(file, x_train=first.transpose(0, 2, 3, 1), x_test=first[:4].transpose(0, 2, 3, 1))
    assert np.array_equal(load(section, seed=0).train.x.numpy(), first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_test": None}, "lacks the array y_test"),
        ({"x_train": np.zeros((12, 6, 5))}, "must be uint8"),
        ({"x_train": np.zeros((12, 6), np.uint8)}, "must be uint8 of shape"),
        ({"x_train": np.zeros((11, 6, 5), np.uint8)}, "11 training pictures but 12 labels"),
        ({"x_test": np.zeros((4, 6, 6), np.uint8)}, "test pictures"),
        ({"y_train": np.arange(12) / 2}, "y_train must be whole numbers"),
        ({"y_test": np.array([0, 1, -1, 0])}, "test label -1"),
        (
            {"y_test": np.array([0, 1, 3, 0]), "class_names": np.array(["a", "b", "c"])},
            "label 3, but .* 0 to 2",
        ),
        ({"x_test": np.zeros((0, 6, 5), np.uint8), "y_test": np.zeros(0, int)}, "y_test must be"),
        ({"y_test": np.array([{}, {}, {}, {}])}, "cannot be read as .npz"),
    ],
)
def test_npz_that_is_wrong(tmp_path, change, message):
    file = tmp_path / "own.npz"
    write_npz(file, **change)
    with pytest.raises(JobError, match=message) as caught:
        load(DataSection(name="npz", path=file), seed=0)
    assert caught.value.key == "data.path"
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"text"])
def test_npz_that_is_none(tmp_path, content):
    file = tmp_path / "own.npz"
    file.write_bytes(content)
    with pytest.raises(JobError, match=r"own\.npz: cannot be read"):
        load(DataSection(name="npz", path=file), seed=0)


def test_npz_that_was_cut_or_flipped(tmp_path):
    file = tmp_path / "own.npz"
    write_npz(file)
    content = file.read_bytes()
    for harmed in (content[: len(content) // 2], content[:200] + b"\xff" * 40 + content[240:]):
        file.write_bytes(harmed)
        with pytest.raises(JobError, match=r"own\.npz"):
            load(DataSection(name="npz", path=file), seed=0)


def test_a_single_array_is_no_npz(tmp_path):
    file = tmp_path / "own.npz"
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(JobError, match="single array"):
        load(DataSection(name="npz", path=file), seed=0)


# --- the data folder, if present


def test_real_mnist_has_its_published_checksums(data_folder):
    data = load(DataSection(name="mnist", path=data_folder), seed=0)
    assert (len(data.train), len(data.test), data.shape) == (60_000, 10_000, (1, 28, 28))


@pytest.mark.parametrize(
    ("section", "sizes", "classes"),
    [
        ({"name": "speech_commands"}, (8612, 1576), 12),
        ({"name": "npz", "file": "audiomnist.npz"}, (8160, 2040), 10),
    ],
)
def test_real_sound(data_folder, section, sizes, classes):
    path = data_folder / section.pop("file", "")
    data = load(DataSection(path=path, **section), seed=0)
    assert (len(data.train), len(data.test)) == sizes
    assert data.shape == (1, 49, 40)
    assert len(data.classes) == classes


def test_real_sound_of_some_words(data_folder):
    data = load(DataSection(name="speech_commands", path=data_folder, words=("up", "down")), seed=0)
    assert data.classes == ("up", "down")
    assert sorted(set(data.train.y.tolist())) == [0, 1]
    with pytest.raises(JobError, match="no such word"):
        load(DataSection(name="speech_commands", path=data_folder, words=("up", "sideways")), seed=0)
