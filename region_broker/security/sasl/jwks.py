"""Where the keys of tokens come from: one address or one file, which the operator names; kept, and fetched again now and then.

INV-JWK1  nothing but the configured address is ever asked: over https, following no redirect, by no proxy; a file is read where no address is
          configured (SSRF: CVE-2025-27817)
INV-JWK2  an answer is bounded in bytes, in keys and in time; what is none leaves the keys that are known as they are
INV-JWK3  a name that is not among the keys has them fetched again, at most every AGAIN_AFTER_MS, however many ask for one
INV-JWK4  nobody is told that a key is not there while keys are being fetched: a client that is told so gives up for good
INV-JWK5  a key whose form is wrong, or that is for something else, costs itself alone: the others of its set are taken
Keys without a public part, and RSA keys below RSA_BITS_MIN, are not taken.
Not here: what keys are for (`bearer`).
"""

import asyncio
import base64
import binascii
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from joserfc import jwk
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from idempotency.ports import Clock
from region_broker.ports.disk import Disk
from region_broker.security.sasl.bearer import Key

ANSWER_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
FETCH_TIMEOUT_S: Final = 10.0
AGAIN_AFTER_MS: Final = 10_000
RSA_BITS_MIN: Final = 2_048
HTTPS: Final = "https://"
_TEXTS: Final = ("kty", "use", "alg", "kid", "crv")
logger: Final = logging.getLogger("tidemark.logins")
Fetch = Callable[[], Awaitable[bytes]]


class NotFetched(Exception):
    """Keys could not be had; the text says why."""


class KeySource:
    """Keys by which tokens are judged."""

    def __init__(self, fetch: Fetch, clock: Clock, refresh_ms: int) -> None:
        """Ask `fetch` when somebody needs keys: the first time, after `refresh_ms`, and for a name that is not there."""
        self._fetch = fetch
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._keys: Sequence[Key] = ()
        self._asked_ms: int | None = None
        self._one_at_a_time = asyncio.Lock()

    async def keys(self, kid: str | None) -> Sequence[Key]:
        """Return the keys that are known; those of `kid` are looked for anew where they are not among them."""
        is_awaited = self._one_at_a_time.locked() and not self._is_known(kid)  # INV-JWK4
        if is_awaited or self._is_due(kid):
            async with self._one_at_a_time:
                if self._is_due(kid):
                    await self._renew()
        return self._keys

    def _is_due(self, kid: str | None) -> bool:
        if self._asked_ms is None:
            return True
        age_ms = self._clock.monotonic_ms() - self._asked_ms
        return age_ms >= (self._refresh_ms if self._is_known(kid) else AGAIN_AFTER_MS)

    def _is_known(self, kid: str | None) -> bool:
        return bool(self._keys) if kid is None else any(key.kid == kid for key in self._keys)

    async def _renew(self) -> None:
        """Fetch them; where that fails, those that are known go on (INV-JWK2)."""
        self._asked_ms = self._clock.monotonic_ms()
        try:
            self._keys = await asyncio.to_thread(keys_in, await self._fetch())
        except NotFetched as error:
            logger.warning(
                "keys of tokens could not be fetched: %s; %d are known and go on", error, len(self._keys)
            )  # fmt: skip


def keys_in(content: bytes) -> Sequence[Key]:
    """Return the keys of a JSON Web Key Set that can be used here; raises `NotFetched`."""
    try:
        found = orjson.loads(content)
        rows = found["keys"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotFetched("what came is no set of keys") from error
    if not isinstance(rows, list) or len(rows) > KEYS_MAX:
        raise NotFetched(f"what came is no set of at most {KEYS_MAX} keys")
    keys = [key for key in map(_key, rows) if key is not None]
    if not keys:
        raise NotFetched("no key that came can be used: RSA of 2048 bits, EC or Ed25519 are")
    return keys


def _key(row: Any) -> Key | None:
    """Return one key; None for those of other kinds, which a set may hold (RFC 7517, section 5)."""
    if not isinstance(row, dict) or not all(isinstance(row.get(each, ""), str) for each in _TEXTS):
        return None  # INV-JWK5: what is no text cannot be compared, and joserfc takes some of it
    if row.get("kty") not in {"RSA", "EC", "OKP"}:
        return None
    if row["kty"] == "RSA" and _is_short(row.get("n")):
        return None
    try:
        key = jwk.import_key(row)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def _is_short(modulus: object) -> bool:
    """Return whether a modulus in base64 has fewer bits than a key must have; zeros before it are none."""
    if not isinstance(modulus, str):
        return True
    text = modulus.rstrip("=")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return True
    return int.from_bytes(data, "big").bit_length() < RSA_BITS_MIN


def source_of(place: str, ca: str, disk: Disk) -> Fetch:
    """Return what fetches from `place`: an https address, judged by the CAs of the system or of the file `ca`; or a file."""
    if place.startswith(HTTPS):
        return partial(_fetched, place, ca)
    return partial(_read, place, disk)


async def _read(place: str, disk: Disk) -> bytes:
    try:
        if disk.file_size(Path(place)) > ANSWER_BYTES_MAX:
            raise NotFetched(f"{place} has over {ANSWER_BYTES_MAX} bytes")
        return await asyncio.to_thread(disk.read_file, Path(place))
    except OSError as error:
        raise NotFetched(f"{place} cannot be read: {error.strerror}") from error


async def _fetched(url: str, ca: str) -> bytes:
    """Return what an address answers (INV-JWK1, INV-JWK2)."""
    try:
        tls = await asyncio.to_thread(ssl.create_default_context, cafile=ca or None)
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False, trust_env=False) as session,
            session.get(url, allow_redirects=False, ssl=tls, headers={"Accept-Encoding": "identity"}) as answer,
        ):  # fmt: skip
            if answer.status != 200:
                raise NotFetched(f"{url} answered {answer.status}: redirects are not followed")
            content = bytearray()
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > ANSWER_BYTES_MAX:
                    raise NotFetched(f"{url} answered over {ANSWER_BYTES_MAX} bytes")
            return bytes(content)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NotFetched(f"{url} does not answer: {type(error).__name__} {error}") from error
