"""One record of the trail as a line, and how each line holds the one before it. Pure.

INV-ACH1  the hash of a record is SHA-256 over `DOMAIN` and all bytes of its line before the hash; among these is the hash of the record
          before it. So whoever changes, drops, adds or moves a record changes every hash behind it
INV-ACH2  a line is printable ASCII without a line feed: what a client named cannot begin a line, nor speak to a terminal
A line is `{"seq":7,"prev":"<hash>",...,"hash":"<hash>"}`; `seq` grows by one. Nothing secret is in the hash: who may write the file can
write another chain that is sound. Only a head that was kept elsewhere (`Head`) tells that one, or a tail that was cut.
Not here: files (`chain_files`), what is in the fields (`recorder`).
"""

import hashlib
import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple, Self

DOMAIN: Final = b"tidemark-audit-1\0"
NO_HASH: Final = "0" * 64
"""What the first record of a chain names as the one before it."""
LINE_BYTES_MAX: Final = 1 << 20
_TAIL: Final = b',"hash":"'
_TAIL_BYTES: Final = len(_TAIL) + 64 + len(b'"}')


class NotALink(Exception):
    """A line that is no record of a chain; the text says why."""


class Head(NamedTuple):
    """The last record of a chain, which holds all before it."""

    seq: int
    digest: str

    def __str__(self) -> str:
        """Return it as `SEQ:HASH`."""
        return f"{self.seq}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `SEQ:HASH`; raises ValueError."""
        number, _, digest = text.strip().partition(":")
        if not number.isascii() or not number.isdigit():
            raise ValueError(f"{text!r} is not SEQ:HASH: SEQ is a number")
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"{text!r} is not SEQ:HASH: HASH is 64 hexadecimal digits")
        return cls(int(number), digest)


NO_HEAD: Final = Head(0, NO_HASH)


class Link(NamedTuple):
    """A record that was read, whose own hash is right."""

    head: Head
    prev: str
    fields: Mapping[str, Any]


def make_line(before: Head, fields: Mapping[str, Any]) -> tuple[bytes, Head]:
    """Return the line that follows `before`, with its line feed, and the head that it is."""
    record = {"seq": before.seq + 1, "prev": before.digest, **fields}
    text = json.dumps(record, ensure_ascii=True, separators=(",", ":"))
    prefix = text[:-1].encode("ascii")
    digest = digest_of(prefix)
    line = prefix + _TAIL + digest.encode("ascii") + b'"}'
    assert len(line) < LINE_BYTES_MAX, "fields are bounded (INV-AUD1)"
    return line + b"\n", Head(before.seq + 1, digest)


def written_chars(text: str) -> int:
    """Return how long a text is in a line, with its quotes: a character beyond ASCII takes six, or twelve."""
    return len(encode_basestring_ascii(text))


def digest_of(prefix: bytes) -> str:
    """Return the hash of a line whose bytes before the hash these are."""
    return hashlib.sha256(DOMAIN + prefix).hexdigest()


def read_line(line: bytes) -> Link:
    """Read a line without its line feed; raises `NotALink`."""
    prefix, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if not tail.startswith(_TAIL) or not tail.endswith(b'"}'):
        raise NotALink("it does not end with a hash")
    digest = tail[len(_TAIL) : -2].decode("ascii", "replace")
    if digest != digest_of(prefix):
        raise NotALink("its hash is not that of its bytes: it was changed")
    try:
        fields = json.loads(line)
        seq, prev = fields.pop("seq"), fields.pop("prev")
        del fields["hash"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise NotALink("it is no JSON object with seq, prev and hash") from error
    if not isinstance(seq, int) or not isinstance(prev, str) or seq < 1:
        raise NotALink("its seq or prev is none")
    return Link(Head(seq, digest), prev, fields)
