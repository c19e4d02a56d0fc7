"""The files of TLS as bytes: read whole, not judged yet.

INV-TLF2  no text of an error, no repr and no log holds anything of a key
Not here: whether a set fits together (`tls_files`, which imports what reads certificates: only who speaks TLS needs it, INV-LEAN3).
"""

from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

FILE_BYTES_MAX: Final = 16 << 20
"""A CRL of a large CA has some megabytes; what is larger is something else."""


class TlsRefused(Exception):
    """A set of files cannot be used; the text names the file, what is the matter, and what would be right."""


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files; "" for none. `certificate` holds the chain, the own one first; `ca` and `crl` may hold several."""

    certificate: str = ""
    key: str = ""
    ca: str = ""
    crl: str = ""


class Contents(msgspec.Struct, frozen=True):
    """What the files held when they were read, all of them."""

    certificate: bytes
    key: bytes
    ca: bytes
    crl: bytes

    def __repr__(self) -> str:
        """Say nothing of what is inside (INV-TLF2)."""
        return "Contents(...)"

    def digest(self) -> bytes:
        """Return what tells these bytes from others."""
        parts = (self.certificate, self.key, self.ca, self.crl)
        return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


class CrlSource(NamedTuple):
    """Who numbers CRLs: a CA, and which of its keys, whether its CRLs say that or not; one that is made anew under the same name begins anew."""

    issuer: str
    key_id: bytes


def read_contents(files: TlsFiles) -> Contents:
    """Return what the files hold now; raises `TlsRefused`. Waits for the disk."""
    return Contents(_read(files.certificate), _read(files.key), _read(files.ca), _read(files.crl))


def _read(path: str) -> bytes:
    if not path:
        return b""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsRefused(
            f"{path} cannot be read ({error.strerror or error}): the user that runs Tidemark must be able to read it"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise TlsRefused(f"{path} has over {FILE_BYTES_MAX} bytes: it is no file of certificates")
    return data
