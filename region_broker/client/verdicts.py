"""Ask a region for the final word on a transaction (rule T29).

Only a primary region is believed, and among several the one with the greatest region epoch: an old one that was cut off
may not know yet that another took over.

INV-CP30 once a region epoch was seen to act, no region of an earlier one is believed any more: an old one that was cut off may be all
         that answers
INV-CP31 `lost` is believed of who wrote the record, not of the region epoch of its pair: a planned switch changes that one without its
         producer's knowing. Where a region tells no more, it is not known; and of a writer whose pair nobody told, nothing is
INV-CP39 what a region would answer again in the same way is `Refused`; anything else, an answer that breaks off included, is `Unreachable`
INV-CP40 a region that says when to ask again is asked again then, for as long as one question may take; that is no answer yet

The question is a record's position and who wrote it; the primary region answers from its log and the lineage, at any time after.
Asked over HTTP, at all addresses at once; addresses of regions that an answer names are asked from then on, too.
"""

import asyncio
import enum
import json
import time
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, Final, NamedTuple, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
)

from idempotency.identity import (
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    RegionEpoch,
)
from region_broker.client.errors import Refused, Unreachable
from region_broker.security.login import NO_SECURITY, Security

_TIMEOUT_S: Final = 3.0

_FINAL: Final = frozenset({400, 401, 403, 404, 410})
"""Statuses that the same question would meet again."""

NOT_TOLD: Final = (
    "the region that gave its producer the id has not told which one (may it Describe its transactional id? do two regions act?), and what"
    " lies there now may be another's. `tidemark region losses` lists what failovers cut off"
)


class Verdict(enum.Enum):
    """What became of a transaction. OPEN is not final: its time-out will decide it, unless a failover cut it off in a region whose
    leaders are spread: then it stays so until something is written in its place."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "lost"
    OPEN = "open"


class Position(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


class WrittenBy(NamedTuple):
    """Who wrote the records of a transaction: the `pair` of producer id and epoch, and the region epoch under which that was given out; None:
    nobody told."""

    region_epoch: RegionEpoch | None = None
    pair: ProducerPair | None = None


class Standing(NamedTuple):
    """What the primary region knows of a transactional id; `region_epoch`: under which its producer id was given
    out. `last_producer_epoch`: of the pair that its holder may still repeat (KIP-360), None if the region does not tell; its
    producer id, where that is another one: `previous_producer_id`."""

    state: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    region_epoch: RegionEpoch
    last_producer_epoch: ProducerEpoch | None = None
    previous_producer_id: ProducerId | None = None

    @property
    def pair(self) -> ProducerPair:
        """Return whose records are its holder's."""
        return self.producer_id, self.producer_epoch

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """Read one of `GET /v1/transactions`; raises KeyError, ValueError, TypeError."""
        last = row.get("last_producer_epoch")
        previous = ProducerId(int(row.get("previous_producer_id", NO_PRODUCER_ID)))
        return cls(
            state=str(row["state"]),
            producer_id=ProducerId(int(row["producer_id"])),
            producer_epoch=ProducerEpoch(int(row["producer_epoch"])),
            region_epoch=RegionEpoch(int(row["region_epoch"])),
            last_producer_epoch=None if last is None else ProducerEpoch(int(last)),
            previous_producer_id=None if previous == NO_PRODUCER_ID else previous,
        )


class _Acting(NamedTuple):
    url: str
    region_epoch: RegionEpoch


class _Answer(NamedTuple):
    verdict: Verdict
    by_producer: bool
    """Whether the region looked at the pair: one of an older version does not."""


def _query_of(written_by: WrittenBy) -> dict[str, int]:
    query: dict[str, int] = {}
    if written_by.region_epoch is not None:
        query["region_epoch"] = written_by.region_epoch
    if written_by.pair is not None:
        query["producer_id"], query["producer_epoch"] = written_by.pair
    return query


class VerdictClient:
    """Asks the regions at `urls` (a list, or one string with commas)."""

    def __init__(
        self,
        urls: str | Sequence[str],
        timeout_s: float = _TIMEOUT_S,
        security: Security = NO_SECURITY,
    ) -> None:
        """`urls` may be empty: then nothing can be asked. `timeout_s` is for one question to one region."""
        self._security = security
        self._timeout_s = timeout_s
        parts = urls.split(",") if isinstance(urls, str) else list(urls)
        self._urls = [part.strip().rstrip("/") for part in parts if part.strip()]
        self._newest: RegionEpoch | None = None
        """The greatest region epoch that was seen to act."""

    @property
    def can_ask(self) -> bool:
        """Return whether there are addresses to ask at."""
        return bool(self._urls)

    async def ask(self, position: Position, region_epoch: RegionEpoch | None) -> Verdict:
        """Return the verdict on the record at `position`, written under `region_epoch`.

        Raises `Unreachable` if no primary region answers, `Refused` where it has no answer (deleted by
        retention, compacted, never written), or may not tell this client.
        """
        return (await self._answer(position, WrittenBy(region_epoch))).verdict

    async def ask_of(self, position: Position, written_by: WrittenBy) -> Verdict:
        """Return the verdict on the record at `position`, whichever region epoch it was written under (INV-CP31); raises as `ask`.

        `lost` by the region epoch of the pair alone, of a region of an older version: 1. the pair is given out. 2. A planned switch. 3. The
        record is written. What the log holds of that region epoch ends before it then, and none of it is lost. Anything else that
        such a region says is right: the record there was written under that very one, and no later one began before it.
        """
        if written_by.region_epoch is None or written_by.pair is None:
            raise Refused(f"no verdict on {position}: {NOT_TOLD}")
        answer = await self._answer(position, written_by)
        if answer.verdict is Verdict.LOST and not answer.by_producer:
            raise Refused(
                f"no verdict on {position}: what was written under region epoch {written_by.region_epoch} is lost, but a switch may"
                " have come before it was written. Only the producer's id and epoch tell, and the region is of an older version:"
                " upgrade it"
            )
        return answer.verdict

    async def _answer(self, position: Position, written_by: WrittenBy) -> _Answer:
        acting = await self._acting()
        path = f"/v1/verdict?{urlencode(position._asdict() | _query_of(written_by))}"
        try:
            answer = await self._answered(acting.url, path)
            return _Answer(Verdict(answer["verdict"]), answer.get("by_producer") is True)
        except _Problem as problem:
            if problem.status in _FINAL:
                raise Refused(
                    f"no verdict on {position}: {problem}", code=problem.code
                ) from problem
            raise Unreachable(f"no verdict from {acting.url}: {problem}") from problem
        except (KeyError, ValueError, OSError, HTTPException) as error:
            raise Unreachable(f"no verdict from {acting.url}: {error}") from error

    async def _answered(self, url: str, path: str) -> dict[str, Any]:
        """Return the answer, asking again where the region says when (INV-CP40); raises as `_get`."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return await asyncio.to_thread(_get, url, path, self._timeout_s, self._security)
            except _Problem as problem:
                wait_s = problem.retry_after_s
                if wait_s is None or time.monotonic() + wait_s > deadline_s:
                    raise
            await asyncio.sleep(wait_s)

    async def standing(self, transactional_id: str) -> Standing | None:
        """Return what the primary region knows of a transactional id, None if it knows nothing of it.

        Raises `Unreachable` where nobody tells (INV-CP21), `Refused` where this client may not be told.
        """
        path = f"/v1/transactions?{urlencode({'transactional_id': transactional_id})}"
        acting = await self._acting()
        try:
            answer = await self._answered(acting.url, path)
            found = [Standing.of(row) for row in answer["transactions"]]
        except (_Problem, KeyError, ValueError, TypeError, OSError, HTTPException) as error:
            text = f"{acting.url} does not tell who uses the transactional id {transactional_id!r}: {error}"
            if isinstance(error, _Problem) and error.status in _FINAL:
                raise Refused(text, code=error.code) from error
            raise Unreachable(text) from error
        return found[0] if found else None

    async def region_epoch(self) -> RegionEpoch | None:
        """Return the primary region's epoch, or None when nobody acts or can be asked."""
        try:
            return (await self._acting()).region_epoch
        except Unreachable:
            return None

    async def _acting(self) -> _Acting:
        if not self._urls:
            raise Unreachable("no urls of regions were given, so nobody can be asked")
        urls = tuple(self._urls)
        found = await asyncio.gather(
            *(asyncio.to_thread(_stand_of, url, self._timeout_s, self._security) for url in urls)
        )
        reasons = []
        acting: list[_Acting] = []
        for url, stand in zip(urls, found, strict=True):
            if isinstance(stand, str):
                reasons.append(f"{url}: {stand}")
                continue
            self._learn(stand)
            if stand.get("acting") is True:
                acting.append(_Acting(url, RegionEpoch(int(stand["region_epoch"]))))
            else:
                reasons.append(f"{url}: {stand.get('reason_not_acting') or 'it does not act'}")
        if not acting:
            raise Unreachable("no primary region answered: " + "; ".join(reasons))
        newest = max(acting, key=lambda each: each.region_epoch)
        if self._newest is not None and newest.region_epoch < self._newest:
            raise Unreachable(
                f"only {newest.url} says that it acts, under region epoch {newest.region_epoch}, and {self._newest} has acted since:"
                " it was cut off"
            )
        self._newest = newest.region_epoch
        return newest

    def _learn(self, stand: dict[str, Any]) -> None:
        for peer in stand.get("peers", ()):
            url = str(peer.get("http", "")).rstrip("/")
            if url and url not in self._urls:
                self._urls.append(url)


class _Problem(Exception):
    """An answer that is an error (RFC 9457). `retry_after_s`: when to ask again, where it says so."""

    def __init__(self, status: int, body: bytes, retry_after_s: int | None = None) -> None:
        try:
            decoded = json.loads(body)
            detail, code = str(decoded["detail"]), str(decoded["code"])
        except (ValueError, KeyError, TypeError):
            detail, code = f"status {status}", ""
        super().__init__(detail)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


def _get(url: str, path: str, timeout_s: float, security: Security) -> dict[str, Any]:
    """Return the answer; raises `_Problem`, OSError, HTTPException, ValueError (what is no JSON, and `LoginRefused`, included)."""
    said = security.http_headers(url)
    asked = Request(url + path, headers=said)  # noqa: S310 -- the application's
    is_private = url.startswith("https:")
    handlers: list[BaseHandler] = [_NoRedirect()]
    if is_private:
        handlers.append(HTTPSHandler(context=security.ssl_context()))
    elif said:
        handlers.append(ProxyHandler({}))  # it would read along
    opener = build_opener(*handlers)
    try:
        with opener.open(asked, timeout=timeout_s) as response:
            answer: dict[str, Any] = json.load(response)
    except HTTPError as error:
        with error:
            retry_after_s = _seconds_of(error.headers.get("Retry-After"))
            raise _Problem(error.code, error.read(65_536), retry_after_s) from error
    return answer


def _seconds_of(retry_after: str | None) -> int | None:
    """Return how long to wait, at least a second; None where that is not said, or not in seconds (RFC 9110)."""
    return max(1, int(retry_after)) if retry_after and retry_after.isdecimal() else None


class _NoRedirect(HTTPRedirectHandler):
    """Follows nobody: what says who asks is for the address that was meant."""

    def redirect_request(self, *_redirect: Any) -> None:
        return None


def _stand_of(url: str, timeout_s: float, security: Security) -> dict[str, Any] | str:
    """Return `GET /v1/region`, or why there is none."""
    try:
        return _get(url, "/v1/region", timeout_s, security)
    except (_Problem, URLError, OSError, ValueError, HTTPException) as error:
        return str(error)
