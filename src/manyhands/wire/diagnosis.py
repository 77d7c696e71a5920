"""Why nobody is there: what Zenoh keeps to itself, found out by shaking hands with each endpoint beforehand.

A session whose certificate is not trusted, or that speaks plain TCP to who wants TLS, opens without a word
and then hears nobody. So the keys are looked at first, and each endpoint is called once with Python's TLS.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from manyhands.errors import JobError
from manyhands.wire.keyring import KeyFolder, facts_of

__all__ = ["check_keys", "why_unreachable"]

TIMEOUT_S = 3.0
SETTLE_S = 1.5
"""In TLS 1.3 who answers looks at our certificate only after we think that we are connected. Less than the
3 s after which Zenoh hangs up on who says nothing."""


def check_keys(folder: Path, name: str | None = None) -> None:
    """Looks at a device's keys before they are used.

    Raises:
        JobError: A file is missing, the certificate has expired, or the keys are somebody else's.
    """
    keys = KeyFolder(folder)
    for path in (keys.authority, keys.certificate, keys.private_key):
        if not path.is_file():
            raise JobError("--keys", str(folder), f"there is no {path.name} in it; copy the device's folder")
    facts = facts_of(keys.certificate)
    if facts.days_left < 0:
        raise JobError(
            "--keys",
            str(folder),
            f"the certificate of {facts.name} expired on {facts.expires:%Y-%m-%d}; make a new one",
        )
    if name is not None and facts.name != name:
        raise JobError("--keys", str(folder), f"are the keys of {facts.name}, not of {name}")
    try:
        _context(keys)
    except (ssl.SSLError, OSError) as error:
        raise JobError("--keys", str(folder), f"do not belong together: {error}") from error


def why_unreachable(endpoint: str, folder: Path | None) -> str | None:
    """Why an endpoint, ``HOST:PORT``, will not have us, in one line; None if it will."""
    host, _, port = endpoint.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as link:
            return _greet(link, endpoint) if folder is None else _shake(link, endpoint, KeyFolder(folder))
    except ssl.SSLCertVerificationError as error:
        return f"{endpoint} shows a certificate that is not to be trusted: {error.verify_message}"
    except ssl.SSLError as error:
        return f"{endpoint} {_reason(error)}"
    except TimeoutError:
        return f"{endpoint} does not answer"
    except OSError as error:
        return f"{endpoint} cannot be reached: {error.strerror or error}"


def _greet(link: socket.socket, endpoint: str) -> str | None:
    """Without keys: an endpoint that wants TLS takes anything else for an insult and hangs up."""
    link.settimeout(SETTLE_S)
    link.sendall(b"\x00" * 16)
    try:
        said = link.recv(1)
    except TimeoutError:
        return None
    # A TLS alert begins with 21. Zenoh itself hangs up on nonsense without a word.
    return f"{endpoint} speaks TLS; give the device's keys by --keys" if said == b"\x15" else None


def _shake(link: socket.socket, endpoint: str, keys: KeyFolder) -> str | None:
    with _context(keys).wrap_socket(link) as secure:
        secure.settimeout(SETTLE_S)
        try:
            if not secure.recv(1):
                return f"{endpoint} hung up after it had seen our certificate"
        except TimeoutError:
            return None  # it waits for us to speak
        except ConnectionResetError:
            return f"{endpoint} hung up after it had seen our certificate"
        return None


def _context(keys: KeyFolder) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(keys.authority)
    context.load_cert_chain(keys.certificate, keys.private_key)
    return context


def _reason(error: ssl.SSLError) -> str:
    told = (error.reason or str(error)).upper()
    if "UNKNOWN_CA" in told or "DECRYPT_ERROR" in told:
        return "does not trust our certificate: it is of another cluster"
    if "EXPIRED" in told:
        return "says that our certificate has expired"
    if "CERTIFICATE" in told:
        return f"does not accept our certificate ({told.lower().replace('_', ' ')})"
    if "WRONG_VERSION" in told or "RECORD" in told or "EOF" in told:
        return "does not speak TLS: were its keys given to it?"
    return f"refuses TLS ({told.lower().replace('_', ' ')})"
