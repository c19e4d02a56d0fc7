"""SCRAM on the side of the server, for one exchange (RFC 5802, RFC 7677).

INV-SCR1  the nonce of a client's last message is the one that it was sent: its own, and the server's whole one behind it
         (CVE-2024-56128); librdkafka before 2.6.1 writes its own twice, and is let in, as Kafka does
INV-SCR2  the channel binding of the last message is the header of the first one, byte by byte; a client that insists on a binding is refused
INV-SCR3  an authorization identity other than the user's own name is refused (CVE-2017-12610)
INV-SCR4  keys of fewer than ITERATIONS_MIN are not used, whoever made them: the server asks for no weaker proof than that
INV-SCR5  everything secret is compared in constant time, and as much is computed for a user who is not there
Extensions are ignored, as section 5.1 says, but for `m`, which must be refused; Kafka's `tokenauth` is read by the desk (KIP-48).
Pure: the server's nonce is handed in. Not here: who has which keys (`desk`), making keys (`scram_keys`).
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from region_broker.security.access import ScramKeys
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.saslprep import prepared_name

ITERATIONS_MIN: Final = 4_096
"""RFC 7677, section 4; Kafka's lowest."""
ITERATIONS_MAX: Final = 16_384
"""Kafka's highest."""
MESSAGE_BYTES_MAX: Final = 4_096
HASHES: Final[Mapping[str, str]] = MappingProxyType(
    {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
)
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z]+=[^,\0]*")
_STRAY: Final = re.compile(r"=(?!2C|3D)")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The first message of a client, taken apart. `user`: prepared."""

    gs2_header: str
    bare: str
    user: str
    nonce: str
    extensions: Mapping[str, str]


class ScramServer:
    """One exchange: `first`, `challenge`, `final`, in this order; each raises `LoginRefused`."""

    def __init__(self, mechanism: str, server_nonce: str) -> None:
        """Begin; `server_nonce`: printable, without a comma, and never used before."""
        self.mechanism: Final = mechanism
        self._server_nonce = server_nonce
        self._first: ClientFirst | None = None
        self._keys: ScramKeys | None = None
        self._is_real = False
        self._server_first = ""

    def first(self, message: bytes) -> ClientFirst:
        """Take the client's first message."""
        text = self._text(message)
        flag, comma, rest = text.partition(",")
        if flag.startswith("p="):
            raise self._refused("the client asks for channel binding, which is not offered")
        if flag not in {"n", "y"} or not comma:
            raise self._refused("the first message has no gs2 header")
        authzid, comma, bare = rest.partition(",")
        if not comma or (authzid and not authzid.startswith("a=")):
            raise self._refused("the gs2 header is malformed")
        user, nonce, extensions = self._bare(bare)
        if authzid and self._name(authzid.removeprefix("a=")) != user:  # INV-SCR3
            raise self._refused("the authorization identity is not the user's own name")
        header = text[: len(text) - len(bare)]
        self._first = ClientFirst(header, bare, user, nonce, extensions)
        return self._first

    def challenge(self, keys: ScramKeys, *, is_real: bool) -> bytes:
        """Return the server's first message; `is_real`: whether `keys` are somebody's, who may log in by them."""
        first = self._first
        assert first is not None, "the client begins"
        assert keys.mechanism == self.mechanism, "keys of another mechanism"
        if keys.iterations < ITERATIONS_MIN:  # INV-SCR4
            raise self._refused(f"the keys of {first.user!r} have too few iterations")
        self._keys, self._is_real = keys, is_real
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={first.nonce}{self._server_nonce},s={salt},i={keys.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """Check the client's proof, and return the server's."""
        first, keys = self._first, self._keys
        assert first is not None, "the client begins"
        assert keys is not None, "the challenge comes before the proof"
        text = self._text(message)
        unproved, mark, proof_text = text.rpartition(",p=")
        if not mark:
            raise self._refused("the last message has no proof")
        self._check_bound(first, unproved)
        proof = self._decoded(proof_text)
        name = HASHES[self.mechanism]
        if len(proof) != hashlib.new(name).digest_size:
            raise self._refused("the proof has not the size of its hash")
        signed = f"{first.bare},{self._server_first},{unproved}".encode()
        signature = hmac.digest(keys.stored_key, signed, name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(name, client_key).digest(), keys.stored_key)
        answer = hmac.digest(keys.server_key, signed, name)
        if not (fits and self._is_real):  # INV-SCR5
            why = "the password is wrong" if self._is_real else "there is no such user"
            raise self._refused(f"{why}: {first.user!r}")
        return b"v=" + base64.b64encode(answer)

    def _bare(self, bare: str) -> tuple[str, str, Mapping[str, str]]:
        parts = bare.split(",")
        if parts[0].startswith("m="):
            raise self._refused("the client asks for a mandatory extension, and there are none")
        if len(parts) < 2 or not parts[0].startswith("n=") or not parts[1].startswith("r="):
            raise self._refused("the first message does not begin with a name and a nonce")
        nonce = parts[1].removeprefix("r=")
        if not _NONCE.fullmatch(nonce):
            raise self._refused("the client's nonce is malformed")
        return self._name(parts[0].removeprefix("n=")), nonce, self._extensions(parts[2:])

    def _check_bound(self, first: ClientFirst, unproved: str) -> None:
        """Check channel binding and nonce of the last message."""
        parts = unproved.split(",")
        if len(parts) < 2 or not parts[0].startswith("c=") or not parts[1].startswith("r="):
            raise self._refused("the last message does not begin with a binding and a nonce")
        if self._decoded(parts[0].removeprefix("c=")) != first.gs2_header.encode():  # INV-SCR2
            raise self._refused("the channel binding is not that of the first message")
        sent = first.nonce + self._server_nonce
        said = parts[1].removeprefix("r=").encode()
        doubled = (
            first.nonce + sent
        )  # librdkafka before 2.6.1, as in Debian's kcat (its change 4895)
        if not any(hmac.compare_digest(said, each.encode()) for each in (sent, doubled)):
            raise self._refused("the nonce is not the one that was sent")  # INV-SCR1
        self._extensions(parts[2:])

    def _extensions(self, parts: list[str]) -> Mapping[str, str]:
        if not all(_ATTRIBUTE.fullmatch(part) for part in parts):
            raise self._refused("an extension is malformed")
        if any(part.startswith("m=") for part in parts):
            raise self._refused("the client asks for a mandatory extension, and there are none")
        return {name: value for name, _, value in (part.partition("=") for part in parts)}

    def _name(self, encoded: str) -> str:
        """Return a name of section 5.1: `=2C` stands for a comma, `=3D` for an equals sign."""
        if _STRAY.search(encoded):
            raise self._refused("a name holds a stray '='")
        name = prepared_name(encoded.replace("=2C", ",").replace("=3D", "="))
        if name is None:
            raise self._refused("the name is none, or longer than any")
        return name

    def _text(self, message: bytes) -> str:
        if len(message) > MESSAGE_BYTES_MAX:
            raise self._refused(f"a message has {len(message)} bytes, over {MESSAGE_BYTES_MAX}")
        try:
            return message.decode()
        except UnicodeDecodeError as error:
            raise self._refused("a message is no UTF-8") from error

    def _decoded(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._refused("a message holds what is no base64") from error

    def _refused(self, why: str) -> LoginRefused:
        return LoginRefused(self.mechanism, why, tried=self._first.user if self._first else "")
