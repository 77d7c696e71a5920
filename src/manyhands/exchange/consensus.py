"""The ring: all devices of a job come to the mean of a block, each sending about twice the block.

An all-reduce (Patarasuk and Yuan 2009): each device cuts its version into as many chunks as there are
devices. Chunks go round the ring, in each stage one from every device to the next, which adds its own to it;
after one turn every device has one chunk of the mean over the data. In a second turn these are handed on.

A ring is as strong as its weakest link. Whoever cannot go on in a round says so to both sides, who pass it
on, and keeps its own version: the mean is taken over when all of its chunks are there, or not at all.
docs/decisions/0009-consensus.md has the reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from manyhands.blocks import Weights
from manyhands.errors import UpdateRefused
from manyhands.exchange.coordination import skip_news
from manyhands.exchange.merge import MergeSection, Tensors, check_update, merge
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Blocks

__all__ = ["RING_KINDS", "Belt", "Ring", "all_reduce", "make_rings"]

RING_KINDS = ("chunk", "broken")
"""What those in a ring tell each other: a chunk of their blocks, or that the ring is broken in a round."""


@dataclass(frozen=True)
class Ring:
    """One device's place in a ring.

    Attributes:
        position: Where it stands.
        data: How much each device counts, from position 0 on.
        before: Whom it hears chunks from.
        after: Whom it sends chunks to.
    """

    position: int
    data: tuple[int, ...]
    before: str
    after: str

    @property
    def size(self) -> int:
        """How many devices there are, and chunks."""
        return len(self.data)

    @property
    def num_stages(self) -> int:
        """How many chunks each device sends in a round."""
        return 2 * (self.size - 1)

    def sent(self, stage: int) -> int:
        """The chunk that it sends in a stage."""
        return (self.position - stage) % self.size

    def due(self, stage: int) -> int:
        """The chunk that it receives in a stage."""
        return (self.position - stage - 1) % self.size

    def weight_due(self, stage: int) -> int:
        """The data behind the chunk that it receives: of one more device in each stage, then of all."""
        return sum(self.data[self.position - 1 - i] for i in range(min(stage + 1, self.size)))

    def chunk_bytes(self, blocks: Blocks) -> int:
        """About what the message with a chunk of some blocks takes."""
        return Message("chunk").nbytes + sum(block.nbytes for block in blocks.values()) // self.size


def make_rings(order: Sequence[str], num_examples: Mapping[str, int]) -> dict[str, Ring]:
    """Every device's place in a ring of two or more; one without data counts as having one example."""
    data = tuple(max(num_examples[name], 1) for name in order)
    return {
        name: Ring(position, data, order[position - 1], order[(position + 1) % len(order)])
        for position, name in enumerate(order)
    }


class Belt:
    """What came along the ring and is still of use.

    Attributes:
        newest: The newest round that anybody in the ring is known to be in.
    """

    def __init__(self, ring: Ring, num_rounds: int) -> None:
        self.newest = 0
        self._ring = ring
        self._num_rounds = num_rounds
        self._chunks: dict[tuple[int, int], Message] = {}
        self._broken: defaultdict[int, set[str]] = defaultdict(set)

    def take(self, hand: Hand, message: Message, number: int) -> None:
        """Puts a message away that came in a round, or says why not."""
        reason = self._misfit(message)
        if reason:
            hand.report("refused", peer=message.sender, round=message.round, reason=reason)
            return
        self.newest = max(self.newest, message.round, message.facts.get("newest", 0))
        if message.round < number:
            if message.kind == "chunk":
                hand.report("late", peer=message.sender, round=message.round)
        elif message.kind == "broken":
            self._broken[message.round].add(message.sender)
        else:
            self._chunks[message.round, message.facts["stage"]] = message
            self._keep({number, self.newest})

    def pop(self, number: int, stage: int) -> Message | None:
        """The chunk of a stage, if it is there; it is given once."""
        return self._chunks.pop((number, stage), None)

    def broken(self, number: int) -> bool:
        """Whether there is no use in waiting for chunks of a round: somebody said so, or has gone on."""
        return number in self._broken or self.newest > number

    def who_knows(self, number: int) -> set[str]:
        """Those who said that the ring is broken in a round."""
        return self._broken.get(number, set())

    def forget(self, number: int) -> None:
        """Drops what is older than a round."""
        self._keep({n for n, _ in self._chunks if n >= number})
        for old in [n for n in self._broken if n < number]:
            del self._broken[old]

    def _keep(self, rounds: set[int]) -> None:
        self._chunks = {step: chunk for step, chunk in self._chunks.items() if step[0] in rounds}

    def _misfit(self, message: Message) -> str:
        ring = self._ring
        said_by = (ring.before,) if message.kind == "chunk" else (ring.before, ring.after)
        if message.sender not in said_by:
            return "not beside it in the ring"
        told = (message.round, message.facts.get("newest", 0))
        if not all(isinstance(number, int) and 0 <= number < self._num_rounds for number in told):
            return "there is no such round"
        stage = message.facts.get("stage", -1)
        if message.kind == "chunk" and not (isinstance(stage, int) and 0 <= stage < ring.num_stages):
            return "there is no such stage"
        return ""


async def all_reduce(
    hand: Hand, ring: Ring, belt: Belt, blocks: Blocks, number: int, wait_s: float
) -> dict[str, Weights]:
    """The mean of some blocks over the data of all devices, as they stand in a round.

    Returns:
        The blocks; none if the ring is broken in this round.
    """
    await skip_news(hand)
    belt.forget(number)
    chunks = None
    if {ring.before, ring.after} <= set(hand.peers):
        chunks = await _pass_round(hand, ring, belt, blocks, number, hand.seconds + wait_s)
    if chunks is None:
        await _tell_broken(hand, ring, belt, number)
        return {}
    joined = await hand.compute(_join_work(blocks, chunks, number))
    return dict(joined.weights)


async def _pass_round(
    hand: Hand, ring: Ring, belt: Belt, blocks: Blocks, number: int, deadline_s: float
) -> list[Blocks] | None:
    """Both turns of the chunks: all of them with the data of all in it; None if the ring is broken."""
    cut = await hand.compute(_cut_work(blocks, ring.size, number))
    chunks: list[Blocks] = [
        {block: cut.weights[f"{chunk}/{block}"] for block in blocks} for chunk in range(ring.size)
    ]
    weight = ring.data[ring.position]
    for stage in range(ring.num_stages):
        facts = {"stage": stage, "weight": weight}
        await hand.send(ring.after, Message("chunk", number, facts, chunks[ring.sent(stage)]))
        word = await _await_chunk(hand, ring, belt, number, stage, deadline_s)
        if word is None:
            return None
        due = ring.due(stage)
        taken = await hand.compute(_take_work(ring, chunks[due], word, stage))
        if taken.facts["refused"]:
            hand.report("refused", peer=word.sender, round=number, reason=taken.facts["refused"][word.sender])
            return None
        chunks[due], weight = taken.weights, taken.facts["weight"]
    return chunks


async def _await_chunk(
    hand: Hand, ring: Ring, belt: Belt, number: int, stage: int, deadline_s: float
) -> Message | None:
    """The chunk of a stage; None if it will not come, or time is up."""
    while not belt.broken(number):
        if (word := belt.pop(number, stage)) is not None:
            return word
        message = await hand.receive(
            *RING_KINDS, "lost", "joined", timeout_s=max(deadline_s - hand.seconds, 0.0)
        )
        if message is not None and message.kind in RING_KINDS:
            belt.take(hand, message, number)
        elif message is None or message.sender in (ring.before, ring.after):
            # Silent, lost, or back without what it was sent.
            hand.report("missed", round=number, peers=[message.sender if message else ring.before])
            return None
    return None


async def _tell_broken(hand: Hand, ring: Ring, belt: Belt, number: int) -> None:
    """Says to both sides that they need not wait, and which round others are in; not to who said so."""
    told = Message("broken", number, {"newest": max(belt.newest, number)})
    for peer in dict.fromkeys((ring.after, ring.before)):
        if peer in hand.peers and peer not in belt.who_knows(number):
            await hand.send(peer, told)


# Arithmetic. A chunk is the mean so far of those it has passed, so that its numbers stay in range in any
# dtype; with it goes how much data that was. Whole numbers travel as float64 and are rounded in the end.


def _cut_work(blocks: Blocks, num_chunks: int, number: int) -> Work:
    """Gives each chunk of each block, as ``<chunk>/<block>``."""

    def run() -> Outcome:
        chunks = {}
        for block, tensors in blocks.items():
            pieces = {kind: flat.tensor_split(num_chunks) for kind, flat in _flat(tensors).items()}
            for chunk in range(num_chunks):
                chunks[f"{chunk}/{block}"] = Weights({kind: p[chunk].clone() for kind, p in pieces.items()})
        return Outcome({}, chunks)

    return Work("cut", run, 0.0, {"round": number})


def _take_work(ring: Ring, own: Blocks, word: Message, stage: int) -> Work:
    """Checks a chunk that came and, in the first turn, takes the mean of it and the device's own."""

    def run() -> Outcome:
        try:
            _check_chunk(word, own, ring.weight_due(stage))
        except UpdateRefused as error:
            return Outcome({"refused": {word.sender: str(error)}})
        behind, mine = word.facts["weight"], ring.data[ring.position]
        if stage >= ring.size - 1:
            return Outcome({"refused": {}, "weight": behind}, word.blocks)
        means = {
            block: Weights(merge(MergeSection(), [(mine, tensors), (behind, word.blocks[block])]))
            for block, tensors in own.items()
        }
        return Outcome({"refused": {}, "weight": behind + mine}, means)

    adds = stage < ring.size - 1  # afterwards finished chunks are only handed on
    flops = 2 * sum(chunk.nbytes / 4 for chunk in word.blocks.values()) if adds else 0.0
    return Work("take", run, flops, {"round": word.round})


def _check_chunk(word: Message, own: Blocks, weight: int) -> None:
    if word.facts.get("weight") != weight:
        raise UpdateRefused(f"a chunk with the data {word.facts.get('weight')} behind it, not {weight}")
    if word.blocks.keys() != own.keys():
        raise UpdateRefused(
            f"chunks of other blocks: {', '.join(sorted(word.blocks.keys() ^ own.keys())[:3])}"
        )
    for block, tensors in own.items():
        check_update(word.blocks[block], tensors)


def _join_work(blocks: Blocks, chunks: Sequence[Blocks], number: int) -> Work:
    """Puts the chunks together to blocks again, each tensor where the device's own is."""

    def run() -> Outcome:
        return Outcome(
            {"refused": {}},
            {name: Weights(_joined(own, [chunk[name] for chunk in chunks])) for name, own in blocks.items()},
        )

    return Work("merge", run, 0.0, {"round": number})


def _joined(own: Tensors, chunks: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """The tensors of a block, from its chunks in order."""
    joined = {}
    for kind, names in _kinds(own).items():
        device = own[names[0]].device
        flat = torch.cat([chunk[kind].to(device) for chunk in chunks])
        for name, part in zip(names, flat.split_with_sizes([own[n].numel() for n in names]), strict=True):
            whole = part if own[name].is_floating_point() else part.round()
            joined[name] = whole.to(own[name].dtype, copy=True).reshape(own[name].shape)
    return {name: joined[name] for name in own}


def _flat(tensors: Tensors) -> dict[str, torch.Tensor]:
    """All tensors that travel as one kind of number, one after the other."""
    return {
        kind: torch.cat([tensors[name].reshape(-1).to(getattr(torch, kind)) for name in names])
        for kind, names in _kinds(tensors).items()
    }


def _kinds(tensors: Tensors) -> dict[str, list[str]]:
    """The kind of number as which tensors travel -> their names, in the same order on every device."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(tensors):
        dtype = tensors[name].dtype if tensors[name].is_floating_point() else torch.float64
        kinds[str(dtype).removeprefix("torch.")].append(name)
    return kinds
