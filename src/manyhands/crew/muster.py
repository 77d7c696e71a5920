"""Who forms a group with whom: what the devices of a tile group tell each other before they train together.

Devices on hosts of their own see who is there, each for itself, and tell the others how they stand: which
formation was the last they know of, whether they are in one, whether they are done. When all who are there
are free, the first of them by rank calls: it names the roster, a new number, and where it serves the store at
which they meet (`crew.meeting`). A group that breaks is followed by another call, and one that finds others
waiting ends after its round for the same purpose. Nothing here reads a clock or a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.errors import MessageDamaged
from manyhands.hand import Facts

__all__ = ["Call", "Muster", "read_call"]

MAX_NUMBER = 1 << 31
MAX_HOST_CHARS = 255
REST_S = 30.0
"""How long one that did not come is left out; twice as long each time."""

MAX_REST_S = 3600.0


@dataclass(frozen=True)
class Call:
    """A device calls others to form a group.

    Attributes:
        number: Of the formation.
        roster: Who is called, by rank; the first calls, and serves the store.
        host: Where the store is.
        port: Its port.
    """

    number: int
    roster: tuple[str, ...]
    host: str
    port: int

    @property
    def facts(self) -> Facts:
        """As it is sent."""
        return {"number": self.number, "roster": list(self.roster), "host": self.host, "port": self.port}


def read_call(facts: Facts, sender: str, ranked: Sequence[str]) -> Call:
    """A call as it came, from somebody who may say anything.

    Raises:
        MessageDamaged: It cannot be what the device may call.
    """
    number, roster, host, port = (facts.get(key) for key in ("number", "roster", "host", "port"))
    if type(number) is not int or not 0 < number < MAX_NUMBER:
        raise MessageDamaged("a call without a number")
    if not isinstance(roster, list) or not roster or roster != [n for n in ranked if n in roster]:
        raise MessageDamaged("a call for a roster that cannot be")
    if roster[0] != sender:
        raise MessageDamaged("a call by one who is not the first of its roster")
    if not isinstance(host, str) or not 0 < len(host) <= MAX_HOST_CHARS or not host.isascii():
        raise MessageDamaged("a call to no place")
    if type(port) is not int or not 0 < port < 1 << 16:
        raise MessageDamaged("a call to no port")
    return Call(number, tuple(roster), host, port)


@dataclass
class _Standing:
    """How a peer stands, as it told last."""

    said: int = -1
    busy: bool = True  # until it says otherwise
    number: int = 0


class Muster:
    """One device's view of the others.

    Args:
        name: This device.
        ranked: All devices of the group, by rank.
        material: What its data is, in a word; others must have the same.
        quorum: How many suffice to begin, after a while.
    """

    def __init__(self, name: str, ranked: Sequence[str], material: str, quorum: int | None = None) -> None:
        self.name, self.ranked = name, tuple(ranked)
        self.number, self.busy, self.done = 0, False, False
        self._material = material
        self._quorum = min(quorum or len(self.ranked), len(self.ranked))
        self._said = 0
        self._peers: dict[str, _Standing] = {}
        self._seen: set[str] = set()
        self._done: set[str] = set()
        self._misfits: set[str] = set()
        self._rest_until_s: dict[str, float] = {}
        self._num_rests: dict[str, int] = {}

    # What others do and say.

    def presence(self, peer: str, here: bool) -> None:
        """Takes note of who comes and goes; one that was started again has to say anew how it stands."""
        self._peers.pop(peer, None)
        if here:
            self._peers[peer] = _Standing()
            self._seen.add(peer)
            self._misfits.discard(peer)

    def hear(self, peer: str, facts: Facts) -> str:
        """Takes what a peer says of itself; says why nothing can be computed together, if so.

        Raises:
            MessageDamaged: It is not what a device says.
        """
        said, number = facts.get("said"), facts.get("number")
        if type(said) is not int or type(number) is not int or not 0 <= number < MAX_NUMBER:
            raise MessageDamaged("a greeting without its numbers")
        standing = self._peers.get(peer)
        if standing is None or said <= standing.said:
            return ""  # gone in the meantime, or overtaken
        standing.said, standing.number = said, number
        standing.busy = facts.get("busy") is not False
        (self._done.add if facts.get("done") is True else self._done.discard)(peer)
        if facts.get("material") != self._material and peer not in self._misfits:
            self._misfits.add(peer)
            return "its data is not the same; a tile group's devices all need the same data"
        return ""

    def greeting(self) -> Facts:
        """What this device says of itself; each time with a higher number, so that old ones are known."""
        self._said += 1
        return {
            "said": self._said,
            "number": self.number,
            "busy": self.busy,
            "done": self.done,
            "material": self._material,
        }

    def rest(self, peer: str, now_s: float) -> None:
        """Leaves out for a while one that was called and did not come, or could not be reached."""
        self._num_rests[peer] = count = self._num_rests.get(peer, -1) + 1
        self._rest_until_s[peer] = now_s + min(REST_S * 2**count, MAX_REST_S)

    # What follows from it.

    @property
    def here(self) -> tuple[str, ...]:
        """Those who are there, this device among them, by rank."""
        return tuple(name for name in self.ranked if name == self.name or name in self._peers)

    @property
    def lost(self) -> tuple[str, ...]:
        """Those who were there and are not."""
        return tuple(name for name in self.ranked if name in self._seen and name not in self._peers)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those who are not there."""
        return tuple(name for name in self.ranked if name not in self.here)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The others who may still need something."""
        over = self._done | self._misfits | {self.name}
        return tuple(name for name in self.ranked if name not in over)

    def usable(self, now_s: float) -> tuple[str, ...]:
        """Those who are there and with whom a group can be formed, by rank."""
        resting = {name for name, until_s in list(self._rest_until_s.items()) if now_s < until_s}
        return tuple(name for name in self.here if name not in self._misfits | resting)

    def whom_to_call(self, now_s: float, *, waited: bool) -> tuple[str, ...]:
        """The roster that this device should call now; nobody, if it should not.

        Args:
            now_s: What the clock says.
            waited: Whether those who are not there have had their time to come.
        """
        usable = self.usable(now_s)
        others = [self._peers[name] for name in usable if name != self.name]
        if self.busy or usable[0] != self.name or any(peer.busy for peer in others):
            return ()
        if self.done and not set(usable) & set(self.unfinished):
            return ()
        begun = self.number > 0 or any(peer.number for peer in others)
        if not begun and self.missing and not (waited and len(usable) >= self._quorum):
            return ()
        return usable

    def next_number(self) -> int:
        """A number that no formation has had, as far as this device knows."""
        return 1 + max(self.number, *(peer.number for peer in self._peers.values()), 0)

    def takes(self, call: Call) -> bool:
        """Whether this device answers a call."""
        return not self.busy and call.number > self.number and self.name in call.roster

    def waits_for(self, roster: Sequence[str], now_s: float) -> bool:
        """Whether somebody is there who should be in the group and is not."""
        return bool(set(self.usable(now_s)) - set(roster))
