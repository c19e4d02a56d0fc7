"""`python -m tests.secrets PATH...`: looks for keys, passwords and tokens in what a run has left: data folders, logs, saved metrics.

Two kinds are looked for: what is a secret by its form (private keys, tokens of ours, JWTs, credentials in headers and settings), and,
with `--known FILE`, secrets that the run used, one a line: as they are, in base64 at each of its three alignments, in base64url, in
hexadecimal, and in UTF-16. An address (http://...) is asked for its `/metrics`. What must hold a secret is left out by `--except GLOB`.

What is found is named by place and kind, never shown. Exit code 1 where anything is found. Compressed and sealed bytes are looked at
as they are.
"""

import argparse
import base64
import fnmatch
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
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
PATTERNS: Final[Mapping[str, re.Pattern[bytes]]] = {
    "private key": re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
    "token of the HTTP port": re.compile(rb"tmt_[0-9a-f]{12}_[A-Za-z0-9_-]{43}"),
    "JSON web token": re.compile(rb"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
    "credentials in a header": re.compile(rb"(?i)\b(?:bearer|basic) [A-Za-z0-9+/_.=-]{16,}"),
    "SCRAM client proof": re.compile(rb"\bc=[A-Za-z0-9+/=]+,r=[!-+\--~]+,p=[A-Za-z0-9+/]{27,}=*"),
    "password in a setting": re.compile(
        rb"(?i)\b(?:password|passwd|passphrase|client_secret|secret_key|http_token|sasl\.password)[\"']?\s*[=:]\s*[\"']?" + _VALUE
    ),
}  # fmt: skip


class Found(NamedTuple):
    """Where something is that should not be there, and what it is; never the thing itself."""

    place: str
    offset: int
    kind: str

    def __str__(self) -> str:
        return f"{self.place} at {self.offset}: {self.kind}"


def forms_of(secret: str) -> dict[str, bytes]:
    """Return the bytes that a known secret may stand as, by name."""
    plain = secret.encode()
    forms = {
        "as it is": plain, "in hexadecimal": plain.hex().encode(), "in UTF-16": secret.encode("utf-16-le"),
    }  # fmt: skip
    for shift in range(3):  # what stands before it moves the groups of three bytes
        coded = base64.b64encode(b"\0" * shift + plain)
        end = len(coded) - (4 if (shift + len(plain)) % 3 else 0)
        inner = coded[(4 if shift else 0) : end]
        if len(inner) >= KNOWN_BYTES_MIN:
            forms[f"in base64 ({shift})"] = inner
            forms[f"in base64url ({shift})"] = inner.translate(bytes.maketrans(b"+/", b"-_"))
    return forms


def pattern_of(known: Iterable[str]) -> re.Pattern[bytes] | None:
    """Return what finds all of the known secrets in any form; None for none."""
    forms = {form for secret in known for form in forms_of(secret).values()}
    if not forms:
        return None
    return re.compile(b"|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))


def in_pieces(
    place: str, pieces: Iterable[bytes], known: re.Pattern[bytes] | None
) -> Iterator[Found]:
    """Yield what is found in bytes that come in pieces, once each."""
    patterns = {**PATTERNS, **({} if known is None else {"a known secret": known})}
    tail, before, seen = b"", 0, set[tuple[int, str]]()
    for piece in pieces:
        window = tail + piece
        for kind, pattern in patterns.items():
            for match in pattern.finditer(window):
                at = (before + match.start(), kind)
                if at not in seen:
                    seen.add(at)
                    yield Found(place, *at)
        tail = window[-OVERLAP_BYTES:]
        before += len(window) - len(tail)
        seen = {at for at in seen if at[0] >= before}


def in_files(
    paths: Iterable[Path], known: Iterable[str] = (), excepted: Iterable[str] = ()
) -> Iterator[Found]:
    """Yield what is found in files, and in those of folders."""
    pattern, globs = pattern_of(known), tuple(excepted)
    for root in paths:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and not any(fnmatch.fnmatch(str(path), glob) for glob in globs):
                yield from in_pieces(str(path), _read(path), pattern)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
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
