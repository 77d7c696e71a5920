"""Messages as bytes: one safetensors file in memory, its header holding what is not a tensor.

Nothing that arrives is trusted: size is checked before anything is allocated, and bytes that are not a
message raise `MessageDamaged`, never anything else. There is no pickle anywhere.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from manyhands.blocks import Weights
from manyhands.errors import MessageDamaged
from manyhands.hand import Message

__all__ = ["MAX_MESSAGE_BYTES", "decode", "encode"]

MAX_MESSAGE_BYTES = 1 << 30
"""What a receiver takes if it is not told less."""

MAX_HEADER_BYTES = 4 << 20


def encode(message: Message) -> bytes:
    """The message as bytes; about `message.nbytes` of them."""
    tensors = {
        f"{block}:{name}": tensor.cpu().contiguous()
        for block, weights in message.blocks.items()
        for name, tensor in weights.items()
    }
    head = {"kind": message.kind, "round": message.round, "sender": message.sender, "facts": message.facts}
    head["blocks"] = list(message.blocks)
    return save(tensors, metadata={"message": json.dumps(head, separators=(",", ":"), allow_nan=False)})


def decode(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """The message that some bytes hold.

    Raises:
        MessageDamaged: if they are too many, cut short, or not a message.
    """
    if len(data) > max_bytes:
        raise MessageDamaged(f"{len(data)} bytes, and at most {max_bytes} are taken")
    try:
        head = _head(data)
        blocks: dict[str, dict[str, Any]] = {block: {} for block in head["blocks"]}
        for key, tensor in load(data).items():
            block, _, name = key.partition(":")
            blocks[block][name] = tensor
        return Message(
            str(head["kind"]),
            int(head["round"]),
            dict(head["facts"]),
            {block: Weights(tensors) for block, tensors in blocks.items()},
            str(head["sender"]),
        )
    except (
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        struct.error,
        RecursionError,
    ) as error:
        raise MessageDamaged(f"not a message: {type(error).__name__}: {error}") from error


def _head(data: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise ValueError("the header is longer than the message")
    head: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["message"])
    return head
