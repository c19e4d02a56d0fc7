"""SCRAM on the side of the client, for one exchange (RFC 5802, RFC 7677): for commands that speak with a node themselves.

INV-SCC1  the server's nonce begins with the client's own, its iterations are within bounds, so that nobody has a client prove a password by
          less work, or work for ever (RFC 7677, section 4)
INV-SCC2  a server that does not know the keys, and so cannot sign, is not believed, whatever it answers
Pure: the nonce is handed in. Not here: the server (`scram`), sending (`cli.kafka_connection`).
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from region_broker.security.sasl.saslprep import prepared
from region_broker.security.sasl.scram import HASHES, ITERATIONS_MIN

ITERATIONS_MAX: Final = 1_000_000
_HEADER: Final = "n,,"


class ServerRefused(Exception):
    """The server is not whom it says, or does not speak SCRAM; the text says why, and holds nothing of the password."""


class ScramClient:
    """One exchange: `first`, `final`, `check`, in this order."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        """Begin; `nonce`: printable, without a comma, and never used before."""
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        name = (prepared(user) or user).replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce
        self._bare = f"n={name},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_HEADER}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof for a server's challenge; raises `ServerRefused` (INV-SCC1)."""
        told = _attributes(server_first)
        try:
            nonce, salt = told["r"], base64.b64decode(told["s"], validate=True)
            iterations = int(told["i"])
        except (KeyError, ValueError, binascii.Error) as error:
            raise ServerRefused("the challenge of the node makes no sense") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ServerRefused("the node answers to another login than this one")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ServerRefused(
                f"the node asks for {iterations} iterations, which is no honest number"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        bare = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = ",".join((self._bare, server_first.decode(), bare)).encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        mask = hmac.digest(stored_key, signed, self._hash)
        self._signature = hmac.digest(
            hmac.digest(salted, b"Server Key", self._hash), signed, self._hash
        )
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise `ServerRefused` unless the server has signed (INV-SCC2)."""
        try:
            said = base64.b64decode(_attributes(server_final)["v"], validate=True)
        except (KeyError, ValueError, binascii.Error) as error:
            raise ServerRefused(
                "the node has let us in without proving that it knows us"
            ) from error
        if not self._signature or not hmac.compare_digest(said, self._signature):
            raise ServerRefused(
                "the node does not know the keys of this user: it is not whom it says"
            )


def _attributes(message: bytes) -> dict[str, str]:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ServerRefused("the node's message of SCRAM is no text") from error
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
