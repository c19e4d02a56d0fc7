"""What is kept of a password for SCRAM: made from it, checked against it, written as one line, played for nobody.

INV-SKY1  keys of a user who is not there are the same whenever they are asked for, and look as those of a user do: salts are a function
          of the name and of a secret, iterations and size of the salt those that most users have
A line is `NAME MECHANISM ITERATIONS SALT STORED_KEY SERVER_KEY`, the last three in base64: as Kafka's tools show them.
Pure. Not here: the exchange (`scram`), files (`users_file`).
"""

import base64
import binascii
import hashlib
import hmac
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from region_broker.security.access import ScramKeys
from region_broker.security.sasl.saslprep import USER_LENGTH_MAX, is_plain
from region_broker.security.sasl.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
)

SALT_BYTES: Final = 32
SALT_BYTES_MAX: Final = 1_024
PASSWORD_BYTES_MAX: Final = 1_024
_UNSEEN: Final = frozenset({"Cc", "Cf"})
"""Unicode's categories of control characters, and of marks that only say how others are shown."""


class Kind(NamedTuple):
    """What can be seen of keys by who does not know the password."""

    mechanism: str
    iterations: int
    salt_bytes: int


class UnfitKeys(ValueError):
    """Keys, or a line of them, that nobody could use; the text says what is wrong."""


def user_problem(user: str) -> str | None:
    """Return why nobody can be called that, None if somebody can."""
    if not user:
        return "a user name must not be empty"
    if len(user) > USER_LENGTH_MAX:
        return f"a user name has {USER_LENGTH_MAX} characters at most"
    return None if is_plain(user) else "clients would send this user name in different ways (SASLprep, RFC 4013)"  # fmt: skip


def password_problem(password: str) -> str | None:
    """Return why a password is none, None if it is one; the text does not hold it."""
    if not password:
        return "the password is empty"
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        return f"the password has more than {PASSWORD_BYTES_MAX} bytes"
    odd = next((each for each in password if unicodedata.category(each) in _UNSEEN), None)
    if odd is not None:
        return (
            f"the password holds the character U+{ord(odd):04X}, which is not seen and no client sends (SASLprep, RFC 4013): the file may"
            " have a second line, or a byte order mark at its beginning"
        )
    if not is_plain(password):
        return "clients would send this password in different ways (SASLprep, RFC 4013): take other characters"
    return None


def salted(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return the salted password: PBKDF2, of about a millisecond for each 4,096 iterations."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def keys_of_salted(
    user: str, mechanism: str, salted_password: bytes, salt: bytes, iterations: int
) -> ScramKeys:
    """Return the keys of RFC 5802, section 3."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramKeys(
        user, mechanism, salt, iterations, hashlib.new(name, client_key).digest(),
        hmac.digest(salted_password, b"Server Key", name),
    )  # fmt: skip


def keys_of(user: str, mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """Return the keys of a password."""
    return keys_of_salted(
        user, mechanism, salted(mechanism, password, salt, iterations), salt, iterations
    )


def fits(keys: ScramKeys, password: bytes) -> bool:
    """Return whether `keys` are those of a password."""
    made = keys_of(keys.user, keys.mechanism, password, keys.salt, keys.iterations)
    return hmac.compare_digest(made.stored_key, keys.stored_key)


def usual(keys: Iterable[ScramKeys], mechanism: str) -> Kind:
    """Return what most keys of a mechanism look like; where there are none, as our commands make them."""
    counts = Counter(
        Kind(row.mechanism, row.iterations, len(row.salt))
        for row in keys
        if row.mechanism == mechanism
    )
    return max(counts, key=lambda kind: (counts[kind], kind), default=Kind(mechanism, ITERATIONS_MIN, SALT_BYTES))  # fmt: skip


def played_keys(secret: bytes, user: str, kind: Kind) -> ScramKeys:
    """Return keys for somebody who is not there (INV-SKY1); no password has them."""

    def drawn(what: str, size_bytes: int) -> bytes:
        text = f"{what}\0{kind.mechanism}\0{user}".encode()
        return hashlib.shake_256(hmac.digest(secret, text, "sha256")).digest(size_bytes)

    size_bytes = hashlib.new(HASHES[kind.mechanism]).digest_size
    return ScramKeys(
        user, kind.mechanism, drawn("salt", kind.salt_bytes), kind.iterations,
        drawn("stored", size_bytes), drawn("server", size_bytes),
    )  # fmt: skip


def line_of(keys: ScramKeys) -> str:
    """Return keys as one line."""
    parts = [base64.b64encode(part).decode() for part in (keys.salt, keys.stored_key, keys.server_key)]  # fmt: skip
    return " ".join([keys.user, keys.mechanism, str(keys.iterations), *parts])


def keys_in(line: str) -> ScramKeys:
    """Return the keys of a line; raises `UnfitKeys`."""
    words = line.split()
    if len(words) != 6:
        raise UnfitKeys(f"has {len(words)} words, not the six that `tidemark user keys` prints")
    user, mechanism, iterations, *encoded = words
    try:
        salt, stored_key, server_key = (base64.b64decode(word, validate=True) for word in encoded)
        keys = ScramKeys(user, mechanism, salt, int(iterations), stored_key, server_key)
    except (ValueError, binascii.Error) as error:
        raise UnfitKeys("holds what is no number, or no base64") from error
    wrong = problem_of(keys)
    if wrong is not None:
        raise UnfitKeys(wrong)
    return keys


def problem_of(keys: ScramKeys) -> str | None:
    """Return why nobody could log in by `keys`, None if somebody could."""
    name = HASHES.get(keys.mechanism)
    if name is None:
        return f"{keys.mechanism[:64]!r} is none of {', '.join(HASHES)}"
    wrong = user_problem(keys.user)
    if wrong is not None:
        return wrong
    if not ITERATIONS_MIN <= keys.iterations <= ITERATIONS_MAX:
        return f"{keys.iterations} iterations are not in {ITERATIONS_MIN}..{ITERATIONS_MAX}"
    if not 1 <= len(keys.salt) <= SALT_BYTES_MAX:
        return f"a salt has 1 to {SALT_BYTES_MAX} bytes"
    size_bytes = hashlib.new(name).digest_size
    if len(keys.stored_key) != size_bytes or len(keys.server_key) != size_bytes:
        return f"a key of {keys.mechanism} has {size_bytes} bytes"
    return None
