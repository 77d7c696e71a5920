from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import UpdateRefused
from manyhands.exchange.coordination import ExchangeSection
from manyhands.exchange.packing import Packing, pack, unpack
from manyhands.job import Job
from manyhands.run import train
from manyhands.wire.body import make_body
from manyhands.wire.expected import expect, read_body

numbers = st.floats(-1000, 1000, width=32)
blocks = st.builds(
    lambda values, count: {
        "w": torch.tensor(values).reshape(1, -1),
        "empty": torch.zeros(0, 3),
        "steps": torch.tensor(count),
    },
    st.lists(numbers, min_size=1, max_size=40),
    st.integers(0, 10**6),
)
packings = st.sampled_from([Packing("none"), Packing("fp16"), Packing("int8"), Packing("topk", 0.3)])


@given(blocks, packings)
def test_what_is_sent_and_what_is_left_out_make_up_the_whole(block: dict, packing: Packing) -> None:
    sent, left = pack(packing, block)
    back = unpack(packing, sent, block)
    for name, tensor in block.items():
        assert back[name].dtype == tensor.dtype
        assert torch.allclose(back[name] + left.get(name, 0), tensor, rtol=1e-5, atol=1e-3)
    assert torch.equal(back["steps"], block["steps"])
    bound = {"none": 0.0, "fp16": 0.5, "int8": float(block["w"].abs().max()) / 127, "topk": 1000.0}
    assert float((back["w"] - block["w"]).abs().max()) <= bound[packing.how] + 1e-6


@given(st.lists(numbers, min_size=3, max_size=20), packings)
def test_nothing_is_lost_in_the_long_run(values: list[float], packing: Packing) -> None:
    change = {"w": torch.tensor(values)}
    left: dict[str, torch.Tensor] | None = None
    arrived = torch.zeros(len(values))
    for _ in range(60):
        sent, left = pack(packing, change, left or None)
        arrived += unpack(packing, sent, change)["w"]
    # What is still on its way is bounded however many rounds there were.
    assert torch.allclose(arrived + left.get("w", 0), 60 * change["w"], rtol=1e-3, atol=0.5)


def test_top_k_sends_the_largest_entries_and_no_others() -> None:
    tensors = {"w": torch.tensor([[0.1, -5.0], [3.0, 0.0]])}
    sent, left = pack(Packing("topk", 0.5), tensors)
    assert sent["w#at"].tolist() == [1, 2]
    assert sent["w#value"].tolist() == [-5.0, 3.0]
    assert left["w"].tolist() == [[pytest.approx(0.1), 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("packing", "spoil"),
    [
        (Packing("topk", 0.5), lambda sent: sent.update({"w#at": sent["w#at"] + 100})),
        (Packing("topk", 0.5), lambda sent: sent.update({"w#at": -sent["w#at"] - 1})),
        (Packing("topk", 0.5), lambda sent: sent.update({"w#value": sent["w#value"][:1]})),
        (Packing("topk", 0.5), lambda sent: sent.pop("w#at")),
        (Packing("int8"), lambda sent: sent.pop("w#scale")),
        (Packing("int8"), lambda sent: sent.update({"w": sent["w"].float()})),
        (Packing("int8"), lambda sent: sent.update({"x": sent["w"]})),
        (Packing("fp16"), lambda sent: sent.update({"w": sent["w"].reshape(-1)})),
    ],
)
def test_what_was_not_packed_like_this_is_refused(packing: Packing, spoil: Callable[[dict], object]) -> None:
    block = {"w": torch.arange(4.0).reshape(2, 2)}
    sent, _ = pack(packing, block)
    spoil(sent)
    with pytest.raises(UpdateRefused):
        unpack(packing, sent, block)


@pytest.mark.parametrize("packing", [Packing("fp16"), Packing("int8"), Packing("topk", 0.25)])
def test_the_wire_takes_packed_updates_and_whole_rounds(packing: Packing) -> None:
    block = {"w": torch.randn(100), "steps": torch.tensor(1)}
    wanted = expect({"model": block}, 3, packing)
    sent, _ = pack(packing, block)
    for kind, tensors in (("update", sent), ("round", block)):
        body = make_body({"model": tensors})  # type: ignore[dict-item]
        back = read_body(bytearray(body.read(0, body.nbytes)), kind, ("model",), wanted)
        assert back["model"].keys() == tensors.keys()


@pytest.mark.parametrize("how", ["fp16", "int8", "topk"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_run_with_packed_updates_learns_and_sends_less(
    small_job: Callable[..., Job], tmp_path: Path, how: str, mode: str
) -> None:
    plain = {"mode": mode, "send": "gradients"}
    whole = train(small_job(exchange=plain), tmp_path / "whole")
    packed = train(small_job(exchange=plain | {"compress": how}), tmp_path / "packed")
    sent = {
        name: sum(d["bytes_sent"] for d in result["devices"])
        for name, result in (("whole", whole), ("packed", packed))
    }
    # The coordinator lives on a device, and what it sends is whole.
    assert sent["packed"] < 0.85 * sent["whole"]
    assert packed["accuracy"] > 0.5 * whole["accuracy"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"mode": "neighbours", "compress": "fp16"}, "needs a coordinator"),
        ({"compress": "int8"}, 'needs send = "gradients"'),
        ({"compress": "fp16", "keep": 0.5}, 'keep needs compress = "topk"'),
    ],
)
def test_packing_that_makes_no_sense_is_refused(said: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ExchangeSection(**said)
