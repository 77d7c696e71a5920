"""Twelve thousand mutated messages against what reads them: refused and counted, or exactly what may be."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import torch
from lines import expected, weights

from manyhands.errors import MessageDamaged
from manyhands.hand import Message
from manyhands.wire.announcement import Announcement, announce, read_announcement
from manyhands.wire.body import DIGEST_BYTES, leaf_bytes_of, make_body
from manyhands.wire.expected import Expected, read_body
from manyhands.wire.refusals import Refusals

NUM_TEXTS, NUM_BODIES = 6000, 6000
COUNT = 200
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 10**9, 2**63, 2**64, -(2**63), "", "x" * 300, "\x00", "é", [], {}, [[]], [None],
    {"a": {"b": {}}}, "__metadata__", "F32", "model", [0, 10**12], [10**9, 10**9, 10**9], [-1, 5],
    float("inf"),
]  # fmt: skip


def damaged_bytes(raw: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, taken out, put in, doubled or cut off."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(data) + 1)
        how = dice.randrange(5)
        if how == 0 and at < len(data):
            data[at] = dice.randrange(256)
        elif how == 1:
            del data[at : at + dice.randint(1, 9)]
        elif how == 2:
            data[at:at] = dice.randbytes(dice.randint(1, 9))
        elif how == 3:
            data[at:at] = data[at : at + 40]
        elif at:
            del data[at:]
    return bytes(data)


def damaged_value(value: Any, dice: random.Random) -> Any:
    """Something else of JSON in one place."""
    if isinstance(value, dict) and value and dice.random() < 0.8:
        key = dice.choice(list(value))
        how = dice.randrange(4)
        if how == 0:
            return {k: v for k, v in value.items() if k != key}
        if how == 1:
            return {**value, dice.choice(["model:w", "x", "__metadata__", "model:", ":"]): value[key]}
        return {**value, key: damaged_value(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        return [*value[:at], damaged_value(value[at], dice), *value[at + 1 :]]
    return dice.choice(ODD)


def damaged_body(raw: bytes, dice: random.Random) -> bytes:
    """Damaged anywhere, or in the header alone, which is where the reader can be led astray."""
    if dice.random() < 0.4:
        return damaged_bytes(raw, dice)
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length]
    if dice.random() < 0.3:
        header = damaged_bytes(header, dice)
    else:
        said = json.loads(header)
        for _ in range(dice.randint(1, 3)):
            said = damaged_value(said, dice)
        header = json.dumps(said).encode()
    if dice.random() < 0.7:
        header += b" " * (-len(header) % 8)
    claimed = dice.choice([len(header)] * 6 + [0, 2**63, 2**64 - 1, len(header) + 8])
    return claimed.to_bytes(8, "little") + header + raw[8 + length :]


def is_legal(message: Announcement, wanted: Expected) -> bool:
    return (
        message.kind in wanted.kinds
        and 0 <= message.round <= wanted.num_rounds
        and set(message.blocks) <= set(wanted.blocks)
        and message.nbytes <= wanted.max_bytes(message.blocks)
    )


def taken(read: Callable[[], Any], refusals: Refusals) -> Any:
    """What was read; nothing, and one more refused, if it was not what may be."""
    try:
        return read()
    except MessageDamaged as error:
        refusals.add("fuzz", str(error))
        return None


@contextmanager
def little_memory() -> Iterator[None]:
    """An allocation of what a message says it needs, however much, would fail here, and the test with it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_mutated_announcements_are_refused_and_counted_or_legal() -> None:
    dice, wanted, refusals = random.Random(1), expected(count=COUNT), Refusals(lambda *_: None)
    body = make_body({"model": weights(COUNT)})
    base = announce(
        Message("update", 3, {"call": [0, 3]}, {"model": weights(COUNT)}), 1, 7, body, body.digests()
    )
    num_legal = 0
    with little_memory():
        for number in range(NUM_TEXTS):
            if number % 2:
                text = damaged_bytes(base.text(), dice)
            else:
                text = json.dumps(damaged_value(json.loads(base.text()), dice)).encode()
            digests = base.digests if dice.random() < 0.8 else damaged_bytes(base.digests, dice)
            message = taken(lambda t=text, d=digests: read_announcement(t, d, wanted), refusals)
            if message is not None:
                num_legal += 1
                assert is_legal(message, wanted)
    assert refusals.total + num_legal == NUM_TEXTS
    assert refusals.total > NUM_TEXTS / 2


@pytest.mark.parametrize("nbytes", [None, 1 << 30, 1 << 40, (1 << 63) - 1])
def test_tensors_that_the_job_cannot_have_are_refused_before_there_is_room_for_them(
    nbytes: int | None,
) -> None:
    """Also where the announcement has as many digests as they would need."""
    wanted = expected(count=COUNT)
    size = wanted.max_bytes(("model",)) + 1 if nbytes is None else nbytes
    digests = bytes(DIGEST_BYTES) * -(-size // leaf_bytes_of(size))
    text = Announcement(1, 1, "blocks", 3, {}, ("model",), size).text()
    with little_memory(), pytest.raises(MessageDamaged, match="too large"):
        read_announcement(text, digests, wanted)


def test_mutated_tensors_are_refused_and_counted_or_fit_and_the_model_stays() -> None:
    dice, wanted, refusals = random.Random(2), expected(count=COUNT), Refusals(lambda *_: None)
    model = weights(COUNT)
    before = {name: tensor.clone() for name, tensor in model.items()}
    body = make_body({"model": model})
    raw = body.read(0, body.nbytes)
    num_fit = 0
    with little_memory():
        for _ in range(NUM_BODIES):
            data = bytearray(damaged_body(raw, dice))
            blocks = taken(lambda d=data: read_body(d, "update", ("model",), wanted), refusals)
            if blocks is not None:
                num_fit += 1
                for name, tensor in blocks["model"].items():
                    assert (tensor.shape, tensor.dtype) == (model[name].shape, model[name].dtype)
                    assert tensor.isfinite().all()
    assert refusals.total + num_fit == NUM_BODIES
    assert refusals.total > NUM_BODIES / 2
    assert all(torch.equal(model[name], tensor) for name, tensor in before.items())


def test_a_body_that_differs_in_a_single_bit_has_other_digests() -> None:
    dice = random.Random(3)
    body = make_body({"model": weights(COUNT)})
    raw = body.read(0, body.nbytes)
    for _ in range(500):
        data = bytearray(raw)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        other = type(body)((memoryview(bytes(data)),), len(data))
        assert other.digests() != body.digests()
