"""PLAIN (RFC 4616): a name and a password in one message, taken over TLS only.

INV-SPL1  an authorization identity other than the user's own name is refused (CVE-2017-12610)
Pure. Not here: whether the connection is encrypted, and whether the password is right (`desk`).
"""

from typing import Final, NamedTuple

from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.saslprep import prepared_name
from region_broker.security.sasl.scram_keys import PASSWORD_BYTES_MAX

NAME: Final = "PLAIN"
_MESSAGE_BYTES_MAX: Final = 4_096


class PlainMessage(NamedTuple):
    """What a client says of itself."""

    user: str
    password: bytes

    def __repr__(self) -> str:
        """Say who, and not the password."""
        return f"PlainMessage({self.user!r})"


def read_plain(message: bytes) -> PlainMessage:
    """Take the message apart; raises `LoginRefused`."""
    parts = message.split(b"\0") if len(message) <= _MESSAGE_BYTES_MAX else ()
    if len(parts) != 3:
        raise LoginRefused(NAME, "the message is not three texts with NUL between them")
    authzid, authcid, password = parts
    try:
        user = prepared_name(authcid.decode())
        asked = prepared_name(authzid.decode()) if authzid else user
    except UnicodeDecodeError as error:
        raise LoginRefused(NAME, "a name is no UTF-8") from error
    if user is None or not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise LoginRefused(NAME, "the name or the password is none")
    if asked != user:  # INV-SPL1
        raise LoginRefused(NAME, "the authorization identity is not the user's own name")
    return PlainMessage(user, password)
