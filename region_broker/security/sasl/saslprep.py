"""SASLprep (RFC 4013): which texts are one name, and which are none.

Kafka's Java client and librdkafka send names and passwords as they are typed, others prepare them. So what preparation would change is
taken for no new user and no new password (`is_plain`): it would fit one client and not the other. A name that comes in is prepared
before it is looked up, as RFC 5802 wants it.
INV-SPN1  of a name that a stranger says no letter is looked for in the tables once it is longer than any user's: one letter of three
         bytes may become 18, each of which takes 5 us
Not here: how names are written into SCRAM messages (`scram`).
"""

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

USER_LENGTH_MAX: Final = 249
_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepared(text: str) -> str | None:
    """Return the prepared text, None where it holds what no name or password may."""
    if text.isascii() and text.isprintable():
        return text  # no table maps or forbids any of these; to look in all of them took a twentieth of a wrong login
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    result = unicodedata.normalize("NFKC", mapped)
    if any(prohibited(char) for char in result for prohibited in _PROHIBITED):
        return None
    return result if _reads_one_way(result) else None


def prepared_name(said: str) -> str | None:
    """Return the prepared name of whoever says it, None where nobody can be called that (INV-SPN1)."""
    if len(unicodedata.normalize("NFKC", said)) > USER_LENGTH_MAX:
        return None
    return prepared(said) or None


def is_plain(text: str) -> bool:
    """Return whether all clients send the same for `text`, whether they prepare it or not."""
    return bool(text) and prepared(text) == text and not _has_unassigned(text)


def _reads_one_way(text: str) -> bool:
    """Return whether the rules for text from right to left hold (RFC 3454, section 6)."""
    if not any(stringprep.in_table_d1(char) for char in text):
        return True
    if any(stringprep.in_table_d2(char) for char in text):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])


def _has_unassigned(text: str) -> bool:
    return any(stringprep.in_table_a1(char) for char in text)
