"""The folder of a private CA, and how keys and certificates are written.

INV-AUF1  a key is readable by its owner only from its first byte on; every file appears whole, or not at all
INV-AUF2  nothing that is there is replaced unless that was asked for
INV-AUF3  what was issued is in the folder before it is handed out, so it can be revoked without the file itself
INV-AUF4  one command at a time changes a folder: no revocation is lost to another one

    ca.pem  ca-key.pem  crl.pem  issued/SERIAL.pem

Whoever can read `ca-key.pem` can be anybody: the folder belongs on a machine that runs no node.
Not here: what is signed, and why not (`certificates`); the commands (`cli.cert`).
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from region_broker.security.certificates import (
    Authority,
    CertificateRefused,
    key_pem,
    new_authority,
    pem_of,
    revocation_list,
)
from region_broker.security.tls_identity import UNREADABLE

SECRET_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
FOLDER_MODE: Final = 0o700


class AuthorityFolder:
    """A CA and what it has issued."""

    def __init__(self, path: Path, authority: Authority) -> None:
        """Take a CA that is in `path`."""
        self.path = path
        self.authority = authority

    @classmethod
    def create(cls, path: Path, name: str, now: datetime, days: int) -> Self:
        """Make a new CA in a folder that holds none; raises `CertificateRefused`, OSError."""
        check_no_authority(path)
        made = cls(path, new_authority(name, now, days))
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        with made.locked():
            write(made.key_path, key_pem(made.authority.key), SECRET_MODE)
            write(made.crl_path, pem_of(revocation_list(made.authority, None, [], now)))
            made.issued_path.mkdir(mode=FOLDER_MODE, exist_ok=True)
            write(made.certificate_path, pem_of(made.authority.certificate))  # the last: it is one
        return made

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the CA of a folder; raises `CertificateRefused`, OSError."""
        try:
            certificate = x509.load_pem_x509_certificate((path / "ca.pem").read_bytes())
            key = load_pem_private_key((path / "ca-key.pem").read_bytes(), password=None)
        except FileNotFoundError as error:
            raise CertificateRefused(
                f"{path} holds no CA ({Path(error.filename).name} is not there): make one with tidemark cert init --ca {path}"
            ) from error
        except UNREADABLE:  # its words might show some of the key
            raise CertificateRefused(
                f"ca.pem or ca-key.pem in {path} cannot be read as PEM: put the pair back from a copy"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateRefused(f"the key of the CA in {path} is none of tidemark cert init")
        if key.public_key() != certificate.public_key():
            raise CertificateRefused(f"ca.pem and ca-key.pem in {path} are not a pair")
        return cls(path, Authority(certificate, key))

    @property
    def certificate_path(self) -> Path:
        """Where its certificate is: what all nodes and clients trust."""
        return self.path / "ca.pem"

    @property
    def key_path(self) -> Path:
        """Where its key is."""
        return self.path / "ca-key.pem"

    @property
    def crl_path(self) -> Path:
        """Where its CRL is: every node has a copy."""
        return self.path / "crl.pem"

    @property
    def issued_path(self) -> Path:
        """Where copies of what it has issued are."""
        return self.path / "issued"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands out while the folder is changed (INV-AUF4); waits for them."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def crl(self) -> x509.CertificateRevocationList:
        """Return the newest CRL; raises `CertificateRefused` where there is none: a lost one must not be taken for an empty one."""
        try:
            return x509.load_pem_x509_crl(self.crl_path.read_bytes())
        except (OSError, *UNREADABLE) as error:
            raise CertificateRefused(
                f"{self.crl_path} cannot be read ({error}), and holds what is revoked: put it back from a copy or from a node"
            ) from error

    def issued(self) -> dict[Path, x509.Certificate]:
        """Return all that was issued, by the path of its copy; raises `CertificateRefused`."""
        found = {}
        for path in sorted(self.issued_path.glob("*.pem")):
            try:
                found[path] = x509.load_pem_x509_certificate(path.read_bytes())
            except UNREADABLE as error:
                raise CertificateRefused(f"{path} is no certificate: remove it") from error
        return found

    def remember(self, certificate: x509.Certificate) -> None:
        """Keep a copy of what is about to be handed out (INV-AUF3)."""
        self.issued_path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        write(self.issued_path / f"{certificate.serial_number:x}.pem", pem_of(certificate))

    def replace_crl(self, crl: x509.CertificateRevocationList) -> None:
        """Put a new CRL in the place of the former one."""
        write(self.crl_path, pem_of(crl), replace=True)


def check_no_authority(path: Path) -> None:
    """Refuse a folder that holds a CA, or a part of one."""
    for name in ("ca.pem", "ca-key.pem", "crl.pem"):
        if (path / name).exists():
            raise CertificateRefused(
                f"{path / name} is there, and a new CA would make all that it signed worthless: choose another folder"
            )


def write(path: Path, data: bytes, mode: int = PUBLIC_MODE, *, replace: bool = False) -> None:
    """Write a file whole and durably; raises FileExistsError unless it may be replaced (INV-AUF1, INV-AUF2)."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            os.replace(beside, path)  # noqa: PTH105 -- as the link beside it
        else:
            os.link(beside, path)  # unlike a rename it replaces nothing
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
