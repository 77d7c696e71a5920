from __future__ import annotations

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lines import JOB, weights
from safetensors.torch import load

from manyhands.blocks import Weights
from manyhands.errors import MessageDamaged
from manyhands.wire.body import leaf_bytes_of, make_body, name_of
from manyhands.wire.expected import expect, read_body
from manyhands.wire.shelf import Shelf

tensors = st.builds(
    lambda shape, dtype: torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool, torch.uint8]),
)
blocks = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: ":" not in name),
    st.dictionaries(st.text(max_size=8), tensors, max_size=3).map(Weights),
    min_size=1,
    max_size=3,
)


@given(blocks)
def test_a_body_is_a_safetensors_file_and_is_read_back_without_a_copy(named: dict[str, Weights]) -> None:
    body = make_body(named)
    data = bytearray(body.read(0, body.nbytes))
    assert len(data) == body.nbytes
    by_library = load(bytes(data))
    back = read_body(data, "blocks", tuple(named), expect(named, 1))
    assert {block: set(back[block]) for block in named} == {block: set(named[block]) for block in named}
    for block, ours in named.items():
        for name, tensor in ours.items():
            assert torch.equal(back[block][name], tensor)
            assert torch.equal(by_library[f"{block}:{name}"], tensor)
            assert back[block][name].dtype == tensor.dtype
    assert make_body(back).read(0, body.nbytes) == data  # whoever has received it offers the same bytes


def test_any_part_of_a_body_is_the_same_part_of_the_whole() -> None:
    body = make_body({"model": weights(5000), "other": weights(10)})
    whole = body.read(0, body.nbytes)
    for start in range(0, body.nbytes, 997):
        for length in (1, 8, 1000, 30_000):
            assert body.read(start, start + length) == whole[start : start + length]
    ends = [sum(map(len, body.parts[:count])) for count in range(len(body.parts) + 1)]
    for start, stop in itertools.combinations(ends, 2):
        assert body.read(start, stop) == whole[start:stop]


def test_digests_do_not_depend_on_threads() -> None:
    body = make_body({"model": weights(300_000)})
    with ThreadPoolExecutor(3) as executor:
        assert body.digests(executor) == body.digests()
    assert len(body.digests()) == 32 * -(-body.nbytes // leaf_bytes_of(body.nbytes))


@pytest.mark.parametrize("size", [1, 1 << 18, 1 << 28, (1 << 28) + 1, 1 << 30])
def test_there_are_never_more_leaves_than_an_announcement_holds(size: int) -> None:
    assert -(-size // leaf_bytes_of(size)) <= 1024


def test_pieces_of_a_block_fit_by_kind_of_number_and_size() -> None:
    whole = expect({"model": weights(100)}, 3)

    def read(piece: dict[str, torch.Tensor]) -> object:
        body = make_body({"model": Weights(piece)})
        return read_body(bytearray(body.read(0, body.nbytes)), "chunk", ("model",), whole)

    read({"float32": torch.zeros(50), "float64": torch.zeros(1).double()})
    for odd in ({"float32": torch.zeros(101)}, {"float32": torch.zeros(3).double()}, {"w": torch.zeros(3)}):
        with pytest.raises(MessageDamaged):
            read(odd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_numbers_may_be_large_but_must_be_finite(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max

    def read(numbers: list[float]) -> torch.Tensor:
        named = {"model": Weights({"w": torch.tensor(numbers, dtype=dtype)})}
        body = make_body(named)
        return read_body(bytearray(body.read(0, body.nbytes)), "blocks", ("model",), expect(named, 1))[
            "model"
        ]["w"]

    assert read([largest] * 5).isfinite().all()  # although their sum is not
    for odd in (float("inf"), float("-inf"), float("nan")):
        with pytest.raises(MessageDamaged, match="not finite"):
            read([1.0] * 100 + [odd])
    with pytest.raises(MessageDamaged, match="not finite"):
        read([float("inf"), float("-inf"), largest])


def test_received_blocks_are_offered_as_long_as_somebody_holds_them() -> None:
    with ThreadPoolExecutor(1) as executor:
        shelf = Shelf(JOB, "me", ["a"], executor)
        held = {"model": weights(100)}
        digest = name_of(make_body(held).digests())
        shelf.keep(digest, held)
        found = shelf._find(digest)
        assert found is not None
        assert name_of(found.digests()) == digest
        del held, found
        gc.collect()
        assert shelf._find(digest) is None
