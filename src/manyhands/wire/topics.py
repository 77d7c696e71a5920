"""Where things are found on the wire: every key begins with the job and the name of who speaks.

That a device speaks under its own name only is then a matter of keys, and `wire.access` sees to it. What is
asked of somebody stands under the name of who answers, and names who asks.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

__all__ = [
    "ROOT",
    "ack",
    "any_holder",
    "asked_by",
    "body",
    "head",
    "name_in",
    "news",
    "status",
    "token",
    "tokens",
    "under",
]

ROOT = "mh"


def _safe(name: str) -> str:
    """A name as a part of a key: whatever a key may not hold is written in hexadecimal."""
    return quote(name, safe="")


def token(job: str, name: str, incarnation: int) -> str:
    """The token that stands as long as a hand is there."""
    return f"{ROOT}/{job}/{_safe(name)}/alive/{incarnation}"


def tokens() -> str:
    """The tokens of all hands, of other jobs as well."""
    return f"{ROOT}/*/*/alive/*"


def news(job: str, sender: str, peer: str) -> str:
    """Announcements to a peer; ``*`` as the sender stands for all."""
    return f"{ROOT}/{job}/{sender if sender == '*' else _safe(sender)}/to/{_safe(peer)}"


def ack(job: str, sender: str, peer: str) -> str:
    """What a hand tells a peer to have received; ``*`` as the sender stands for all."""
    return f"{ROOT}/{job}/{sender if sender == '*' else _safe(sender)}/ack/{_safe(peer)}"


def head(job: str, owner: str, asker: str) -> str:
    """The announcements that an owner has for who asks; ``*`` as the asker stands for all."""
    return f"{ROOT}/{job}/{_safe(owner)}/for/{asker if asker == '*' else _safe(asker)}/head"


def body(job: str, owner: str, asker: str, digest: str) -> str:
    """The bytes with a digest, as an owner gives them to who asks; ``*`` stands for all."""
    return f"{ROOT}/{job}/{_safe(owner)}/for/{asker if asker == '*' else _safe(asker)}/body/{digest}"


def any_holder(job: str, asker: str, digest: str) -> str:
    """The bytes with a digest, whoever has them."""
    return f"{ROOT}/{job}/*/for/{_safe(asker)}/body/{digest}"


def status(job: str, owner: str, asker: str) -> str:
    """How an owner stands, as it tells who asks; ``*`` stands for all, of owners and jobs too."""
    whose, whom = (name if name == "*" else _safe(name) for name in (owner, asker))
    return f"{ROOT}/{job}/{whose}/for/{whom}/status"


def under(name: str) -> str:
    """All that a hand says, in any job."""
    return f"{ROOT}/*/{_safe(name)}/**"


def asked_by(name: str) -> str:
    """All that a hand asks of anybody, in any job."""
    return f"{ROOT}/*/*/for/{_safe(name)}/**"


def name_in(key: str, part: int = 2) -> str:
    """A name that stands in a key: at 2 whose it is, at 4 whom it is for."""
    return unquote(str(key).split("/")[part])
