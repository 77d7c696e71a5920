"""Messages between tiles whose processes are on one machine: through memory that they share.

A message is written once, into a block of memory that the receiver sees too, and a packet of a few bytes on a
Unix socket says where it lies. The socket orders the two, wakes who waits, and ends when a process does. A
block goes back to its owner as soon as it was read, so that a few of them serve all steps.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import socket
import struct
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.errors import RunError
from manyhands.tiles.values import pack_into

__all__ = ["Letter", "Nearby", "lost", "meet_nearby"]

Kind = Literal[0, 1]
PIECES: Kind = 0
SUMS: Kind = 1
RETURNED = 2  # a block that was read goes back

PACKET = struct.Struct("<BIQ")  # kind, number of the block, bytes of the message
DESCRIPTOR = struct.Struct("i")
DESCRIPTOR_ROOM = socket.CMSG_LEN(DESCRIPTOR.size)
TOKEN_BYTES = 16
LEAST_BYTES = 2**14
HELLO_S = 30.0
PATIENCE_S = 1800  # as long as torch's own groups wait for an answer


def lost(who: str, error: Exception) -> RunError:
    """The error for a device that does not answer."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return RunError(f"tile group: lost {who}, the step cannot be finished: {reason}")


@dataclass
class _Block:
    """Memory of this process that others read; `known` are the tiles that have been given it."""

    number: int
    descriptor: int
    data: Tensor
    known: set[int] = field(default_factory=set)
    readers: int = 0


@dataclass(frozen=True)
class Letter:
    """A message where its sender has written it. `done` must be called when it was read."""

    nearby: Nearby
    tile: int
    number: int
    data: Tensor

    def read(self, like: Tensor) -> Tensor:
        """The message as numbers of another tensor's type."""
        return self.data.view(like.dtype)

    def done(self) -> None:
        """Gives the memory back."""
        self.nearby.give_back(self.tile, self.number)


class Nearby:
    """The others, each at the end of a Unix socket.

    Args:
        sockets: Tile -> the connection to it.
    """

    def __init__(self, sockets: dict[int, socket.socket]) -> None:
        self._sockets = sockets
        self._blocks: list[_Block] = []
        self._free: list[_Block] = []  # by size
        self._theirs: dict[tuple[int, int], Tensor] = {}
        self._arrived: dict[tuple[int, int], deque[tuple[int, Tensor]]] = {
            (kind, tile): deque() for kind in (PIECES, SUMS) for tile in sockets
        }
        for connection in sockets.values():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE_S, 0))
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, list(sockets.values()), self._descriptors)

    def send(self, kind: Kind, tiles: Sequence[int], pieces: Sequence[Tensor]) -> None:
        """Writes pieces one after the other and tells some tiles."""
        num_bytes = sum(piece.numel() * piece.element_size() for piece in pieces)
        block = self._take(num_bytes)
        pack_into(block.data[:num_bytes].view(pieces[0].dtype), pieces)
        block.readers = len(tiles)
        packet = PACKET.pack(kind, block.number, num_bytes)
        for tile in tiles:
            try:
                if tile in block.known:
                    self._sockets[tile].send(packet)
                else:
                    socket.send_fds(self._sockets[tile], [packet], [block.descriptor])
                    block.known.add(tile)
            except OSError as error:
                raise lost(f"tile {tile}", error) from error

    def receive(self, kind: Kind, tile: int) -> Letter:
        """The next message of a kind from a tile, waited for.

        Raises:
            RunError: Its process is gone.
        """
        arrived = self._arrived[kind, tile]
        while not arrived:
            self._hear(tile)
        return Letter(self, tile, *arrived.popleft())

    def has(self, kind: Kind, tiles: Sequence[int]) -> bool:
        """Whether a message of a kind has come from each of some tiles."""
        return all(self._arrived[kind, tile] or self._hears(kind, tile) for tile in tiles)

    def give_back(self, tile: int, number: int) -> None:
        """Tells the owner of a block that it was read."""
        try:
            self._sockets[tile].send(PACKET.pack(RETURNED, number, 0))
        except OSError:  # who is gone needs no memory; a message that is missing is noticed where it is read
            return

    def _hears(self, kind: Kind, tile: int) -> bool:
        while self._hear(tile, socket.MSG_DONTWAIT):
            if self._arrived[kind, tile]:
                return True
        return False

    def _hear(self, tile: int, flags: int = 0) -> bool:
        """Takes one packet in; False if there is none, now or ever, and it was not to be waited for."""
        try:
            packet, descriptors = self._packet(tile, flags)
        except OSError as error:
            if flags:  # who is gone is missed when a message of theirs is
                return False
            silent = isinstance(error, BlockingIOError)
            reason = TimeoutError(f"silent for {PATIENCE_S} s") if silent else error
            raise lost(f"tile {tile}", reason) from error
        kind, number, num_bytes = PACKET.unpack(packet)
        if kind == RETURNED:
            self._returned(self._blocks[number])
            return True
        if descriptors:
            self._theirs[tile, number] = _mapped(descriptors[0])
            os.close(descriptors[0])
        self._arrived[kind, tile].append((number, self._theirs[tile, number][:num_bytes]))
        return True

    def _packet(self, tile: int, flags: int) -> tuple[bytes, list[int]]:
        connection = self._sockets[tile]
        try:
            packet, found, _, _ = connection.recvmsg(PACKET.size, DESCRIPTOR_ROOM, flags)
        except ConnectionResetError:
            # It has ended without reading all that it was told; what it said before can still be read.
            packet, found, _, _ = connection.recvmsg(PACKET.size, DESCRIPTOR_ROOM, flags)
        if not packet:
            raise ConnectionError("its process has closed the connection")
        # `socket.recv_fds` does not pass flags on.
        return packet, [DESCRIPTOR.unpack(data)[0] for *_, data in found]

    def _returned(self, block: _Block) -> None:
        block.readers -= 1
        if not block.readers:
            insort(self._free, block, key=_size)

    def _take(self, num_bytes: int) -> _Block:
        if not self._free or _size(self._free[-1]) < num_bytes:
            for tile in self._sockets:
                while self._hear(tile, socket.MSG_DONTWAIT):
                    pass
        if self._free and _size(self._free[-1]) >= num_bytes:
            return self._free.pop(bisect_left(self._free, num_bytes, key=_size))
        # Powers of two, so that a few blocks serve messages of many sizes.
        size = max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        descriptor = os.memfd_create("manyhands-tiles")
        self._descriptors.append(descriptor)
        os.ftruncate(descriptor, size)
        self._blocks.append(_Block(len(self._blocks), descriptor, _mapped(descriptor)))
        return self._blocks[-1]


def _size(block: _Block) -> int:
    return block.data.numel()


def meet_nearby(tiles: Sequence[int], tile: int, group: dist.ProcessGroup | None) -> Nearby | None:
    """Connects the ranks of a group if all are processes of one machine; all must call it together.

    Args:
        tiles: Of each rank, the tile that it computes.
        tile: This rank's.
        group: The ranks.
    """
    rank, world = tiles.index(tile), len(tiles)
    token = secrets.token_bytes(TOKEN_BYTES)
    listener = _listener(token)
    place = _place() if listener is not None else secrets.token_bytes(TOKEN_BYTES)
    mine = torch.frombuffer(bytearray(place + token), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine, group=group)
    said = [bytes(one.tolist()) for one in everyone]
    if listener is None or any(one[:TOKEN_BYTES] != place for one in said):
        if listener is not None:
            listener.close()
        return None
    tokens = [one[TOKEN_BYTES:] for one in said]
    sockets: dict[int, socket.socket] = {}
    with listener, suppress(OSError):  # without it messages go as they go between machines
        _connect(rank, tokens, listener, sockets)
    is_whole = torch.tensor([len(sockets) == world - 1], dtype=torch.int32)
    dist.all_reduce(is_whole, dist.ReduceOp.MIN, group=group)
    if not is_whole.item():
        _close(list(sockets.values()), [])
        return None
    return Nearby({tiles[other]: connection for other, connection in sorted(sockets.items())})


def _connect(
    rank: int, tokens: Sequence[bytes], listener: socket.socket, sockets: dict[int, socket.socket]
) -> None:
    """Every rank calls those before it, and says who it is by what only the group knows."""
    for other in range(rank):
        sockets[other] = _socket()
        sockets[other].connect(_address(tokens[other]))
        sockets[other].send(tokens[other] + tokens[rank])
    listener.settimeout(HELLO_S)
    while len(sockets) < len(tokens) - 1:
        connection, _ = listener.accept()
        connection.settimeout(HELLO_S)
        hello = connection.recv(2 * TOKEN_BYTES)
        if hello[:TOKEN_BYTES] != tokens[rank] or hello[TOKEN_BYTES:] not in tokens[rank + 1 :]:
            connection.close()
            continue
        connection.settimeout(None)
        sockets[tokens.index(hello[TOKEN_BYTES:])] = connection


def _listener(token: bytes) -> socket.socket | None:
    if not hasattr(os, "memfd_create"):
        return None  # there are abstract names and nameless files on Linux only
    listener = _socket()
    try:
        listener.bind(_address(token))
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _address(token: bytes) -> bytes:
    return b"\0manyhands-" + hashlib.sha256(token).hexdigest().encode()


def _place() -> bytes:
    """What processes that may share memory have in common: the machine, the network they see, the user."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        network = os.stat("/proc/self/ns/net")
    except OSError:
        return secrets.token_bytes(TOKEN_BYTES)
    said = f"{boot} {network.st_dev} {network.st_ino} {os.getuid()}"
    return hashlib.sha256(said.encode()).digest()[:TOKEN_BYTES]


def _mapped(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


def _close(sockets: Sequence[socket.socket], descriptors: Sequence[int]) -> None:
    for connection in sockets:
        connection.close()
    for descriptor in descriptors:
        os.close(descriptor)
