from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from manyhands.data import DataSection, load
from manyhands.data import idx as idx_module
from manyhands.errors import JobError


def idx_bytes(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return dict(
        zip(
            idx_module.FILES,
            (
                rng.integers(0, 256, (30, 7, 9), np.uint8),
                (np.arange(30) % 10).astype(np.uint8),
                rng.integers(0, 256, (10, 7, 9), np.uint8),
                np.arange(10).astype(np.uint8),
            ),
            strict=True,
        )
    )


@pytest.fixture
def folder(tmp_path, arrays):
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(idx_bytes(array))
    return tmp_path


def read(folder, name="mnist", verify=False):
    return load(DataSection(name=name, path=folder, verify=verify), seed=0)


@pytest.mark.parametrize("spelling", ["{}", "{}.gz", "dotted", "dotted.gz"])
def test_plain_and_compressed_under_either_spelling(tmp_path, arrays, spelling):
    for name, array in arrays.items():
        new = spelling.format(name).replace("dotted", name.replace("-idx", ".idx"))
        content = idx_bytes(array)
        (tmp_path / new).write_bytes(gzip.compress(content) if new.endswith(".gz") else content)
    data = read(tmp_path, "fashion_mnist")
    assert data.shape == (1, 7, 9)
    assert np.array_equal(data.train.x[:, 0].numpy(), arrays[idx_module.FILES[0]])
    assert np.array_equal(data.test.y.numpy(), arrays[idx_module.FILES[3]])
    assert data.classes[9] == "Ankle boot"


def test_found_in_the_folders_other_tools_use(folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "MNIST").mkdir()
    (home / "MNIST" / "raw").symlink_to(folder)
    assert len(read(home).train) == 30


def test_data_that_is_not_the_published_is_refused_unless_wanted(folder):
    with pytest.raises(
        JobError, match=r"train-images-idx3-ubyte: differs from the published .*verify = false"
    ):
        read(folder, verify=True)
    assert len(read(folder).train) == 30


def test_the_published_checksum_is_of_the_uncompressed_file(folder, arrays, monkeypatch):
    known = {name: idx_module._md5(array) for name, array in arrays.items()}
    monkeypatch.setattr(idx_module, "MNIST_MD5", known)
    images = folder / idx_module.FILES[0]
    (folder / f"{images.name}.gz").write_bytes(gzip.compress(images.read_bytes(), 1, mtime=7))
    images.unlink()
    assert len(read(folder, verify=True).train) == 30
    labels = folder / idx_module.FILES[3]
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x01")
    with pytest.raises(JobError, match="t10k-labels-idx1-ubyte: differs"):
        read(folder, verify=True)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda b: b[:-1], "truncated"),
        (lambda b: b[:10], "wrong first bytes"),
        (lambda b: b"", "wrong first bytes"),
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], "wrong first bytes"),
        (lambda b: b[:4] + b"\xff" * 12 + b[16:], "truncated"),
        (lambda b: b + b"x", "goes on after"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_damage_names_the_file(folder, harm, message, compressed):
    file = folder / idx_module.FILES[0]
    content = harm(file.read_bytes())
    if compressed:
        file.unlink()
        file = file.with_name(file.name + ".gz")
        content = gzip.compress(content)
    file.write_bytes(content)
    with pytest.raises(JobError, match=message) as caught:
        read(folder)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "harm", [lambda b: b[: len(b) // 2], lambda b: b"no gzip", lambda b: b[:40] + b"\xff" * 99]
)
def test_a_damaged_gzip_names_the_file(folder, harm):
    file = folder / idx_module.FILES[2]
    (folder / f"{file.name}.gz").write_bytes(harm(gzip.compress(file.read_bytes())))
    file.unlink()
    with pytest.raises(JobError, match=r"t10k-images-idx3-ubyte\.gz: "):
        read(folder)


def test_labels_out_of_range(folder, arrays):
    (folder / idx_module.FILES[1]).write_bytes(idx_bytes(np.full(30, 10, np.uint8)))
    with pytest.raises(JobError, match="label 10, but labels run from 0 to 9"):
        read(folder)


def test_three_of_four_files_are_not_the_data_set(folder):
    (folder / idx_module.FILES[3]).unlink()
    with pytest.raises(JobError, match="four idx files"):
        read(folder)


def test_npz_of_the_wrong_content_is_refused(tmp_path, arrays):
    images, labels, test_images, test_labels = arrays.values()
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=test_images, y_test=test_labels)
    with pytest.raises(JobError, match=r"mnist\.npz: differs"):
        read(tmp_path, verify=True)
    assert len(read(tmp_path).test) == 10
