from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from manyhands.data import DataSection, load
from manyhands.errors import JobError

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def fill(folder, per_class=10, suffix="png", size=(20, 12)):
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            shade = tuple(max(c - i, 0) for c in colour)
            Image.new("RGB", size, shade).save(folder / name / f"{i}.{suffix}")
    return folder


def read(path, seed=0, **more):
    return load(DataSection(name="images", path=path, **{"side": 8} | more), seed=seed)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp"])
def test_one_folder_a_class(tmp_path, suffix):
    data = read(fill(tmp_path / "own", suffix=suffix))
    assert (data.name, data.classes, data.shape) == ("own", ("blue", "green", "red"), (3, 8, 8))
    assert torch.bincount(data.train.y).tolist() == [8, 8, 8]
    assert torch.bincount(data.test.y).tolist() == [2, 2, 2]
    for label, channel in enumerate((2, 1, 0)):
        assert data.train.x[data.train.y == label][:, channel].min() > 200


def test_the_split_is_the_seeds(tmp_path):
    folder = fill(tmp_path / "own")
    assert torch.equal(read(folder, 1).test.x, read(folder, 1).test.x)
    assert not torch.equal(read(folder, 1).test.x, read(folder, 2).test.x)
    assert len(read(folder, test_fraction=0.5).test) == 15
    assert len(read(folder, test_fraction=0.01).test) == 3


def test_train_and_test_folders_are_kept(tmp_path):
    fill(tmp_path / "train", 4)
    fill(tmp_path / "test", 3)
    data = read(tmp_path)
    assert (len(data.train), len(data.test)) == (12, 9)
    (tmp_path / "test" / "violet").mkdir()
    with pytest.raises(JobError, match="violet: is a class that the train folder does not have"):
        read(tmp_path)


def test_grey_and_side(tmp_path):
    folder = fill(tmp_path / "own")
    assert read(folder, grey=True).shape == (1, 8, 8)
    assert read(folder, side=16).shape == (3, 16, 16)


def test_pictures_are_cut_to_the_middle_and_turned_upright(tmp_path):
    folder = fill(tmp_path / "own", 2)
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255  # white in the middle, black left and right
    Image.fromarray(wide).save(folder / "red" / "0.png")
    upright = Image.fromarray(np.array([[[255] * 3] * 10] * 5 + [[[0] * 3] * 10] * 5, np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    upright.save(folder / "red" / "1.png", exif=turned)
    data = read(folder, test_fraction=0.1)
    reds = torch.cat([data.train.x[data.train.y == 2], data.test.x[data.test.y == 2]])
    middle = reds[(reds.float().mean((1, 2, 3))).argmax()]
    assert middle.min() > 200  # a little of the black is blended in at the cut
    other = reds[(reds.float().mean((1, 2, 3))).argmin()]
    assert other[:, 0].max() == 0
    assert other[:, -1].min() == 255


def test_pictures_are_read_once_but_changes_are_seen(tmp_path):
    folder, told = fill(tmp_path / "own"), []
    section = DataSection(name="images", path=folder, side=8)
    for seed in (0, 1):
        load(section, seed=seed, progress=lambda *now: told.append(now))
    assert told == [("reading pictures", 30, 30)]
    Image.new("RGB", (9, 9), (9, 9, 9)).save(folder / "red" / "new.png")
    assert len(read(folder).train) == 25


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_a_picture_that_cannot_be_read_is_named(tmp_path, content):
    file = fill(tmp_path / "own") / "green" / "3.png"
    file.write_bytes(content)
    with pytest.raises(JobError, match="no readable picture") as caught:
        read(tmp_path / "own")
    assert str(file) in str(caught.value)


def test_a_truncated_picture_is_named(tmp_path):
    file = fill(tmp_path / "own", size=(200, 200), suffix="jpg") / "green" / "3.jpg"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(JobError, match=r"3\.jpg: is no readable picture"):
        read(tmp_path / "own")


def test_folders_that_are_no_classes(tmp_path):
    with pytest.raises(JobError, match="two classes or more"):
        read(tmp_path)
    fill(tmp_path / "own")
    (tmp_path / "own" / "white").mkdir()
    with pytest.raises(JobError, match="white: holds no picture"):
        read(tmp_path / "own")
    Image.new("RGB", (9, 9)).save(tmp_path / "own" / "white" / "only.png")
    with pytest.raises(JobError, match="two pictures or more"):
        read(tmp_path / "own")
