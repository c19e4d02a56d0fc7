"""SCRAM on the side of the client, for one exchange (RFC 5802, RFC 7677): for commands that ask what no client library asks.

INV-SCC1  a server that does not prove that it has the keys is not believed, and one that asks for a weaker proof than ITERATIONS_MIN, or for
          more work than ITERATIONS_ASKED_MAX, or answers another nonce than ours, gets none
Pure: the nonce is handed in. Not here: who carries the messages (`cli.admin.node_login`), the server's side (`scram`).
"""

import base64
import hashlib
import hmac
from typing import Final

from region_broker.security.sasl.saslprep import prepared
from region_broker.security.sasl.scram import HASHES, ITERATIONS_MIN

ITERATIONS_ASKED_MAX: Final = 1_000_000
_GS2_HEADER: Final = "n,,"


class ServerNotBelieved(Exception):
    """The other side does not do as SCRAM says; the text says in what, and holds no secret."""


class ScramClient:
    """One exchange: `first`, `final`, `check`, in this order."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        """Begin; `nonce`: printable, without a comma, and never used before."""
        self._hash_name = HASHES[mechanism]
        self._password = (prepared(password) or password).encode()
        name = (prepared(user) or user).replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce
        self._first_bare = f"n={name},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_GS2_HEADER}{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof for the server's challenge; raises `ServerNotBelieved` (INV-SCC1)."""
        said = _attributes(server_first)
        try:
            nonce, salt = said["r"], base64.b64decode(said["s"], validate=True)
            iterations = int(said["i"])
        except (KeyError, ValueError) as error:
            raise ServerNotBelieved("its challenge is not one of SCRAM") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ServerNotBelieved("it answers another nonce than ours")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_ASKED_MAX:
            raise ServerNotBelieved(f"it asks for {iterations} iterations")
        name = self._hash_name
        salted = hashlib.pbkdf2_hmac(name, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        unproved = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        signed = b",".join((self._first_bare.encode(), server_first, unproved.encode()))
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        proof = bytes(mine ^ its for mine, its in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Return if the server has the keys, too; raises `ServerNotBelieved` (INV-SCC1)."""
        told = _attributes(server_final).get("v", "")
        mine = base64.b64encode(self._server_signature).decode()
        if not self._server_signature or not hmac.compare_digest(told.encode(), mine.encode()):
            raise ServerNotBelieved("it does not prove that it knows the password's keys")


def _attributes(message: bytes) -> dict[str, str]:
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise ServerNotBelieved("its message is no text") from error
    return {part[:1]: part[2:] for part in parts if part[1:2] == "="}
