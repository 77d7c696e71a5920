from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from manyhands.data.download import Download, fetch
from manyhands.errors import RunError

CONTENT = bytes(i * 7 % 251 for i in range(300_000))
GOOD = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `cuts` says after how many bytes each of the first connections breaks off."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []
        self.ranges: list[str | None] = []
        self.content = CONTENT
        self.status = 200
        self.knows_ranges = True

    def address(self, path="file.bin"):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        if server.status != 200 or self.path != "/file.bin":
            self.send_error(server.status if server.status != 200 else 404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.knows_ranges else 0
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}"
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, folder, checksum=GOOD, addresses=None, **more):
    download = Download("file.bin", addresses or (server.address(),), checksum)
    return fetch(download, folder, pause_s=0, timeout_s=5, **more)


def names(folder):
    return sorted(f.name for f in folder.iterdir() if not f.name.startswith("."))


def test_fetches_with_progress(server, tmp_path):
    told = []
    file = get(server, tmp_path / "new", progress=lambda *now: told.append(now))
    assert file.read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["file.bin"]
    assert told[0] == ("fetching file.bin", 0, len(CONTENT))
    assert told[-1] == ("fetching file.bin", len(CONTENT), len(CONTENT))


def test_sha256_is_a_checksum_too(server, tmp_path):
    assert get(server, tmp_path, "sha256:" + hashlib.sha256(CONTENT).hexdigest()).exists()


def test_goes_on_after_cut_connections(server, tmp_path):
    server.cuts = [100_000, 50_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_run_goes_on(server, tmp_path):
    server.cuts = [100_000]
    with pytest.raises(RunError, match="cut after 100000 of 300000 bytes"):
        get(server, tmp_path, attempts=1)
    assert names(tmp_path) == ["file.bin.part"]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=100000-"


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.cuts, server.knows_ranges = [100_000], False
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_is_enough(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_part_of_something_else_is_thrown_away(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(RunError, match="checksum"):
        get(server, tmp_path)
    assert names(tmp_path) == []
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_wrong_checksum_never_takes_the_name(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(RunError, match="has the md5 checksum") as caught:
        get(server, tmp_path)
    assert names(tmp_path) == []
    assert "\n" not in str(caught.value)


def test_the_next_address_is_tried(server, tmp_path):
    addresses = (server.address("gone.bin"), server.address())
    assert get(server, tmp_path, addresses=addresses).read_bytes() == CONTENT


def test_a_missing_file_is_not_asked_for_again(server, tmp_path):
    with pytest.raises(RunError, match="404"):
        get(server, tmp_path, addresses=(server.address("gone.bin"),))
    assert len(server.ranges) == 1


def test_a_failing_server_is_asked_again(server, tmp_path):
    server.status = 503
    with pytest.raises(RunError, match="503"):
        get(server, tmp_path)
    assert len(server.ranges) == 3


def test_offline_is_said_in_one_line(server, tmp_path):
    closed = Server()
    address = closed.address()
    closed.server_close()
    with pytest.raises(RunError, match="refused") as caught:
        get(server, tmp_path, addresses=(address,))
    message = str(caught.value)
    assert "\n" not in message
    assert address in message
    assert str(tmp_path) in message
    assert names(tmp_path) == []


def test_a_file_that_is_there_is_not_fetched(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    assert get(server, tmp_path).read_bytes() == b"mine"
    assert server.ranges == []


def test_two_at_once_fetch_once(server, tmp_path):
    threads = [threading.Thread(target=get, args=(server, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RunError, match="cannot store"):
        get(server, tmp_path / "taken")
