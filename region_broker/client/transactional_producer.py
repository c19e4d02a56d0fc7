"""A transactional producer for asyncio, with confluent-kafka underneath.

INV-CP1  a transaction that `transaction()` leaves without an error is committed, once
INV-CP2  nothing is repeated while it may have been written: after a commit without an answer the verdict is
        asked, and only what was aborted or lost is sent again
INV-CP3  a fence by failover (rule T22: every transactional producer gets a new producer id) rebuilds the
        producer and repeats the transaction, and so does one by the region itself, which aborts what is open for too
        long; a fence by another instance, also one that began before a planned switch or after a failover, is an error,
        and never answered by fencing that one; nor is one while no region tells whose the id is
INV-CP22 whoever held a producer id looks whose it is before each request for another one, and such a request is short: while it
        waits for a region, another instance may be given the id. Whoever was seen to be replaced before it was told its own asks for none
INV-CP32 a verdict is asked of who wrote the transaction, as it was known when that was begun: a new producer id, or a planned switch, which
        nobody notices, changes nothing about it; nor does what an application asks by itself later. Nor is it asked of a producer that has
        written nothing. Of its last transaction a producer keeps where it lies, and neither the records nor librdkafka's producer
The region epoch of a producer id is known together with its pair, or None, never assumed (INV-CP38): without them no verdict is asked. A transaction that commits a consumer's position is not
repeated here after a failover or a rebalance: what was read before it may have been cut off too, so the consumer goes
back and reads again.

confluent-kafka's calls that wait run in one thread per producer; handing over a record never leaves the loop.
Not here: the protocol (librdkafka), how its calls are waited for (`waiting_calls`), the decision (`txn_coordinator`), where a verdict is read from
(`region_broker.client.verdicts`), whether what stands is another instance's (`succession`).
"""

import asyncio
import enum
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, NoReturn, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from idempotency.identity import RegionEpoch
from region_broker.client.across_regions import across_regions
from region_broker.client.errors import (
    MEMBERSHIP_LOST,
    REFUSALS,
    Fenced,
    OutcomeUnknown,
    Refused,
    TidemarkError,
    TransactionAborted,
    Unreachable,
    kafka_error,
    unmasked,
)
from region_broker.client.retirement import retire
from region_broker.client.serializers import Serializer
from region_broker.client.succession import Succession
from region_broker.client.timeouts import DEFAULT_TIMEOUTS, Timeouts
from region_broker.client.transaction import Attempt, Transaction
from region_broker.client.verdicts import (
    NOT_TOLD,
    Position,
    Standing,
    Verdict,
    VerdictClient,
    WrittenBy,
)
from region_broker.client.waiting_calls import backoff_s, initialised, most_telling, until_answered
from region_broker.security.login import NO_SECURITY, Security

ATTEMPT_COUNT_MAX: Final = 8
_ROOM_POLL_S: Final = 0.1
_NOT_OPEN: Final = float("inf")
"""Began never: the region has nothing to abort for its age."""

Result = TypeVar("Result")


_FENCES: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED})
_OF_NO_PAIR: Final = frozenset(
    {KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID}
)
"""What a region says that does not know the pair (any more): an earlier try at the commit may have been carried out all the same, there or elsewhere."""


class _Sent(enum.Enum):
    NO = enum.auto()
    PERHAPS = enum.auto()


class _Failure(NamedTuple):
    """Why a commit did not succeed, and whether it may have been asked for."""

    error: KafkaError
    commit_sent: _Sent


class TransactionalProducer:
    """Use as ``async with TransactionalProducer(...) as producer``; one transaction at a time.

    `bootstrap` names brokers of several regions, `urls` the HTTP addresses that verdicts are asked from
    (one live region's is enough: it names the others). `config` is passed on to librdkafka.
    """

    def __init__(  # noqa: PLR0913 -- keyword-only, one for each thing an application may want
        self, *, bootstrap: str | Sequence[str], transactional_id: str,
        urls: str | Sequence[str] = (), transaction_timeout_ms: int = 60_000,
        key_serializer: Serializer | None = None, value_serializer: Serializer | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS, security: Security = NO_SECURITY,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self._config = {
            "bootstrap.servers": bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "linger.ms": 0,
            "topic.metadata.propagation.max.ms": 10_000,
            **across_regions(transaction_timeout_ms),
            "log_level": 2,
            **security.kafka_config(),
            **(config or {}),
        }
        self._id = transactional_id
        self._transaction_timeout_s = transaction_timeout_ms / 1000
        self._serializers = (key_serializer, value_serializer)
        self._timeouts = timeouts
        self._verdicts = VerdictClient(urls, timeouts.ask_s, security)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"producer-{transactional_id}")
        self._kafka: Producer | None = None
        self._usable = False
        self._started = False
        self._busy = False
        self._last_error: KafkaError | None = None
        self._fenced: Fenced | None = None
        self._region_epoch: RegionEpoch | None = None
        self._acted_under: RegionEpoch | None = None
        """The region epoch that acted while the producer id was given out: not necessarily the one that gave it."""
        self._succession = Succession()
        self._began_s = _NOT_OPEN
        self._last: tuple[list[Position], WrittenBy] | None = None
        """Where the last transaction lies, and who wrote it."""
        self._written_by: set[WrittenBy] = set()
        """Who wrote this producer's transactions; two of them say that there were several."""

    async def __aenter__(self) -> Self:
        """Connect and fence earlier instances."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Close; an open transaction has been aborted by then."""
        await self.close()

    async def start(self) -> None:
        """Obtain a producer id; waits through a failover, then raises `Unreachable`."""
        self._started = True
        # Whoever starts means to take the id.
        self._last_error = self._fenced = None
        self._succession.lose()
        await self._rebuild()

    async def close(self) -> None:
        """Let go of the connections."""
        self._started = self._usable = False
        self._retire()
        self._thread.shutdown(wait=False)

    @property
    def region_epoch(self) -> RegionEpoch | None:
        """The region epoch that this producer's id was given out under, where it is known; a planned switch leaves it as it is."""
        return self._region_epoch

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Begin a transaction; commit it when the block ends, abort it when the block raises.

        A commit that is refused for a passing reason (time-out, failover) is repeated with everything that
        was sent. Raises `TransactionAborted` (run it again), `OutcomeUnknown` (ask `verdict`), `Fenced`,
        `Refused`, `Unreachable`. A task that is cancelled in here leaves the outcome open.
        """
        if self._busy:
            raise Refused(
                f"producer {self._id!r} has a transaction open: end it first, or use another producer"
                " with another transactional id"
            )
        self._busy = True
        transaction = Transaction(self, self._serializers)
        try:
            await self._begin(transaction)
            try:
                yield transaction
            except BaseException:
                transaction.close()
                await self._abort()
                raise
            transaction.close()
            await self._commit_or_repeat(transaction)
        finally:
            self._busy = False

    async def verdict(
        self, positions: Transaction | Sequence[Position], *, region_epoch: RegionEpoch | None = None,
        written_by: WrittenBy | None = None,
    ) -> Verdict:  # fmt: skip
        """Return the word on a transaction: itself, or that whose records were delivered to these positions.

        A transaction knows who wrote it. Positions do not: `written_by` is what its `written_by` was, and `region_epoch` the one under
        which the records themselves were written, if that is all that is known; without either this very object must have written
        them, as its last transaction, or with the only producer id that it has had. Raises `Unreachable`, `Refused`.
        """
        where = positions.positions if isinstance(positions, Transaction) else positions
        if not where:
            raise Refused("no position is given: nothing of the transaction was delivered")
        if region_epoch is not None and written_by is None:
            return await self._verdicts.ask(where[0], region_epoch)
        known = positions.written_by if isinstance(positions, Transaction) else written_by
        return await self._verdicts.ask_of(where[0], known or self._who_wrote(where[0]))

    def _who_wrote(self, position: Position) -> WrittenBy:
        """Return who wrote a record of this producer; raises `Refused` where that is not known.

        That the last transaction has this very object says that it wrote it: an equal one may be of a transaction that was lost.
        """
        positions, written_by = self._last or ([], WrittenBy())
        if any(position is each for each in positions):
            return written_by
        if len(self._written_by) != 1:
            why = (
                "has had several producer ids"
                if self._written_by
                else "has begun no transaction yet"
            )
            raise Refused(
                f"this producer {why}: give the transaction itself, or its `written_by`, beside {position}"
            )
        return written_by

    def _as_now(self) -> WrittenBy:
        return WrittenBy(self._region_epoch, self._succession.pair)

    async def wait_for_room(self, attempt: Attempt) -> None:
        """Let deliveries be told, which makes room in librdkafka's queue."""
        await self._call(attempt.serve, _ROOM_POLL_S)

    # -- one attempt -------------------------------------------------------------------------------

    async def _begin(self, transaction: Transaction) -> None:
        if self._fenced is not None:
            raise self._fenced
        if not self._started:
            raise Refused("the producer was not started: use `async with` or call start()")
        for _ in range(2):
            if not self._usable or self._kafka is None:
                await self._rebuild()
            kafka = self._kafka
            assert kafka is not None
            try:
                await self._call(kafka.begin_transaction)
            except KafkaException as error:
                self._condemn(kafka_error(error))
            else:
                attempt = transaction.begin_attempt(kafka)
                transaction.written_by = self._as_now()
                if len(self._written_by) < 2:
                    self._written_by.add(transaction.written_by)
                self._last = (attempt.positions, transaction.written_by)
                self._began_s = time.monotonic()
                return
        assert self._last_error is not None
        raise Unreachable(
            f"no transaction could be begun: {self._last_error.str()}", code=self._last_error.name()
        )

    async def _abort(self) -> None:
        """Abort, for an error of the application. If that fails, the next InitProducerId does it."""
        kafka = self._kafka
        assert kafka is not None
        self._usable = False
        try:
            await self._call(
                until_answered,
                self._timeouts.call_s,
                lambda: kafka.abort_transaction(self._timeouts.call_s),
            )
        except KafkaException as error:
            self._condemn(kafka_error(error))
            return
        self._began_s = _NOT_OPEN
        # Aborting may have taken a new producer id (KIP-360), in another region epoch, too.
        followed = await self._followed_own()
        epoch = await self._verdicts.region_epoch() if self._verdicts.can_ask else None
        self._usable = followed and epoch == self._acted_under

    async def _commit_or_repeat(self, transaction: Transaction) -> None:
        while True:
            self._usable = False
            failure = await self._call(self._try_commit, transaction)
            if failure is None:
                self._usable = True
                return
            self._condemn(failure.error)
            began_under = self._region_epoch
            if await self._was_committed(transaction, failure):
                return
            self._check_repeatable(transaction, failure.error, began_under)
            await asyncio.sleep(backoff_s(transaction.attempt_count))
            await self._begin(transaction)
            await self._call(transaction.attempt.offer_all, transaction.records)

    def _try_commit(self, transaction: Transaction) -> _Failure | None:
        """Deliver and commit; in the producer's thread. Raises `Refused`."""
        attempt = transaction.attempt
        kafka = attempt.kafka
        try:
            for offsets, group_metadata in transaction.offsets:
                until_answered(
                    self._timeouts.call_s,
                    lambda o=offsets, g=group_metadata: kafka.send_offsets_to_transaction(  # type: ignore[misc]
                        o, g, self._timeouts.call_s
                    ),
                )
            left = unmasked(kafka.flush, self._transaction_timeout_s)
        except KafkaException as error:
            return _Failure(kafka_error(error), _Sent.NO)
        if left and not attempt.errors:
            return _Failure(KafkaError(KafkaError._TIMED_OUT), _Sent.NO)
        # librdkafka sends no EndTxn after a failed delivery; committing then says what failed.
        sent = _Sent.NO if attempt.errors else _Sent.PERHAPS
        try:
            until_answered(
                self._timeouts.commit_s, lambda: kafka.commit_transaction(self._timeouts.call_s)
            )
        except KafkaException as error:
            return _Failure(most_telling(kafka_error(error), attempt.errors), sent)
        self._began_s = _NOT_OPEN  # here, as whoever waits for this may have been cancelled
        return None

    # -- after a failure ---------------------------------------------------------------------------

    def _condemn(self, error: KafkaError) -> None:
        """Use this librdkafka producer no more: what it does after an error is its own business."""
        self._usable = False
        self._last_error = error
        self._retire()

    def _retire(self) -> None:
        """Let the librdkafka producer go, in its thread: before the next one is built there (INV-CP13)."""
        if self._kafka is not None:
            self._thread.submit(retire, self._kafka)
            self._kafka = None

    def _check_repeatable(
        self, transaction: Transaction, error: KafkaError, began_under: int | None
    ) -> None:
        why = f"{error.str()} ({error.name()})"
        if error.code() in REFUSALS:
            raise Refused(f"the transaction was aborted, it cannot be written: {why}",
                          code=error.name())  # fmt: skip
        moved = self._region_epoch != began_under or began_under is None
        if transaction.offsets and (moved or error.code() in MEMBERSHIP_LOST):
            raise TransactionAborted(
                "the transaction was aborted, and what it read may have changed hands or been cut off:"
                f" rewind() the consumer and run it again from what is read then. {why}",
                code=error.name(),
            )
        if transaction.attempt_count >= ATTEMPT_COUNT_MAX:
            raise TransactionAborted(
                f"the transaction was tried {transaction.attempt_count} times and aborted each time, at"
                f" last because: {why}",
                code=error.name(),
            )

    async def _was_committed(self, transaction: Transaction, failure: _Failure) -> bool:
        """Find out, and leave a new producer behind. Raises `Fenced`, `OutcomeUnknown`, `Unreachable`."""
        epoch, error = transaction.written_by.region_epoch, failure.error
        # An abortable error is librdkafka's word that nothing was committed; checked where that can be.
        believed = epoch is None and error.txn_requires_abort() and error.code() not in _OF_NO_PAIR
        perhaps = failure.commit_sent is _Sent.PERHAPS and not believed
        try:
            await self._rebuild()  # InitProducerId: when it answers, whatever was open is decided
        except Fenced as fenced:
            verdict = await self._word(transaction) if perhaps else Verdict.ABORTED
            if verdict is Verdict.COMMITTED:
                return True  # the next transaction meets the fence
            fenced.maybe_written = verdict is Verdict.OPEN
            raise
        except TidemarkError as unreachable:
            if perhaps:
                raise self._unknown(transaction, error, str(unreachable)) from unreachable
            raise
        if not perhaps:
            return False
        verdict = await self._word(transaction)
        if verdict is Verdict.OPEN:
            raise self._unknown(transaction, error, "no region could give the final word")
        return verdict is Verdict.COMMITTED

    async def _word(self, transaction: Transaction) -> Verdict:
        """Return the final word on a transaction; OPEN where there is none within the time limit."""
        positions, written_by = transaction.positions, transaction.written_by
        if not positions or written_by.region_epoch is None:
            return Verdict.OPEN
        deadline_s = time.monotonic() + self._timeouts.recovery_s
        attempt_count = 0
        while True:
            attempt_count += 1
            try:
                verdict = await self._verdicts.ask_of(positions[0], written_by)
            except Unreachable:
                verdict = Verdict.OPEN
            except Refused:
                return Verdict.OPEN
            if verdict is not Verdict.OPEN or time.monotonic() > deadline_s:
                return verdict
            await asyncio.sleep(backoff_s(attempt_count))

    def _unknown(self, transaction: Transaction, error: KafkaError, why: str) -> OutcomeUnknown:
        positions = transaction.positions
        hint = (
            f"Ask verdict() with the transaction, or with {positions[0]} and written_by={transaction.written_by}."
            if positions
            else "It has no records: the group's committed position tells, rewind() the consumer."
        )
        if not self._verdicts.can_ask:
            hint = "Give the producer `urls` of the regions, so that it can ask. " + hint
        elif positions and transaction.written_by.pair is None:
            hint = f"No verdict can be asked: {NOT_TOLD}."
        return OutcomeUnknown(
            f"the commit was sent and not answered ({error.str()}); {why}. {hint}",
            code=error.name(),
        )

    async def _check_fence(self) -> None:
        """Raise `Fenced` if another instance was seen to come in between, or if the last error is a fence, unless it may be one by failover
        or time-out; `Unreachable` if nobody tells.
        """
        if self._succession.was_replaced:
            self._fence()
        error = self._last_error
        if error is None or error.code() not in _FENCES:
            return
        if not self._succession.is_known:
            self._fence(
                " (or a failover has replaced it, which cannot be told apart without the regions' `urls`)"
            )
        if self._succession.has_asked:
            return
        acting = await self._acting_epoch(self._timeouts.recovery_s)
        if acting == self._region_epoch and not await self._timed_out():
            self._fence()

    def _fence(self, doubt: str = "") -> NoReturn:
        error = self._last_error
        self._fenced = Fenced(
            f"another producer uses the transactional id {self._id!r} now{doubt}: this one must stop",
            code="" if error is None else error.name(),
        )
        raise self._fenced

    async def _check_successor(self, timeout_s: float) -> None:
        """Raise `Fenced` if another instance was given a producer id since this one's (INV-CP3).

        An instance that was replaced need not have met a fence: it may meet other errors, too, or none if it has sent nothing since
        (T22, a transaction that was cancelled).
        """
        standing = await self._told(timeout_s)
        self._succession.look(standing)
        if self._succession.is_anothers(standing, timed_out=self._was_open_too_long):
            self._fence()

    async def _timed_out(self) -> bool:
        """Return whether the fence is the region's own: it aborted a transaction that was open for too long.

        Not known without `urls`: then it counts as another instance.
        """
        return self._was_open_too_long and self._succession.was_ended_by_region(
            await self._told(self._timeouts.recovery_s)
        )

    @property
    def _was_open_too_long(self) -> bool:
        return time.monotonic() - self._began_s >= self._transaction_timeout_s

    async def _told(self, timeout_s: float) -> Standing | None:
        """Return what stands for the transactional id; raises `Unreachable` after `timeout_s` (INV-CP21), `Refused`."""
        return await _reached(lambda: self._verdicts.standing(self._id), timeout_s)

    async def _acting_epoch(self, timeout_s: float) -> RegionEpoch:
        """Return the region epoch that is acting, waiting through a failover; raises `Unreachable` after `timeout_s`."""
        return await _reached(self._acts_now, timeout_s)

    async def _acts_now(self) -> RegionEpoch:
        epoch = await self._verdicts.region_epoch()
        if epoch is None:
            raise Unreachable(
                f"no region acts, so nobody tells who uses the transactional id {self._id!r} now"
            )
        return epoch

    async def _rebuild(self) -> None:
        """Obtain a producer id and learn the region epoch it belongs to. Raises `Fenced`, `Unreachable`, `Refused`."""
        self._usable = False
        await self._check_fence()
        for _ in range(ATTEMPT_COUNT_MAX):
            self._retire()  # also one whose transaction was cancelled: no error has condemned it
            before = await self._obtain()
            self._acted_under = await self._verdicts.region_epoch()
            if before == self._acted_under and await self._learned_own():
                break
        else:
            self._succession.lose()
        self._region_epoch = self._acted_under if self._succession.is_known else None
        self._last_error = None
        self._began_s = _NOT_OPEN
        self._usable = True

    async def _obtain(self) -> RegionEpoch | None:
        """Obtain a producer id; return the region epoch that acted before, None if nobody tells (INV-CP22)."""
        if not self._succession.is_known:
            acting = await self._looked()
            await self._ask_for_id(acting, self._timeouts.recovery_s)
            return acting
        deadline_s = time.monotonic() + self._timeouts.recovery_s
        attempt_count = 0
        while True:
            await self._thread_is_free()
            if self._succession.has_asked:  # whoever acts by now may have carried it out
                left_s = deadline_s - time.monotonic()
                self._succession.ask_under(await self._acting_epoch(left_s))
            await self._check_successor(deadline_s - time.monotonic())
            try:
                acting = await self._acting_epoch(0.0)
                await self._ask_for_id(acting, self._timeouts.call_s)
            except Unreachable:
                if time.monotonic() > deadline_s:
                    raise
            else:
                return acting
            attempt_count += 1
            await asyncio.sleep(backoff_s(attempt_count))

    async def _looked(self) -> RegionEpoch | None:
        """Note what stands before a producer id is asked for; return the region epoch that acts then, None if nobody tells."""
        self._succession.look(None)
        acting = await self._verdicts.region_epoch()
        if acting is None:
            return None
        try:
            self._succession.look(await self._told(self._timeouts.call_s))
        except Unreachable:
            return None
        except Refused:
            pass  # nor is it told what stands behind it
        return acting

    async def _thread_is_free(self) -> None:
        """Return once the thread has done what it was given before: a call goes on there whose caller was cancelled."""
        await self._call(bool)

    async def _ask_for_id(self, acting: RegionEpoch | None, timeout_s: float) -> None:
        if acting is not None:
            self._succession.ask_under(acting)
        self._kafka = await self._call(initialised, self._config, timeout_s, self._timeouts.call_s)

    async def _learned_own(self) -> bool:
        """Learn which pair is this producer's; return False if the region went silent, so that one of the next is better."""
        acting, told = self._acted_under, None
        try:
            if acting is not None:
                told = await self._told(self._timeouts.call_s)
        except Unreachable:
            return False
        except Refused:
            told = None  # then every fence counts as another instance's
        if acting is None or told is None:
            self._succession.lose()
        else:
            self._succession.hold(told, acting)
        return True

    async def _followed_own(self) -> bool:
        """Learn which pair an abort has left to this producer (KIP-360); return False if nobody tells."""
        if not self._succession.is_known:
            return True
        try:
            self._succession.follow(await self._told(self._timeouts.call_s))
        except (Unreachable, Refused):
            return False
        return True

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


async def _reached(ask: Callable[[], Awaitable[Result]], timeout_s: float) -> Result:
    """Return what `ask` returns, asking again while it raises `Unreachable`; raises that after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    attempt_count = 0
    while True:
        try:
            return await ask()
        except Unreachable:
            if time.monotonic() > deadline_s:
                raise
        attempt_count += 1
        await asyncio.sleep(backoff_s(attempt_count))
