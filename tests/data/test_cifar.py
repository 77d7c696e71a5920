from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from manyhands.data import DataSection, load
from manyhands.data import cifar as cifar_module
from manyhands.data.cifar import CIFAR10, CIFAR100
from manyhands.errors import JobError


def files_of(kind, per_file=20):
    """Small files in the form of the real ones."""
    rng = np.random.default_rng(0)
    files = {}
    for name in kind.train | kind.test:
        records = rng.integers(0, 256, (per_file, kind.label_bytes + 3072), np.uint8)
        records[:, 0] %= 10
        files[name] = records
    return files


def as_folder(home, kind, files):
    folder = home / kind.folder
    folder.mkdir(parents=True)
    for name, records in files.items():
        (folder / name).write_bytes(records.tobytes())
    return folder


def as_archive(home, kind, files):
    with tarfile.open(home / kind.archive, "w:gz") as tar:
        for name, records in reversed(files.items()):  # the real archive is in no particular order either
            member = tarfile.TarInfo(f"{kind.folder}/{name}")
            member.size = records.nbytes
            tar.addfile(member, io.BytesIO(records.tobytes()))
    return home / kind.archive


def read(path, name="cifar10", **more):
    return load(DataSection(name=name, path=path, **{"verify": False} | more), seed=0)


@pytest.mark.parametrize("write", [as_folder, as_archive])
@pytest.mark.parametrize("direct", [True, False])
def test_cifar10_from_folder_and_archive(tmp_path, write, direct):
    files = files_of(CIFAR10)
    place = write(tmp_path, CIFAR10, files)
    data = read(place if direct else tmp_path)
    everything = np.concatenate(list(files.values()))
    assert (len(data.train), len(data.test), data.shape) == (100, 20, (3, 32, 32))
    assert np.array_equal(data.train.x.numpy().reshape(100, -1), everything[:100, 1:])
    assert np.array_equal(data.train.y.numpy(), everything[:100, 0])
    assert np.array_equal(data.test.x.numpy().reshape(20, -1), everything[100:, 1:])
    assert data.classes[6] == "frog"
    # One array holds both: the test set begins where the training set ends.
    assert data.test.x.data_ptr() == data.train.x.data_ptr() + 100 * 3072


def test_cifar100_fine_and_coarse(tmp_path):
    files = files_of(CIFAR100)
    for records in files.values():
        records[:, 1] %= 100
    as_archive(tmp_path, CIFAR100, files)
    fine, coarse = read(tmp_path, "cifar100"), read(tmp_path, "cifar100", labels="coarse")
    assert np.array_equal(fine.train.y.numpy(), files["train.bin"][:, 1])
    assert np.array_equal(coarse.train.y.numpy(), files["train.bin"][:, 0])
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    assert np.array_equal(fine.test.x.numpy().reshape(20, -1), files["test.bin"][:, 2:])


@pytest.mark.parametrize("write", [as_folder, as_archive])
def test_checksums_are_those_of_the_members(tmp_path, write, monkeypatch):
    files = files_of(CIFAR10)
    write(tmp_path, CIFAR10, files)
    with pytest.raises(JobError, match=r"differs from the published .*verify = false"):
        read(tmp_path, verify=True)
    md5 = {name: hashlib.md5(records.tobytes()).hexdigest() for name, records in files.items()}
    known = replace(
        CIFAR10,
        train={name: md5[name] for name in CIFAR10.train},
        test={"test_batch.bin": md5["test_batch.bin"]},
    )
    data = cifar_module.read_cifar(
        tmp_path / (CIFAR10.folder if write is as_folder else CIFAR10.archive),
        known,
        labels="fine",
        verify=True,
        progress=lambda *now: None,
    )
    assert len(data.train) == 100


def test_a_missing_batch_is_named(tmp_path):
    folder = as_folder(tmp_path, CIFAR10, files_of(CIFAR10))
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(JobError, match=r"lacks data_batch_4\.bin"):
        read(tmp_path)


def test_a_truncated_batch_is_named(tmp_path):
    folder = as_folder(tmp_path, CIFAR10, files_of(CIFAR10))
    file = folder / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(JobError, match=r"data_batch_2\.bin is truncated"):
        read(tmp_path)


def test_labels_out_of_range(tmp_path):
    files = files_of(CIFAR10)
    files["test_batch.bin"][3, 0] = 77
    as_folder(tmp_path, CIFAR10, files)
    with pytest.raises(JobError, match="test label 77"):
        read(tmp_path)


@pytest.mark.parametrize(
    "harm", [lambda b: b[: len(b) // 2], lambda b: b"nothing", lambda b: b[:3000] + b"\0" * 99 + b[3099:]]
)
def test_a_damaged_archive_is_named(tmp_path, harm):
    archive = as_archive(tmp_path, CIFAR10, files_of(CIFAR10))
    archive.write_bytes(harm(archive.read_bytes()))
    with pytest.raises(JobError, match=r"cifar-10-binary\.tar\.gz: "):
        read(tmp_path)


def test_our_names_are_those_of_the_data_folder(data_folder):
    for file, key, names in (
        ("cifar10.npz", "class_names", CIFAR10.classes),
        ("cifar100_half.npz", "class_names", CIFAR100.classes),
        ("cifar100_half.npz", "coarse_names", CIFAR100.coarse),
    ):
        with np.load(data_folder / file, allow_pickle=False) as members:
            assert tuple(members[key]) == names
