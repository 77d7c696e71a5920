from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.blocks import Weights
from manyhands.errors import MessageDamaged
from manyhands.exchange.codec import decode, encode
from manyhands.hand import Message
from manyhands.models import ModelSection, build

names = st.text("abcXYZ019._-", min_size=1, max_size=12)
tensors = st.builds(
    lambda shape, dtype: torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16]),
)
messages = st.builds(
    Message,
    kind=names,
    round=st.integers(0, 10**6),
    facts=st.dictionaries(names, st.one_of(st.integers(-9, 9), st.text(), st.booleans(), st.none())),
    blocks=st.dictionaries(names, st.dictionaries(names, tensors, max_size=3).map(Weights), max_size=3),
    sender=names,
)


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    back = decode(encode(message))
    assert (back.kind, back.round, back.facts, back.sender) == (
        message.kind,
        message.round,
        message.facts,
        message.sender,
    )
    assert set(back.blocks) == set(message.blocks)
    for block, weights in message.blocks.items():
        assert set(back.blocks[block]) == set(weights)
        for name, tensor in weights.items():
            assert back.blocks[block][name].dtype == tensor.dtype
            assert torch.equal(back.blocks[block][name], tensor)


@pytest.mark.parametrize("family", ["lenet5", "mobilenet_v2"])
def test_the_simulator_charges_what_the_wire_takes(family: str) -> None:
    module = build(ModelSection(name=family), (3, 32, 32), 10, seed=0)
    message = Message("update", 12, {"examples": 400}, {"model": Weights(module.state_dict())}, "pi-kitchen")
    assert message.nbytes * 0.97 <= len(encode(message)) <= message.nbytes


@settings(max_examples=300)
@given(messages, st.data())
def test_damaged_bytes_are_refused_and_nothing_else_happens(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for damaged in (bytes(raw), cut):
        try:
            survived = decode(damaged)
        except MessageDamaged:
            continue
        assert isinstance(survived, Message)


def test_too_long_a_message_is_refused_before_it_is_read() -> None:
    raw = encode(Message("update", blocks={"model": Weights({"w": torch.zeros(1000)})}))
    with pytest.raises(MessageDamaged, match="at most 1000"):
        decode(raw, max_bytes=1000)


def test_a_header_that_lies_about_its_length_is_refused() -> None:
    with pytest.raises(MessageDamaged):
        decode((1 << 62).to_bytes(8, "little") + b"{}")
