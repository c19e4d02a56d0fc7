"""What unlocks the versions of a named key: a file, a variable of the environment, or a command (the client of a key service).

A file or a variable holds a key of 32 bytes, in base64, which wraps versions by RFC 3394. A command gets base64 on its standard input and
writes base64: `unwrap` gets what is wrapped and writes the key, `wrap` the other way round. Commands are lists of arguments, and no shell reads
them.

INV-SKS1  what a source gives is never in a text: not of an error, not of a log. Of a command that fails its exit code is told, and nothing
          that it wrote: it may have written a key
INV-SKS2  a command has COMMAND_TIMEOUT_S, and an answer of more than ANSWER_BYTES_MAX is none; nothing secret is among its arguments
Blocks: call it in a thread. Not here: the file of keys (`key_ring`).
"""

import base64
import binascii
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from region_broker.ports.disk import Disk
from region_broker.security.sealing.data_keys import KEY_BYTES

COMMAND_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024


class SourceFailed(Exception):
    """A source does not give what it should; the text names it, and tells no secret."""


class KeySource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one of: `file` (a path), `env` (a name), or `unwrap` with, where versions are made, `wrap` (arguments)."""

    file: str = ""
    env: str = ""
    unwrap: tuple[str, ...] = ()
    wrap: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what names none, or two."""
        if sum((bool(self.file), bool(self.env), bool(self.unwrap))) != 1:
            raise ValueError("a source is one of file, env, and unwrap (a command)")
        if self.wrap and not self.unwrap:
            raise ValueError("wrap stands beside unwrap: both are commands")

    def __str__(self) -> str:
        """Return it for people."""
        if self.file:
            return f"file {self.file}"
        return f"env {self.env}" if self.env else f"command {self.unwrap[0]}"


@dataclass(frozen=True, slots=True)
class KeySources:
    """Asks sources: files of `disk`, variables of `environment`, and commands."""

    disk: Disk
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def unlocked(self, source: KeySource, wrapped: Sequence[bytes]) -> list[bytes]:
        """Return the keys that `wrapped` holds; raises `SourceFailed`."""
        if source.unwrap:
            keys = [_run(source.unwrap, each) for each in wrapped]
            if any(len(key) != KEY_BYTES for key in keys):
                raise SourceFailed(f"{source} wrote no key of {KEY_BYTES} bytes in base64")
            return keys
        from cryptography.hazmat.primitives.keywrap import (  # noqa: PLC0415 -- INV-LEAN3
            InvalidUnwrap,
            aes_key_unwrap,
        )

        key = self._own_key(source)
        try:
            return [aes_key_unwrap(key, each) for each in wrapped]
        except (InvalidUnwrap, ValueError):
            raise SourceFailed(
                f"{source} holds another key than the one that wrapped this"
            ) from None

    def locked(self, source: KeySource, key: bytes) -> bytes:
        """Return `key` wrapped; raises `SourceFailed`."""
        if not source.unwrap:
            from cryptography.hazmat.primitives.keywrap import aes_key_wrap  # noqa: PLC0415

            return aes_key_wrap(self._own_key(source), key)
        if not source.wrap:
            raise SourceFailed(f"{source} only unwraps: give a wrap command, too, to make versions")
        return _run(source.wrap, key)

    def _own_key(self, source: KeySource) -> bytes:
        if source.file:
            try:
                return _decoded(self.disk.read_file(Path(source.file)), str(source))
            except OSError as error:
                raise SourceFailed(f"{source} cannot be read: {error.strerror}") from None
        if source.env not in self.environment:
            raise SourceFailed(f"{source} is not set where this process runs")
        return _decoded(self.environment[source.env], str(source))


def new_source_key() -> str:
    """Return a new key as a file or a variable holds it."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _decoded(text: str | bytes, what: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise SourceFailed(f"{what} holds no base64") from None
    if len(key) != KEY_BYTES:
        raise SourceFailed(f"{what} holds {len(key)} bytes, a key has {KEY_BYTES}")
    return key


def _run(arguments: Sequence[str], given: bytes) -> bytes:
    what = f"command {arguments[0]}"
    try:
        done = subprocess.run(  # noqa: S603 -- the operator's own command, and no shell
            list(arguments), input=base64.b64encode(given) + b"\n", capture_output=True,
            timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SourceFailed(f"{what} did not end within {COMMAND_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SourceFailed(f"{what} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise SourceFailed(
            f"{what} ended with {done.returncode}: run it by hand to see why (what it wrote is not told here)"
        )
    if len(done.stdout) > ANSWER_BYTES_MAX:
        raise SourceFailed(f"{what} wrote more than {ANSWER_BYTES_MAX} bytes")
    try:
        return base64.b64decode(done.stdout.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise SourceFailed(f"{what} wrote no base64") from None
