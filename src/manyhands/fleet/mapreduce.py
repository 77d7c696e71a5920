"""Two small jobs of MapReduce that really run: WordCount and Sort, as in section 4.2 of Han et al.

Run as a program, this file does one job after the other on an input of so many bytes, until its standard
input ends. Text is made up, written to a scratch file and read back in pieces; each piece is mapped to
partitions, partitions travel over a loopback connection, and are reduced: counted, or sorted and written out.
It imports nothing of manyhands, so that it is there at once.
"""

from __future__ import annotations

import random
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase
from subprocess import Popen
from typing import Literal

__all__ = ["JobName", "jobs_running", "run_job"]

JobName = Literal["wordcount", "sort"]
PIECE_BYTES = 1 << 20
NUM_PARTITIONS = 4
NUM_WORDS = 2000


@contextmanager
def jobs_running(job: JobName, num_bytes: int, workers: int = 1) -> Iterator[tuple[Popen[str], ...]]:
    """So many processes, each doing one job after the other, while the context lasts."""
    from manyhands.fleet.burn import running  # noqa: PLC0415  # run as a program, this file has no package

    with running([[__file__, job, str(num_bytes)]] * workers) as processes:
        yield processes


def run_job(job: JobName, num_bytes: int, folder: Path, seed: int = 0) -> dict[str, int]:
    """One job; returns how often each word came, or where in the sorted output its first is."""
    source = folder / "input"
    _write_text(source, num_bytes, seed)
    partitions: list[list[str]] = [[] for _ in range(NUM_PARTITIONS)]
    for piece in _pieces(source):
        words = piece.split()
        mapped = _counted(words) if job == "wordcount" else words
        for number in range(NUM_PARTITIONS):
            part = [item for item in mapped if _partition(item) == number]
            partitions[number].extend(_shuffled("\n".join(part)).split("\n") if part else ())
    if job == "wordcount":
        return _reduced_counts(partitions)
    return _sorted_output(partitions, folder)


def _write_text(path: Path, num_bytes: int, seed: int) -> None:
    dice = random.Random(seed)
    words = ["".join(dice.choices(ascii_lowercase, k=dice.randint(2, 9))) for _ in range(NUM_WORDS)]
    piece = " ".join(dice.choices(words, k=PIECE_BYTES // 8)) + "\n"
    with path.open("w", encoding="ascii") as file:
        written = 0
        while written < num_bytes:
            written += file.write(piece[: num_bytes - written])


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="ascii") as file:
        rest = ""
        while text := file.read(PIECE_BYTES):
            text, _, rest_of_it = (rest + text).rpartition(" ")
            yield text
            rest = rest_of_it
        yield rest


def _counted(words: list[str]) -> list[str]:
    return [f"{word} {count}" for word, count in Counter(words).items()]


def _partition(item: str) -> int:
    return ascii_lowercase.index(item[0]) * NUM_PARTITIONS // len(ascii_lowercase)


def _shuffled(text: str) -> str:
    """What came out at the other end of a loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname())
        receiving, _ = server.accept()
    with sending, receiving:

        def send() -> None:
            sending.sendall(text.encode("ascii"))
            sending.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        received = bytearray()
        while data := receiving.recv(1 << 16):
            received += data
        thread.join()
    return received.decode("ascii")


def _reduced_counts(partitions: list[list[str]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for items in partitions:
        for item in items:
            word, _, count = item.partition(" ")
            total[word] += int(count)
    return dict(total)


def _sorted_output(partitions: list[list[str]], folder: Path) -> dict[str, int]:
    first: dict[str, int] = {}
    place = 0
    with (folder / "output").open("w", encoding="ascii") as file:
        for items in partitions:  # partitions are in the order of first letters
            items.sort()
            for word in items:
                first.setdefault(word, place)
                place += 1
            file.write("\n".join(items) + "\n")
    return first


def main(job: JobName, num_bytes: int) -> None:
    """One job after the other until the standard input ends."""
    print("ready", flush=True)

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    stop = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
        while not stop.is_set():
            run_job(job, num_bytes, Path(folder))


if __name__ == "__main__":
    main("sort" if sys.argv[1] == "sort" else "wordcount", int(sys.argv[2]))
