"""What the exchanges have in common: their settings, the coordinators' job, and which updates are accepted.

Updates carry parameters, or the accumulated change since the blocks were received (`send = "gradients"`, what
the algorithms of paper 001 exchange). Either way an accepted update is a full set of parameters.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from manyhands.errors import UpdateRefused
from manyhands.exchange.member import looks
from manyhands.exchange.merge import MergeSection, Tensors, change_norm, check_update, clip_change
from manyhands.exchange.packing import Packing, PackingName, unpack
from manyhands.hand import Hand, Message, Work
from manyhands.replica import Blocks
from manyhands.settings import Section

__all__ = ["Coordination", "ExchangeSection", "Progress", "accept_updates", "report_merge", "skip_news"]


class ExchangeSection(Section):
    """Who exchanges when (``[exchange]``)."""

    mode: Literal["synchronous", "asynchronous", "neighbours", "epidemic", "push"] = "synchronous"
    rounds: PositiveInt = 20
    coordinator: str | None = None
    fraction: float = Field(default=1.0, gt=0, le=1)
    deadline_s: PositiveFloat | None = None
    slack: float = Field(default=3.0, ge=1)
    send: Literal["parameters", "gradients"] = "parameters"
    compress: PackingName = "none"
    keep: float = Field(default=0.1, gt=0, le=1)
    staleness: NonNegativeFloat = 0.0
    mix: float = Field(default=0.5, gt=0, le=1)
    consensus: Literal["none", "gossip", "ring"] = "none"
    tolerance: float = Field(default=0.01, gt=0, lt=1)
    fanout: PositiveInt = 1
    merge: MergeSection = MergeSection()

    @property
    def packing(self) -> Packing:
        """How updates travel."""
        return Packing(self.compress, self.keep)

    @model_validator(mode="after")
    def _fits_the_mode(self) -> ExchangeSection:
        if self.mode in ("asynchronous", "push") and self.merge.rule != "mean":
            raise ValueError(
                f'merge.rule = "{self.merge.rule}" needs several updates: mode = "{self.mode}" has one'
            )
        if self.mode == "asynchronous" and self.merge.clip_factor is not None:
            raise ValueError('merge.clip_factor needs several updates: mode = "asynchronous" has one')
        if self.mode != "synchronous" and self.fraction != 1:
            raise ValueError(
                f'fraction is of a synchronous round: in mode = "{self.mode}" everybody takes part'
            )
        if self.mode != "asynchronous" and self.staleness:
            raise ValueError(f'staleness needs mode = "asynchronous": "{self.mode}" leaves old updates out')
        if self.mode != "asynchronous" and self.mix != ExchangeSection.model_fields["mix"].default:
            raise ValueError(f'mix needs mode = "asynchronous": "{self.mode}" takes the mean')
        if not self.coordinated and self.coordinator is not None:
            raise ValueError(f'coordinator: mode = "{self.mode}" has none; leave it out')
        if not self.coordinated and self.send == "gradients":
            raise ValueError(
                'send = "gradients" needs a coordinator: neighbours do not start a round from the same blocks'
            )
        if self.mode != "epidemic" and self.fanout != ExchangeSection.model_fields["fanout"].default:
            raise ValueError(f'fanout needs mode = "epidemic": in "{self.mode}" no peers are drawn')
        return self

    @property
    def coordinated(self) -> bool:
        """Whether there is a coordinator."""
        return self.mode in ("synchronous", "asynchronous")

    @model_validator(mode="after")
    def _fits_the_packing(self) -> ExchangeSection:
        if self.compress != "none" and not self.coordinated:
            raise ValueError(
                f'compress = "{self.compress}" needs a coordinator: neighbours send whole blocks'
            )
        if self.compress in ("int8", "topk") and self.send != "gradients":
            raise ValueError(
                f'compress = "{self.compress}" needs send = "gradients": it is too coarse for parameters'
            )
        if self.compress != "topk" and self.keep != ExchangeSection.model_fields["keep"].default:
            raise ValueError(f'keep needs compress = "topk": "{self.compress}" sends every entry')
        return self

    @model_validator(mode="after")
    def _fits_the_consensus(self) -> ExchangeSection:
        if self.consensus != "none" and self.mode != "neighbours":
            raise ValueError(f'consensus needs mode = "neighbours": "{self.mode}" has other ways to agree')
        if self.consensus != "gossip" and self.tolerance != ExchangeSection.model_fields["tolerance"].default:
            raise ValueError(
                f'tolerance needs consensus = "gossip": "{self.consensus}" does not repeat until all agree'
            )
        if self.consensus == "ring" and self.merge.rule != "mean":
            raise ValueError(
                f'merge.rule = "{self.merge.rule}" needs whole versions: consensus = "ring" passes means on'
            )
        for key in ("clip_norm", "clip_factor"):
            if self.consensus == "ring" and getattr(self.merge, key) is not None:
                raise ValueError(f'merge.{key} needs whole versions: consensus = "ring" passes means on')
        return self


@dataclass(frozen=True)
class Coordination:
    """What the coordinator is given.

    Attributes:
        section: The job's settings.
        seed: For the choice of devices.
        blocks: The blocks before the first round.
        holds: Device -> the blocks it holds.
        expected_s: Device -> how long its round should take; deadlines are a multiple of the longest.
        num_examples: Device -> how much data it trains on.
        evaluate: Observes the merged blocks, where they make a whole network.
        evaluate_every: Look every so many rounds (0: only at the end).
    """

    section: ExchangeSection
    seed: int
    blocks: Blocks
    holds: Mapping[str, tuple[str, ...]]
    expected_s: Mapping[str, float]
    num_examples: Mapping[str, int]
    evaluate: Callable[[Blocks], Work] | None = None
    evaluate_every: int = 1

    def blocks_of(self, device: str, blocks: Blocks) -> Blocks:
        """The blocks that a device holds."""
        return {name: blocks[name] for name in self.holds[device]}


@dataclass(frozen=True)
class Progress:
    """What the coordinator saves: enough to go on after a crash."""

    blocks: Blocks
    round: int = 0
    attempt: int = 0
    num_merged: int = 0


def report_merge(hand: Hand, job: Coordination, done: Progress, merged: Sequence[str]) -> None:
    """Says that a round is done; every so often with how good the merged blocks are."""
    observe = None
    if job.evaluate is not None and looks(done.round, job.evaluate_every, job.section.rounds):
        observe = job.evaluate(done.blocks)
    hand.report("merged", observe=observe, round=done.round, peers=list(merged))


async def skip_news(hand: Hand) -> None:
    """Passes over who came and went so far: who is there now is what counts.

    News from before a round would be taken for news of it.
    """
    while await hand.receive("lost", "joined", timeout_s=0) is not None:
        pass


def accept_updates(
    section: ExchangeSection,
    blocks: Blocks,
    updates: Mapping[str, Message],
    holds: Mapping[str, Collection[str]],
) -> tuple[dict[str, dict[str, Tensors]], dict[str, str]]:
    """Checks, completes and clips each device's update of blocks that it holds; says why one was refused."""
    kept: dict[str, dict[str, Tensors]] = {}
    refused: dict[str, str] = {}
    for peer, message in updates.items():
        try:
            _check_held(message, holds[peer])
            kept[peer] = {
                n: _accept_block(section, blocks[n], tensors) for n, tensors in message.blocks.items()
            }
        except UpdateRefused as error:
            refused[peer] = str(error)
    if section.merge.clip_factor is not None:
        _clip_to_the_usual(section.merge.clip_factor, blocks, kept)
    return kept, refused


def _clip_to_the_usual(factor: float, blocks: Blocks, kept: Mapping[str, dict[str, Tensors]]) -> None:
    """Shortens each change of a block to `factor` times the median length of all changes of that block.

    More than half of the devices would have to lie for one of them to get through with a long step.
    """
    for block, current in blocks.items():
        said = {peer: update[block] for peer, update in kept.items() if block in update}
        if len(said) < 2:
            continue
        usual = statistics.median(change_norm(update, current) for update in said.values())
        for peer, update in said.items():
            kept[peer][block], _ = clip_change(update, current, factor * usual)


def _check_held(message: Message, held: Collection[str]) -> None:
    for name in message.blocks:
        if name not in held:
            raise UpdateRefused(f"it does not hold block {name!r}")


def _accept_block(section: ExchangeSection, current: Tensors, update: Tensors) -> Tensors:
    if section.compress != "none":
        update = unpack(section.packing, update, current)
    check_update(update, current)
    if section.send == "gradients":
        update = {n: current[n].to(change.device) + change for n, change in update.items()}
    if section.merge.clip_norm is not None:
        update, _ = clip_change(update, current, section.merge.clip_norm)
    return update
