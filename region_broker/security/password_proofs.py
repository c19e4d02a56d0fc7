"""Whether a password is a user's, judged by the keys that SCRAM keeps (RFC 5802, section 3).

INV-PWP1  a password for a user who is not there is put through the same work as a wrong one, and compared in constant time
A password is taken as UTF-8, as Kafka takes it. Slow by intent, some milliseconds: never on an event loop.
Not here: SCRAM's exchange, who counts failures, threads.
"""

import hashlib
import hmac
from typing import Final

from region_broker.security.access import ScramKeys

PASSWORD_BYTES_MAX: Final = 1024
_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_USUAL_ITERATIONS: Final = 4096


def is_proved(keys: ScramKeys | None, password: str, like: ScramKeys | None = None) -> bool:
    """Return whether `password` is that of `keys`; None: of nobody, at the price that `like` has (INV-PWP1)."""
    priced = keys or like
    mechanism = "SCRAM-SHA-256" if priced is None else priced.mechanism
    digest = _DIGESTS.get(mechanism, "sha256")
    salt = bytes(16) if priced is None else priced.salt
    iterations = _USUAL_ITERATIONS if priced is None else priced.iterations
    secret = password.encode("utf-8", "surrogatepass")[: PASSWORD_BYTES_MAX + 1]
    salted = hashlib.pbkdf2_hmac(digest, secret, salt, iterations)
    client_key = hmac.new(salted, b"Client Key", digest).digest()
    stored = hashlib.new(digest, client_key).digest()
    is_right = hmac.compare_digest(stored, b"" if keys is None else keys.stored_key)
    return (
        is_right
        and keys is not None
        and mechanism in _DIGESTS
        and len(secret) <= PASSWORD_BYTES_MAX
    )
