"""`python -m tests.secrets PATH...`: looks for keys, passwords and tokens in what a run has left: data folders, logs, saved metrics.

Two kinds are looked for: what is a secret by its form (private keys, tokens of ours, JWTs, credentials in headers and settings), and,
with `--known FILE`, secrets that the run used, one a line: as they are, in base64 at each of its three alignments, in base64url, in
hexadecimal, and in UTF-16. An address (http://...) is asked for its `/metrics`. What must hold a secret is left out by `--except GLOB`.

What is found is named by place and kind, never shown. Exit code 1 where anything is found. Compressed and sealed bytes are looked at
as they are; nothing is looked for in bytes that are all zero, as of files that were laid out and not written yet.
"""

import argparse
import base64
import fnmatch
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from region_broker.workbench.node_http import metrics_text

PIECE_BYTES: Final = 4 << 20
OVERLAP_BYTES: Final = 8 << 10
KNOWN_BYTES_MIN: Final = 6
"""Shorter ones are found everywhere by chance."""

_VALUE: Final = (
    rb"""(?!\*|<|\(|\[|None\b|null\b|hidden|redacted|false\b|true\b)[^\s"'\\,;}{\])(]{6,}"""
)


class Form(NamedTuple):
    """What a secret looks like. `words`: one of them is in each, in lower case; looked for first, which is much faster."""

    pattern: re.Pattern[bytes]
    words: tuple[bytes, ...]


PATTERNS: Final[Mapping[str, Form]] = {
    "private key": Form(re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"), (b"private key-----",)),
    "token of the HTTP port": Form(re.compile(rb"tmt_[0-9a-f]{12}_[A-Za-z0-9_-]{43}"), (b"tmt_",)),
    "JSON web token": Form(re.compile(rb"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"), (b".eyj",)),
    "credentials in a header": Form(re.compile(rb"(?i)\b(?:bearer|basic) [A-Za-z0-9+/_.=-]{16,}"), (b"bearer ", b"basic ")),
    "SCRAM client proof": Form(re.compile(rb"\bc=[A-Za-z0-9+/=]+,r=[!-+\--~]+,p=[A-Za-z0-9+/]{27,}=*"), (b",p=",)),
    "password in a setting": Form(
        re.compile(
            rb"(?i)\b(?:password|passwd|passphrase|client_secret|secret_key|http_token|sasl\.password)[\"']?\s*[=:]\s*[\"']?" + _VALUE
        ),
        (b"password", b"passwd", b"passphrase", b"client_secret", b"secret_key", b"http_token"),
    ),
}  # fmt: skip


class Found(NamedTuple):
    """Where something is that should not be there, and what it is; never the thing itself."""

    place: str
    offset: int
    kind: str

    def __str__(self) -> str:
        return f"{self.place} at {self.offset}: {self.kind}"


def forms_of(secret: str | bytes) -> dict[str, bytes]:
    """Return the bytes that a known secret may stand as, by name."""
    plain = secret.encode() if isinstance(secret, str) else secret
    forms = {"as it is": plain, "in hexadecimal": plain.hex().encode()}
    if isinstance(secret, str):
        forms["in UTF-16"] = secret.encode("utf-16-le")
    for shift in range(3):  # what stands before it moves the groups of three bytes
        coded = base64.b64encode(b"\0" * shift + plain)
        end = len(coded) - (4 if (shift + len(plain)) % 3 else 0)
        inner = coded[(4 if shift else 0) : end]
        if len(inner) >= KNOWN_BYTES_MIN:
            forms[f"in base64 ({shift})"] = inner
            forms[f"in base64url ({shift})"] = inner.translate(bytes.maketrans(b"+/", b"-_"))
    return forms


def pattern_of(known: Iterable[str | bytes]) -> re.Pattern[bytes] | None:
    """Return what finds all of the known secrets in any form; None for none."""
    return _pattern_of(frozenset(known))


@functools.lru_cache(maxsize=64)
def _pattern_of(known: frozenset[str | bytes]) -> re.Pattern[bytes] | None:
    forms = {form for secret in known for form in forms_of(secret).values()}
    return re.compile(_tree_of(sorted(forms))) if forms else None


def _tree_of(forms: Sequence[bytes]) -> bytes:
    """Return a pattern of sorted forms that tries what begins alike once: at most bytes one look is all, however many there are."""
    first, last = forms[0], forms[-1]  # what these have in common all have
    begun = next((at for at, byte in enumerate(first) if last[at] != byte), len(first))
    alike, rest = re.escape(first[:begun]), [form[begun:] for form in forms]
    if not rest[0]:  # it ends here: what is longer and begins so is found by it
        return alike
    branches = itertools.groupby(rest, key=lambda form: form[:1])
    return alike + b"(?:" + b"|".join(_tree_of(list(each)) for _, each in branches) + b")"


def in_pieces(
    place: str, pieces: Iterable[bytes], known: re.Pattern[bytes] | None
) -> Iterator[Found]:
    """Yield what is found in bytes that come in pieces, once each."""
    tail, before, seen = b"", 0, set[tuple[int, str]]()
    for piece in pieces:
        window = tail + piece
        for kind, at_byte in _matches(window, known):
            at = (before + at_byte, kind)
            if at not in seen:
                seen.add(at)
                yield Found(place, *at)
        tail = window[-OVERLAP_BYTES:]
        before += len(window) - len(tail)
        seen = {at for at in seen if at[0] >= before}


def _matches(window: bytes, known: re.Pattern[bytes] | None) -> Iterator[tuple[str, int]]:
    """Yield kind and place of what is found in some bytes."""
    if window.count(0) == len(window):
        return
    lower = window.lower()
    for kind, form in PATTERNS.items():
        if any(word in lower for word in form.words):
            yield from ((kind, match.start()) for match in form.pattern.finditer(window))
    if known is not None:
        yield from (("a known secret", match.start()) for match in known.finditer(window))


def in_files(
    paths: Iterable[Path], known: Iterable[str | bytes] = (), excepted: Iterable[str] = ()
) -> Iterator[Found]:
    """Yield what is found in files, and in those of folders."""
    pattern, globs = pattern_of(known), tuple(excepted)
    for root in paths:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and not any(fnmatch.fnmatch(str(path), glob) for glob in globs):
                yield from in_pieces(str(path), _read(path), pattern)


def _read(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:  # a node that still runs has removed it: it holds nothing any more
        return
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def main() -> int:
    """Look, tell, and return the exit code."""
    asked = argparse.ArgumentParser(prog="python -m tests.secrets", description=__doc__)
    asked.add_argument("places", nargs="+", metavar="PATH|URL")
    asked.add_argument("--known", type=Path, help="file of secrets that were used, one a line")
    asked.add_argument("--except", dest="excepted", action="append", default=[], metavar="GLOB")
    given = asked.parse_args()
    known = [] if given.known is None else given.known.read_text().splitlines()
    known = [line for line in known if len(line) >= KNOWN_BYTES_MIN]
    pages = [place for place in given.places if "://" in place]
    paths = [Path(place) for place in given.places if "://" not in place]
    missing = [path for path in paths if not path.exists()]
    if missing:
        asked.error(f"not there: {', '.join(map(str, missing))}")
    found = list(in_files(paths, known, given.excepted))
    for page in pages:
        found += in_pieces(page, [metrics_text(page).encode()], pattern_of(known))
    for each in found:
        print(each)
    print(f"{len(found)} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
