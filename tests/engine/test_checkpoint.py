from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from manyhands.blocks import Weights
from manyhands.engine import checkpoint as module
from manyhands.engine.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from manyhands.engine.cores import Cores
from manyhands.engine.holdings import Keeping
from manyhands.engine.participant import Participant
from manyhands.engine.simulate import Simulation, Until
from manyhands.errors import RunError
from manyhands.fleet import FleetSection, make_fleet
from manyhands.hand import Hand, Outcome, Work


def piece(value: float) -> Weights:
    return Weights({"frames": torch.full((1000,), value)}, lasting=True)


def soon_replaced(value: float) -> Weights:
    return Weights({"w": torch.full((3,), value)})


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """What changes whenever a piece is written anew."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*.piece")}


def values(checkpoint: Checkpoint | None) -> dict[str, dict[str, list[float]]]:
    assert checkpoint is not None
    return {h: {name: t.tolist() for name, t in w.items()} for h, w in checkpoint.holdings.items()}


def plain(held: dict[str, Weights]) -> dict[str, dict[str, list[float]]]:
    return {holder: {name: t.tolist() for name, t in w.items()} for holder, w in held.items()}


def test_a_lasting_piece_is_written_once_and_what_changes_each_time(tmp_path: Path) -> None:
    old = piece(1.0)
    write_checkpoint(tmp_path, "job", 10, {"1/memory": old, "2/net": soon_replaced(1.0)})
    before = identities(tmp_path)
    held = {"1/memory": old, "3/memory": piece(2.0), "4/net": soon_replaced(2.0)}
    path = write_checkpoint(tmp_path, "job", 20, held)
    assert identities(tmp_path)["1%2Fmemory.piece"] == before["1%2Fmemory.piece"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, "1%2Fmemory.piece", "3%2Fmemory.piece"]
    assert path.stat().st_size < 1000 < (tmp_path / "1%2Fmemory.piece").stat().st_size
    assert values(read_checkpoint(tmp_path)) == plain(held)


def test_a_piece_that_nobody_holds_any_more_is_removed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "job", 10, {"1/memory": piece(1.0), "2/memory": (kept := piece(2.0))})
    write_checkpoint(tmp_path, "job", 20, {"2/memory": kept})
    assert list(identities(tmp_path)) == ["2%2Fmemory.piece"]
    write_checkpoint(tmp_path, "job", 30, {})
    assert [path.name for path in tmp_path.iterdir()] == ["000000000030.safetensors"]


def test_what_was_read_is_lasting_again_and_not_written_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "job", 10, {"1/memory": piece(1.0), "2/net": soon_replaced(1.0)})
    before = identities(tmp_path)
    for num_events in (20, 30, 40):
        checkpoint = read_checkpoint(tmp_path)
        assert checkpoint is not None
        held = {}
        for holder, stored in checkpoint.holdings.items():
            held[holder] = Weights.absent(stored.nbytes)
            held[holder].fill(stored)
        assert (held["1/memory"].lasting, held["2/net"].lasting) == (True, False)
        write_checkpoint(tmp_path, "job", num_events, held)
    assert identities(tmp_path) == before
    assert values(read_checkpoint(tmp_path))["1/memory"]["frames"][:2] == [1.0, 1.0]


def test_one_piece_of_two_holders_has_one_file_also_after_a_resume(tmp_path: Path) -> None:
    both = piece(1.0)
    write_checkpoint(tmp_path, "job", 10, {"1/memory": both})
    before = identities(tmp_path)
    write_checkpoint(tmp_path, "job", 20, {"1/memory": both, "5/memory": both})
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.holdings["1/memory"] is checkpoint.holdings["5/memory"]
    write_checkpoint(tmp_path, "job", 30, {"5/memory": checkpoint.holdings["5/memory"]})
    assert identities(tmp_path) == before
    assert values(read_checkpoint(tmp_path)).keys() == {"5/memory"}


def dying(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """A kill in place of the so-manieth call."""
    calls = itertools.count()

    def die_or_go_on(*args: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise KeyboardInterrupt
        return function(*args, **options)

    return die_or_go_on


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("step", ["save_file", "replace", "unlink", "fsync"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, at: int
) -> None:
    kept, dropped = piece(1.0), piece(2.0)
    old = {"1/memory": kept, "2/memory": dropped, "3/net": soon_replaced(1.0)}
    new = {"1/memory": kept, "4/memory": piece(3.0), "5/memory": piece(4.0), "6/net": soon_replaced(2.0)}
    write_checkpoint(tmp_path, "job", 10, old)
    place, name = {"save_file": (module, step), "fsync": (os, step)}.get(step, (Path, step))
    with monkeypatch.context() as patch:
        patch.setattr(place, name, dying(getattr(place, name), at))
        try:
            write_checkpoint(tmp_path, "job", 20, new)
        except KeyboardInterrupt:
            pass
        else:
            assert at >= 2  # so early, there is a step to be killed at
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert values(found) == plain(old if found.num_events == 10 else new)
    # Going on from there ends with nothing but what is referred to.
    write_checkpoint(tmp_path, "job", 30, dict(found.holdings))
    pieces = {f"{h.replace('/', '%2F')}.piece" for h, w in found.holdings.items() if w.lasting}
    assert {path.name for path in tmp_path.iterdir()} == {"000000000030.safetensors", *pieces}
    assert values(read_checkpoint(tmp_path)) == values(found)


def test_a_piece_from_events_that_were_cut_off_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, "job", 10, {"1/net": soon_replaced(1.0)})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying(Path.replace, 1))
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(tmp_path, "job", 20, {"2/memory": piece(1.0)})
    assert identities(tmp_path)
    write_checkpoint(tmp_path, "job", 20, {"2/memory": piece(1.5)})
    assert values(read_checkpoint(tmp_path))["2/memory"]["frames"][0] == 1.5


@pytest.mark.parametrize("damage", ["gone", "cut", "rubbish"])
def test_a_piece_that_is_missing_or_damaged_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    write_checkpoint(tmp_path, "job", 10, {"1/memory": piece(1.0)})
    (path,) = tmp_path.glob("*.piece")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:500] if damage == "cut" else b"rubbish")
    with pytest.raises(RunError, match=r"1%2Fmemory\.piece: not a whole checkpoint") as error:
        read_checkpoint(tmp_path)
    assert "\n" not in str(error.value)
    assert f"delete {tmp_path}" in str(error.value)


def test_a_piece_that_somebody_removed_meanwhile_is_written_again(tmp_path: Path) -> None:
    held = {"1/memory": piece(1.0)}
    write_checkpoint(tmp_path, "job", 10, held)
    (tmp_path / "1%2Fmemory.piece").unlink()
    write_checkpoint(tmp_path, "job", 20, held)
    assert values(read_checkpoint(tmp_path)) == plain(held)


def test_a_piece_that_cannot_be_written_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise SafetensorError("no space left on device")

    write_checkpoint(tmp_path, "job", 10, {"1/memory": piece(1.0)})
    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(RunError, match=r"2%2Fmemory\.piece: cannot be written .* make room and resume"):
        write_checkpoint(tmp_path, "job", 20, {"2/memory": piece(1.0)})
    assert values(read_checkpoint(tmp_path)).keys() == {"1/memory"}


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
tensors = st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(torch.tensor)
weights = st.builds(
    lambda held, lasting: Weights(held, lasting=lasting),
    st.dictionaries(names, tensors, max_size=3),
    st.booleans(),
)


@given(st.lists(st.dictionaries(names, weights, max_size=4), min_size=1, max_size=4))
def test_holdings_come_back_equal_after_every_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[dict[str, Weights]]
) -> None:
    """Each checkpoint holds some of what the one before held, and more."""
    folder, held = tmp_path_factory.mktemp("checkpoint"), {}
    for number, new in enumerate(drawn, 1):
        kept = {holder: w for i, (holder, w) in enumerate(held.items()) if i % 3}
        held = kept | {f"{number}/{name}": w for name, w in new.items()}
        write_checkpoint(folder, "job", number, held)
        checkpoint = read_checkpoint(folder)
        assert values(checkpoint) == plain(held)
        assert checkpoint is not None
        assert {h: w.lasting for h, w in checkpoint.holdings.items()} == {
            h: w.lasting for h, w in held.items()
        }


# In a run.


def learned(memory: tuple[Weights, ...], network: Weights) -> Outcome:
    """A new piece and a new network, which depend on all there is."""
    total = float(network["w"][0]) + sum(float(held["frames"][0]) for held in memory) + 1
    return Outcome({}, {"memory": piece(total), "net": soon_replaced(total % 97)})


def gathers(num_rounds: int, most: int) -> Callable[[Hand], Any]:
    """Makes a piece a round and holds the last few."""

    async def program(hand: Hand) -> float:
        memory: tuple[Weights, ...] = ()
        network = soon_replaced(0.0)
        for number in range(num_rounds):
            outcome = await hand.compute(Work("train", partial(learned, memory, network), flops=1e6))
            memory = (*memory, outcome.weights["memory"])[-most:]
            network = outcome.weights["net"]
            hand.report("round", round=number + 1)
        return float(network["w"][0])

    return program


class Cut(Simulation):
    """Stops dead after so many events."""

    stop_after = 10**9

    def emit(self, *args: Any, **options: Any) -> None:
        if self.journal.num_events >= self.stop_after:
            raise KeyboardInterrupt
        super().emit(*args, **options)


def run(folder: Path, recorded: list[str], stop_after: int = 10**9) -> tuple[dict[str, Any], list[str]]:
    """Goes on in a folder; what the hands ended with (nothing, if stopped) and the whole trace."""
    fleet = make_fleet(FleetSection.model_validate({"device": [{"name": "a", "kind": "laptop"}]}), seed=0)
    checkpoint = read_checkpoint(folder)
    lines = recorded[: checkpoint.num_events if checkpoint else 0]
    simulation = Cut(
        fleet,
        {"a": Participant(gathers(12, most=3), "a", ())},
        lambda event, line: lines.append(line),
        cores=Cores(0),
        until=Until(tuple(lines), checkpoint),
        keeping=Keeping(folder, "job", 0.0, before=lambda: None, at="round"),
    )
    simulation.stop_after = stop_after
    try:
        return simulation.run(), lines
    except KeyboardInterrupt:
        return {}, lines


def test_a_run_resumed_again_and_again_writes_each_piece_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, whole = run(tmp_path / "whole", [])
    written: list[str] = []
    save_file = module.save_file

    def spying(held: Any, path: Path, **options: Any) -> None:
        written.append(path.name)
        save_file(held, path, **options)

    monkeypatch.setattr(module, "save_file", spying)
    lines: list[str] = []
    for stop_after in (8, 12, 16, 20):  # each just after a round, so that nothing has to be made again
        _, lines = run(tmp_path / "cut", lines, stop_after)
        assert len(list((tmp_path / "cut").glob("*.piece"))) == 3
    resumed, lines = run(tmp_path / "cut", lines)
    assert (resumed, lines) == (ends, whole)
    pieces = [name for name in written if "memory" in name]
    assert len(pieces) == len(set(pieces)) == 12
