"""The data sets that a job can name; a ninth is one more entry of `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from manyhands.data import idx
from manyhands.data.arrays import read_npz
from manyhands.data.cifar import CIFAR10, CIFAR100, Binary, read_cifar
from manyhands.data.download import Download
from manyhands.data.examples import Dataset, make_dataset
from manyhands.data.lookup import (
    Reading,
    Source,
    find_any,
    find_cifar,
    find_folder,
    find_idx_set,
    find_npz,
    has_words,
)
from manyhands.data.pictures import read_images
from manyhands.data.speech import read_speech

__all__ = ["SOURCES"]


def _read_digits(_: Path, reading: Reading) -> Dataset:
    from sklearn.datasets import load_digits  # noqa: PLC0415  (a second to import, for this one set)

    bundle = load_digits()
    x = np.rint(bundle.images * (255 / 16)).astype(np.uint8)[:, None]
    y = bundle.target.astype(np.int64)
    # Every fifth of each class is for testing: the same split with every seed and every library version.
    turn = np.empty(len(y), np.int64)
    for label in range(10):
        members = np.flatnonzero(y == label)
        turn[members] = np.arange(len(members))
    test = turn % 5 == 4
    parts = x[~test], y[~test], x[test], y[test]
    return make_dataset("digits", parts, [str(d) for d in range(10)], Path("digits"))


def _read_mnist(spot: Path, reading: Reading) -> Dataset:
    md5 = idx.MNIST_MD5 if reading.section.verify else None
    return idx.read_idx_set(spot, "mnist", tuple("0123456789"), md5)


def _read_fashion(spot: Path, reading: Reading) -> Dataset:
    md5 = idx.FASHION_MD5 if reading.section.verify else None
    return idx.read_idx_set(spot, "fashion_mnist", idx.FASHION_CLASSES, md5)


def _read_cifar(kind: Binary) -> Callable[[Path, Reading], Dataset]:
    def read(spot: Path, reading: Reading) -> Dataset:
        section = reading.section
        labels = section.labels if kind.coarse else "fine"
        return read_cifar(spot, kind, labels=labels, verify=section.verify, progress=reading.progress)

    return read


def _read_speech(spot: Path, reading: Reading) -> Dataset:
    return read_speech(spot, reading.section.words, reading.progress)


def _read_images(spot: Path, reading: Reading) -> Dataset:
    section = reading.section
    return read_images(
        spot,
        side=section.side,
        grey=section.grey,
        test_fraction=section.test_fraction,
        seed=reading.seed,
        progress=reading.progress,
    )


def _read_npz(spot: Path, reading: Reading) -> Dataset:
    return read_npz(spot, spot.stem, labels=reading.section.labels, progress=reading.progress)


def _idx_downloads(md5: tuple[str, ...], *bases: str) -> tuple[Download, ...]:
    files = [f"{name}.gz" for name in idx.FILES]
    return tuple(
        Download(file, tuple(f"{base}/{file}" for base in bases), f"md5:{checksum}")
        for file, checksum in zip(files, md5, strict=True)
    )


MNIST_GZ_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_GZ_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
CIFAR_HOME = "https://www.cs.toronto.edu/~kriz"
SPEECH_ARCHIVES = ("speech_commands_v0.02.tar.gz", "speech_commands_v0.01.tar.gz")

SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="digits",
            about="1,797 handwritten digits, 8 x 8 grey, 10 classes; comes with scikit-learn",
            licence="CC BY 4.0",
            files="nothing, it is built in",
            find=lambda place: None,
            read=_read_digits,
            built_in=True,
        ),
        Source(
            name="mnist",
            about="70,000 handwritten digits, 28 x 28 grey, 10 classes",
            licence="CC BY-SA 3.0",
            files="the four idx files (train-images-idx3-ubyte[.gz], …) or mnist.npz",
            find=find_idx_set(".", "mnist", "MNIST/raw", npz="mnist.npz"),
            read=_read_mnist,
            size_bytes=11_594_722,
            downloads=_idx_downloads(
                MNIST_GZ_MD5,
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
        ),
        Source(
            name="fashion_mnist",
            about="70,000 pieces of clothing, 28 x 28 grey, 10 classes",
            licence="MIT",
            files="the four idx files (train-images-idx3-ubyte[.gz], …) or fashion_mnist.npz",
            find=find_idx_set(
                ".", "fashion_mnist", "fashion-mnist", "FashionMNIST/raw", npz="fashion_mnist.npz"
            ),
            read=_read_fashion,
            size_bytes=30_878_645,
            downloads=_idx_downloads(
                FASHION_GZ_MD5,
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
        ),
        Source(
            name="cifar10",
            about="60,000 photographs, 32 x 32 colour, 10 classes",
            licence="none stated; cite Krizhevsky 2009",
            files="cifar-10-batches-bin/, cifar-10-binary.tar.gz or cifar10.npz",
            find=find_cifar(CIFAR10, "cifar10.npz"),
            read=_read_cifar(CIFAR10),
            size_bytes=170_052_171,
            downloads=(
                Download(
                    CIFAR10.archive,
                    (f"{CIFAR_HOME}/{CIFAR10.archive}",),
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                ),
            ),
        ),
        Source(
            name="cifar100",
            about="60,000 photographs, 32 x 32 colour, 100 fine or 20 coarse classes",
            licence="none stated; cite Krizhevsky 2009",
            files="cifar-100-binary/, cifar-100-binary.tar.gz, cifar100.npz or cifar100_half.npz",
            find=find_cifar(CIFAR100, "cifar100.npz", "cifar100_half.npz"),
            read=_read_cifar(CIFAR100),
            size_bytes=168_513_733,
            downloads=(
                Download(
                    CIFAR100.archive,
                    (f"{CIFAR_HOME}/{CIFAR100.archive}",),
                    "md5:03b5dce01913d631647c71ecec9e9cb8",
                ),
            ),
        ),
        Source(
            name="speech_commands",
            about="105,829 spoken words of one second, as 49 x 40 log-mel pictures, 35 classes",
            licence="CC BY 4.0",
            files=f"a folder of words with .wav files, {SPEECH_ARCHIVES[0]} or speech_commands.npz",
            find=find_any(
                has_words,
                (
                    ".",
                    "speech_commands",
                    *(
                        f"{folder}{archive}"
                        for folder in ("", "speech_commands/")
                        for archive in SPEECH_ARCHIVES
                    ),
                    "SpeechCommands/speech_commands_v0.02",
                    "speech_commands.npz",
                    "speech_commands12.npz",
                ),
            ),
            read=_read_speech,
            size_bytes=2_428_923_189,
            downloads=(
                Download(
                    SPEECH_ARCHIVES[0],
                    (f"https://storage.googleapis.com/download.tensorflow.org/data/{SPEECH_ARCHIVES[0]}",),
                    "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
                ),
            ),
        ),
        Source(
            name="images",
            about="your own pictures, one sub-folder a class, in any format that Pillow reads",
            licence="yours",
            files="a folder with a sub-folder of pictures for each class",
            find=find_folder,
            read=_read_images,
        ),
        Source(
            name="npz",
            about="your own arrays: x_train, y_train, x_test, y_test and perhaps class_names, uint8",
            licence="yours",
            files="an .npz file with x_train, y_train, x_test and y_test",
            find=find_npz,
            read=_read_npz,
        ),
    )
}
