"""A read-committed consumer for asyncio, with confluent-kafka underneath.

INV-CP5  the position moves only past what was handed out; it is committed by `commit`, or with a transaction
INV-CP12 records and positions of a partition are forgotten when the group takes it away
INV-CP15 what librdkafka gave out before a seek or a rewind is dropped in the order in which its thread did both: a poll that
         was given up goes on in that thread, and what it finds is either handed out in its place or not at all
INV-CP25 nothing is handed out while a fetch is under way: it may have found by now that a partition is taken away, which would
         still count as read from
INV-CP33 only of a partition that was sent elsewhere is dropped what was fetched: librdkafka stands behind that, so after a seek or a rewind
         that failed it would be passed by. Nothing is handed out while one is under way, nor by a poll that waited already when it began
INV-CP18 where the group has committed nothing yet, it goes back to the first record that it was given, not to the end
INV-CP26 a record that cannot be deserialized is passed by on an order only (`skip`), which is committed: what begins at the
         committed position goes on behind it
INV-CP16 nobody waits in silence: a start without a broker is an error, a loss of all brokers is logged
Only records of committed transactions (and plain ones) are handed out, in offset order per partition.

Bootstrap over several regions: reads are served by whichever region answers, up to the tidemark it reached.
Records are fetched from librdkafka in batches, one thread hop each.
Not here: transactions (`transactional_producer`), reading and writing in one (`read_batches`), what is paused (`pauses`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Self, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from region_broker.client.across_regions import ACROSS_REGIONS
from region_broker.client.errors import (
    MEMBERSHIP_LOST,
    REFUSALS,
    Refused,
    TidemarkError,
    Unreachable,
    kafka_error,
)
from region_broker.client.expected_places import (
    ExpectedPlaces,
    Place,
    committed_places,
    known_places,
    place_of,
)
from region_broker.client.handed_out import HandedOut
from region_broker.client.pauses import Pauses
from region_broker.client.read_batches import ReadBatch, process, read_in_transactions
from region_broker.client.serializers import Deserializer, deserialized
from region_broker.client.timeouts import DEFAULT_TIMEOUTS, Timeouts
from region_broker.client.transactional_producer import TransactionalProducer
from region_broker.client.verdicts import Position
from region_broker.client.waiting_calls import Heard, reach
from region_broker.security.login import NO_SECURITY, Security

_POLL_TIMEOUT_S: Final = 0.5
_BATCH_COUNT: Final = 500
_LATE_S: Final = 1.0
_UNKNOWN_TOPIC: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}

_QUIET: Final = logging.getLogger("tidemark.client.librdkafka")

Result = TypeVar("Result")


class _Member(NamedTuple):
    """Behind the records of a fetch: as which member of the group they were taken in."""

    membership: object


class _TakenAway(NamedTuple):
    """Between the records of a fetch: from here on these partitions are no longer ours."""

    places: frozenset[Place]


class ReadCommittedConsumer:
    """Use as ``async with ReadCommittedConsumer(...) as consumer`` and iterate, or call `poll`.

    Commits nothing by itself: `commit`, `Transaction.send_offsets`, or `transactions`, which does all of it. `config` is
    passed on to librdkafka. With deserializers `key()` and `value()` of records return what these make of the bytes.
    """

    def __init__(  # noqa: PLR0913 -- keyword-only, one for each thing an application may want
        self, topics: Sequence[str], *, bootstrap: str | Sequence[str], group_id: str,
        from_beginning: bool = True, key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None, timeouts: Timeouts = DEFAULT_TIMEOUTS,
        security: Security = NO_SECURITY, config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self._topics = list(topics)
        self._start_offset = OFFSET_BEGINNING if from_beginning else OFFSET_END
        self._brokers = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
        self._deserializers = (key_deserializer, value_deserializer)
        self._timeouts = timeouts
        self._heard = Heard(self._brokers, "reading waits for one")
        self._config = {
            "bootstrap.servers": self._brokers,
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if from_beginning else "latest",
            **ACROSS_REGIONS,
            "error_cb": self._heard,
            "log_level": 2,
            **security.kafka_config(),
            **(config or {}),
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"consumer-{group_id}")
        self._kafka: Consumer | None = None
        self._fetched: deque[Message] = deque()
        self._pauses = Pauses()
        self._held: deque[Message] = deque()
        """Fetched of a partition that was paused then."""
        self._refused: Refused | None = None
        """What stands behind the records that `poll_many` has returned."""
        self._fetching: asyncio.Future[None] | None = None
        self._found: list[Message | _TakenAway | _Member] = []
        self._moving: asyncio.Future[None] | None = None
        """The last seek or rewind."""
        self._out = HandedOut()
        self._began: dict[Place, int] = {}
        """The first record of each partition that librdkafka gave out since it came; used in the thread only."""
        self._expected = ExpectedPlaces(timeouts.committed_s, from_beginning=from_beginning)

    async def __aenter__(self) -> Self:
        """Join the group."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Leave the group."""
        await self.close()

    async def start(self) -> None:
        """Subscribe; partitions arrive with the first polls. Raises `Unreachable` if no broker answers (INV-CP16)."""
        kafka = Consumer(self._config, logger=_QUIET)
        try:
            await self._in_thread(
                lambda: reach(kafka, self._brokers, self._timeouts.connect_s, self._heard)
            )
        except TidemarkError:
            await self._in_thread(kafka.close)
            raise
        kafka.subscribe(
            self._topics,
            on_assign=self._given,
            on_revoke=self._taken_away,
            on_lost=self._taken_away,
        )
        self._kafka = kafka

    async def close(self) -> None:
        """Leave the group and close; what was not committed is read again by who comes next."""
        if self._kafka is not None:
            kafka, self._kafka = self._kafka, None
            await self._in_thread(kafka.close)
        self._thread.shutdown(wait=False)

    # -- reading -----------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = _POLL_TIMEOUT_S) -> Message | None:
        """Return the next record, or None when none came in time.

        Raises `Refused` on an error that reading on will not mend (unknown topic, no authority, bytes that a
        deserializer does not take, as `Unreadable`: again at each call, until a `skip` of that record, or a `seek` behind it).
        """
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        if not await self._stands(timeout_s):
            return None
        self._end_fetch()
        if not self._fetched or self._fetching is not None:
            await self._wait_for_records(timeout_s)
            if self._fetching is not None or self._is_moving:
                return None  # INV-CP25, INV-CP33
        while self._fetched:
            message = self._fetched[0]
            error = message.error()
            if error is None and place_of(message) not in self._pauses.wanted:
                return self._handed_out(message)
            self._fetched.popleft()
            if error is None:
                self._held.append(message)
            else:
                self._check(error)
        return None

    async def poll_many(
        self, count_max: int = _BATCH_COUNT, timeout_s: float = _POLL_TIMEOUT_S
    ) -> list[Message]:
        """Return up to `count_max` records: waits for the first one only, an empty list when none came in time.

        What `poll` would raise for the first one is raised; records before an error are returned first (INV-CP5).
        """
        message = await self.poll(timeout_s)
        found = [] if message is None else [message]
        while message is not None and self._fetched and len(found) < count_max:
            try:
                message = await self.poll()
            except Refused as refused:
                self._refused = refused
                break
            if message is not None:
                found.append(message)
        return found

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield records for ever."""
        while True:
            message = await self.poll()
            if message is not None:
                yield message

    def transactions(
        self, producer: TransactionalProducer, *, count_max: int = 100,
        give_up_after_s: float | None = None,
    ) -> AsyncIterator[ReadBatch]:  # fmt: skip
        """Yield records to be processed in one transaction each: read, written and committed together, or not at all.

            async for orders in consumer.transactions(producer):
                async with orders as txn:
                    for order in orders:
                        await txn.send("invoices", invoice_of(order))

        Leaving the block commits what was sent and the position behind these records. After an abort, a failover or a
        rebalance the same records come again (`read_batches`). `give_up_after_s`: raise what stands in the way when
        nothing could be committed for so long; None: go on for ever, with a warning in the log.

        `Unreadable` ends the loop: `skip` that record, and begin the loop again, which it does at the committed position
        (INV-CP26).
        """
        return read_in_transactions(self, producer, count_max, give_up_after_s)

    async def run(
        self, handler: Callable[..., Awaitable[object]],
        producer: TransactionalProducer | None = None, *, count_max: int = 100,
    ) -> None:  # fmt: skip
        """Call ``handler(record, transaction)`` for each record, for ever; without a producer ``handler(record)``.

        With a producer each record takes effect once (`transactions`). Without one its position is committed after the
        handler returned, so a crash in between calls the handler again. Raises what the handler raises, and `Unreadable`
        (`skip` that record, and call again).
        """
        await process(self, handler, producer, count_max)

    def _handed_out(self, message: Message) -> Message:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        of_key, of_value = self._deserializers
        position = Position(topic, partition, offset)
        key = deserialized(_raw(message.key()), of_key, "key", position)
        value = deserialized(_raw(message.value()), of_value, "value", position)
        if of_key is not None:
            message.set_key(key)
        if of_value is not None:
            message.set_value(value)
        self._fetched.popleft()
        self._out.note((topic, partition), offset)
        return message

    async def _stands(self, timeout_s: float) -> bool:
        """Wait for a seek or a rewind under way, whose caller may have given it up; return whether it is over (INV-CP33).

        1. A rewind is given up after a time-out, and asks on for what is committed. 2. Records are handed out, and committed. 3. It goes to
        where the group was before.
        """
        moving = self._moving
        if moving is not None and not moving.done():
            await asyncio.wait([moving], timeout=timeout_s + _LATE_S)
        return not self._is_moving

    @property
    def _is_moving(self) -> bool:
        """Whether a seek or a rewind is under way now: one may have begun while somebody waited.

        1. A poll waits for records, or for a seek. 2. Another task asks for a rewind, which is queued in the thread. 3. The poll hands out
        what there is; the rewind takes that position away, and the record comes again, in the same batch even.
        """
        return self._moving is not None and not self._moving.done()

    async def _wait_for_records(self, timeout_s: float) -> None:
        """Wait for the fetch under way, or begin one; a wait that is given up leaves it under way (INV-CP15)."""
        if self._fetching is None:
            kafka = self._joined()
            self._fetching = self._submit(lambda: self._fetch(kafka, timeout_s), then=self._take_in)
        await asyncio.wait([self._fetching], timeout=timeout_s + _LATE_S)
        self._end_fetch()

    def _end_fetch(self) -> None:
        """Let go of the fetch where it has ended: what it found is taken in by then. Raises what it met."""
        fetching = self._fetching
        if fetching is not None and fetching.done():
            self._fetching = None
            fetching.result()

    def _fetch(self, kafka: Consumer, timeout_s: float) -> list[Message | _TakenAway | _Member]:
        """Wait for one record, and take what else is there, up to one that is not to come yet; in the consumer's thread.

        Record by record: `consume` would wait for a full batch, and would not tell which of its records
        came before a rebalance within it.
        """
        found: list[Message | _TakenAway | _Member] = []
        self._found = found
        if self._pauses.is_due:
            self._pauses.carry_out(kafka)
        message = kafka.poll(timeout_s)
        while message is not None:
            if message.error() is None:
                if not self._expected.takes(kafka, message):
                    break
                self._began.setdefault(place_of(message), message.offset() or 0)
            found.append(message)
            message = kafka.poll(0) if len(found) < _BATCH_COUNT else None
        found.append(_Member(kafka.consumer_group_metadata()))
        return found

    def _take_in(self, found: list[Message | _TakenAway | _Member]) -> None:
        for each in found:
            if isinstance(each, _TakenAway):
                self._out.taken_away(each.places)
                self._forget(each.places)
            elif isinstance(each, _Member):
                self._out.membership = each.membership
            else:
                self._fetched.append(each)

    def _given(self, _kafka: Consumer, partitions: list[TopicPartition]) -> None:
        """Note what comes (called within `poll` of `_fetch`): it is assigned when this returns."""
        self._pauses.came((each.topic, each.partition) for each in partitions)

    def _taken_away(self, _kafka: Consumer, partitions: list[TopicPartition]) -> None:
        """Note it among the records (called within `poll` of `_fetch`, or `close`): the next owner reads them again."""
        gone = frozenset((each.topic, each.partition) for each in partitions)
        for place in gone:
            self._began.pop(place, None)
        self._expected.forget(gone)
        self._found.append(_TakenAway(gone))

    def _forget(self, places: Iterable[Place]) -> None:
        """Drop what was fetched of these partitions, and where they stand (INV-CP12)."""
        self._refused = None
        gone = set(places)
        self._out.forget(gone)
        self._fetched = deque(each for each in self._fetched if place_of(each) not in gone)
        self._held = deque(each for each in self._held if place_of(each) not in gone)

    # -- where it stands ---------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit the position of what was handed out.

        Raises `Unreachable` (try again), `Refused` if the group has given the partitions to others.
        """
        position = self.position()
        await self._commit(position)
        self._out.committed(position)

    async def skip(self, position: Position) -> None:
        """Go on behind the record at `position`, and commit that it and all before it in its partition is read (INV-CP26).

        For a record that cannot be read (`Unreadable`). Its partition must be assigned. Raises as `seek` and `commit` do.
        """
        behind = position._replace(offset=position.offset + 1)
        await self.seek(behind)  # first: what is another member's by now is not ours to commit
        await self._commit([TopicPartition(*behind)])

    async def _commit(self, position: list[TopicPartition]) -> None:
        kafka = self._joined()
        if not position:
            return
        try:
            await self._in_thread(lambda: kafka.commit(offsets=position, asynchronous=False))
        except KafkaException as error:
            inner = kafka_error(error)
            text = f"the position was not committed: {inner.str()}"
            if inner.code() in MEMBERSHIP_LOST | REFUSALS:
                raise Refused(
                    f"{text}. What was read is read again by the partitions' new owner: poll on.",
                    code=inner.name(),
                ) from error
            raise Unreachable(text, code=inner.name()) from error

    def position(self) -> list[TopicPartition]:
        """Return the offsets after what was handed out, of the partitions read from."""
        return self._out.position()

    def group_metadata(self) -> object:
        """Return the membership that a transaction's offsets are fenced by (INV-CP36)."""
        kafka = self._joined()
        kept = self._out.membership
        return kafka.consumer_group_metadata() if kept is None else kept

    def to_send(self, offsets: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """Return what a transaction commits of it: `offsets`, or its position; raises `TransactionAborted` where a rebalance forbids it (INV-CP35)."""
        return self._out.send(offsets)

    async def assignment(self) -> list[Place]:
        """Return the partitions that the group has given to this member, as (topic, partition)."""
        assigned = await self._in_thread(self._joined().assignment)
        return sorted((each.topic, each.partition) for each in assigned)

    async def rewind(self) -> None:
        """Go back to the committed position: after an aborted transaction.

        Raises `Unreachable` if no coordinator tells it.
        """
        kafka = self._joined()

        def to_committed(moved: set[Place]) -> None:
            assigned = kafka.assignment()
            if not assigned:
                return  # partitions come with their committed position
            for each in committed_places(kafka, assigned, self._timeouts.committed_s):
                if each.offset < 0:
                    each.offset = self._uncommitted_start(each)
                if each.offset != OFFSET_STORED:
                    moved |= self._sent_back(kafka, each)

        await self._move(to_committed, "the committed position is not known")
        self._out.rewound()

    def _sent_back(self, kafka: Consumer, target: TopicPartition) -> set[Place]:
        """Send a partition back to what is committed; nothing where it was not started yet: it begins there by itself.

        1. A partition comes, with offsets in an open transaction: librdkafka asks for them again and again. 2. That one ends. 3. The question
        of a rewind is answered before the next one of librdkafka's.
        """
        try:
            return {self._sent_to(kafka, target)}
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError._STATE:
                raise
            return set()

    def _sent_to(self, kafka: Consumer, target: TopicPartition) -> Place:
        kafka.seek(target)
        place = (target.topic, target.partition)
        self._expected.moved(place, target.offset)
        return place

    def _uncommitted_start(self, place: TopicPartition) -> int:
        """Return where a partition begins of which the group has committed nothing; OFFSET_STORED: where it stands.

        1. A consumer of what is new takes its first records. 2. Their transaction aborts. The end is behind them by then, and
        behind what has arrived since in partitions that nothing was read of (INV-CP18).
        """
        if self._start_offset == OFFSET_BEGINNING:
            return OFFSET_BEGINNING
        return self._began.get((place.topic, place.partition), OFFSET_STORED)

    async def seek(self, position: Position) -> None:
        """Read on from `position` in its partition, which must be assigned; raises `Refused`, `Unreachable`."""
        kafka = self._joined()
        target = TopicPartition(position.topic, position.partition, position.offset)

        def to_target(moved: set[Place]) -> None:
            place = self._sent_to(kafka, target)
            self._began.pop(place, None)
            moved.add(place)

        await self._move(to_target, f"no seek to {position}")

    async def seek_to_time(self, wall_ms: int) -> None:
        """Read on, in all assigned partitions, from the first record at or after a wall time in ms."""
        kafka = self._joined()

        def to_time(moved: set[Place]) -> None:
            asked = [
                TopicPartition(each.topic, each.partition, wall_ms) for each in kafka.assignment()
            ]
            found = kafka.offsets_for_times(asked, timeout=self._timeouts.committed_s)
            for each in known_places(found):
                place = self._sent_to(kafka, each)
                self._began.pop(place, None)
                moved.add(place)

        await self._move(to_time, f"no seek to the time {wall_ms}")

    async def pause(self, places: Sequence[Place] | None = None) -> None:
        """Hand out nothing more of these partitions, None: of all that are assigned, until `resume`, also where they go and come back."""
        kafka = self._joined()
        chosen = frozenset(await self.assignment() if places is None else places)
        self._pauses.wanted |= chosen
        try:
            await self._in_thread(lambda: self._pauses.carry_out(kafka))
        except KafkaException as error:
            raise _not_moved("not paused", error) from error

    async def resume(self, places: Sequence[Place] | None = None) -> None:
        """Hand out records of these partitions, None: of all that were paused, again."""
        kafka = self._joined()
        chosen = self._pauses.wanted if places is None else frozenset(places)
        self._pauses.wanted -= chosen
        held, self._held = self._held, deque()
        self._held.extend(each for each in held if place_of(each) not in chosen)
        self._fetched.extendleft(reversed([each for each in held if place_of(each) in chosen]))
        try:
            await self._in_thread(lambda: self._pauses.carry_out(kafka))
        except KafkaException as error:
            raise _not_moved("not resumed", error) from error

    async def _move(self, seek: Callable[[set[Place]], None], otherwise: str) -> None:
        """Run `seek` in the thread, which notes the places that it has moved, also where it raises after that (INV-CP33)."""
        moved: set[Place] = set()

        def forget() -> None:
            if moved:
                self._forget(moved)

        self._moving = moving = self._submit(lambda: seek(moved), then=_nothing, always=forget)
        try:
            await asyncio.shield(moving)  # it goes on where this is cancelled
        except KafkaException as error:
            raise _not_moved(otherwise, error) from error

    # -- the thread --------------------------------------------------------------------------------

    def _submit(
        self, call: Callable[[], Result], then: Callable[[Result], None], always: Callable[[], None] | None = None
    ) -> "asyncio.Future[None]":  # fmt: skip
        """Run `call` in the thread, then `always` in the loop, and `then` where it raised nothing: in the order in which the thread ran
        the calls (INV-CP15)."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(done: "asyncio.Future[Result]") -> None:
            error = done.exception()
            if always is not None:
                always()
            if error is None:
                then(done.result())
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        ended.add_done_callback(_look_at)
        running = loop.run_in_executor(self._thread, call)
        running.add_done_callback(end)
        return ended

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # -- errors ------------------------------------------------------------------------------------

    def _check(self, error: KafkaError) -> None:
        if error.code() in _UNKNOWN_TOPIC:
            raise Refused(
                f"there is no topic {' or '.join(self._topics)} in the region that answered: create it"
                f" first (`tidemark topic create`). {error.str()}",
                code=error.name(),
            )
        if error.fatal() or error.code() in REFUSALS:
            raise Refused(f"reading {self._topics} failed: {error.str()}", code=error.name())

    def _joined(self) -> Consumer:
        if self._kafka is None:
            raise Refused("the consumer was not started: use `async with` or call start()")
        return self._kafka


def _look_at(ended: "asyncio.Future[None]") -> None:
    """Take note of an error that nobody waits for any more: the next call meets what is behind it."""
    if not ended.cancelled():
        ended.exception()


def _nothing(_result: None) -> None:
    """Nothing follows."""


def _raw(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _not_moved(otherwise: str, error: KafkaException) -> Refused | Unreachable:
    inner = kafka_error(error)
    text = f"{otherwise}: {inner.str()}"
    if inner.code() in REFUSALS or inner.code() == KafkaError._STATE:
        return Refused(f"{text}. Is the partition assigned to this consumer?", code=inner.name())
    return Unreachable(text, code=inner.name())
