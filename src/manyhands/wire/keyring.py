"""The keys of a private cluster: its own certificate authority, and a certificate for each device.

A cluster's folder holds the authority and, under ``devices/``, a folder for each device to be copied to it.
Certificates are EC P-256, signed by the authority alone; a device's name is the common name in its own.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from manyhands.errors import JobError

__all__ = ["CertificateFacts", "KeyFolder", "add_device", "facts_of", "new_cluster", "show_cluster"]

AUTHORITY_DAYS = 3650
DEVICE_DAYS = 825
# A device's clock may be behind that of the machine on which the keys were made.
EARLY = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class KeyFolder:
    """What is copied to a device."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate of the cluster's authority."""
        return self.path / "ca.pem"

    @property
    def certificate(self) -> Path:
        """The device's own certificate."""
        return self.path / "device.pem"

    @property
    def private_key(self) -> Path:
        """The device's own key, which nobody else may read."""
        return self.path / "device.key"


@dataclass(frozen=True)
class CertificateFacts:
    """What a certificate says."""

    name: str
    expires: datetime.datetime
    addresses: tuple[str, ...]

    @property
    def days_left(self) -> int:
        """Until it expires; negative when it has."""
        return (self.expires - datetime.datetime.now(datetime.UTC)).days


def new_cluster(folder: Path, devices: Sequence[str], days: int = DEVICE_DAYS) -> list[KeyFolder]:
    """Makes a certificate authority and the keys of some devices.

    Raises:
        JobError: The folder holds a cluster already.
    """
    if (folder / "ca.key").exists():
        raise JobError("DIR", str(folder), "holds a cluster already; add to it by 'manyhands keys add'")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"manyhands {folder.resolve().name}"[:64])])
    public = key.public_key()
    certificate = (
        _begin(name, name, public, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "ca.key", key)
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return [add_device(folder, device, days=days) for device in devices]


def add_device(
    folder: Path, device: str, addresses: Sequence[str] = (), days: int = DEVICE_DAYS
) -> KeyFolder:
    """Makes the keys of one more device.

    Args:
        folder: The cluster's.
        device: Its name, as in the job.
        addresses: Host names or IP addresses at which others reach it, for the certificate.
        days: How long they are good for; negative ones make an expired certificate, for tests.

    Raises:
        JobError: There is no such cluster, or it has such a device already.
    """
    authority, signer = _load_authority(folder)
    if not device or len(device) > 64 or "/" in device or device.startswith("."):
        raise JobError("--device", device, "must be a name of up to 64 characters without a slash")
    keys = KeyFolder(folder / "devices" / device)
    if keys.private_key.exists():
        raise JobError("--device", device, f"has keys already; remove {keys.path} to make new ones")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _begin(name, authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(device, addresses)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    keys.path.mkdir(parents=True, mode=0o700, exist_ok=True)
    _write_key(keys.private_key, key)
    keys.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    keys.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return keys


def show_cluster(folder: Path) -> list[CertificateFacts]:
    """What the certificates of a cluster, or of one device's folder, say; the authority's comes first.

    Raises:
        JobError: There are none.
    """
    if not (folder / "ca.pem").is_file():
        raise JobError("DIR", str(folder), "holds no keys; 'manyhands keys new-cluster' makes them")
    own = folder / "device.pem"
    paths = [folder / "ca.pem", *([own] if own.is_file() else [])]
    return [facts_of(path) for path in [*paths, *sorted(folder.glob("devices/*/device.pem"))]]


def facts_of(path: Path) -> CertificateFacts:
    """What a certificate says.

    Raises:
        JobError: It is not one.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError) as error:
        raise JobError("certificate", str(path), f"cannot be read: {error}") from error
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        addresses = tuple(str(other.value) for other in extension.value)
    except x509.ExtensionNotFound:
        addresses = ()
    return CertificateFacts(str(name.value), certificate.not_valid_after_utc, addresses)


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise JobError("DIR", str(folder), f"holds no cluster to add to: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise JobError("DIR", str(folder), "holds a key that manyhands did not make")
    return certificate, key


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - EARLY)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(device: str, addresses: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in (device, *addresses):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            # What is no host name may still be a device's name; the certificate then says it in one place.
            if name.isascii():
                found.append(x509.DNSName(name))
    return found or [x509.DNSName("device")]


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a key that only its owner can read, from the moment on when it is there."""
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
