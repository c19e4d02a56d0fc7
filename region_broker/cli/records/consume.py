"""`tidemark consume`: records of a topic on standard output, from anywhere in it.

INV-CCO1  a group's position is committed only behind what was printed, and only by a member: what a poll has taken when the
          command is interrupted counts for nothing
INV-CCO2  without --follow it ends at the ends that the partitions have when their first record comes, or as soon after that as anybody can tell
          them, however much is written meanwhile, and a partition without records is at its end; one that gives neither records nor its end for a minute ends it with exit code 5
INV-CCO3  it does not wait in silence: a loss of all brokers, a group that gives it no partition, and a partition that gives
          nothing before its end are said on stderr
INV-CCO4  a member that follows commits while it reads; Ctrl-C and SIGTERM commit the rest and leave the group
INV-CCO5  who reads without a group needs the right to read the topic, and none on any group
Not here: what a line looks like (`lines`).
"""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from region_broker.cli.admin.offset_plan import PlanError, parse_datetime
from region_broker.cli.kafka import (
    TIMEOUT_S,
    bootstrap_option,
    bounds_of,
    check_topic,
    client_config,
    kafka_errors,
    quiet,
)
from region_broker.cli.output import EXIT_UNKNOWN_OUTCOME, EXIT_USAGE, fail, printable
from region_broker.cli.records.lines import to_json

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

_LOOKS: Final = 5
_LOOKS_MAX: Final = 60
_COMMIT_INTERVAL_MS: Final = 1_000
_ASK_AGAIN_OFFSETS: Final = 1_000
_EARLIEST: Final = "earliest"
_LATEST: Final = "latest"


@click.command(
    epilog="""\b
Examples:
  tidemark consume orders                        from the beginning to the end, then stop
  tidemark consume orders --follow --group billing
  tidemark consume orders --partition 3 --offset 1200 --max 10 --offsets
  tidemark consume orders --offset -5            the last five of each partition
  tidemark consume orders --from-time 2026-01-31T13:00:00Z -o json > since.ndjson
"""
)
@click.argument("topic")
@click.option("--group", help="Read as a member of this group and commit what was printed.")
@click.option("--partition", "only", multiple=True, type=click.IntRange(0),
              help="Only this partition; may be repeated.")  # fmt: skip
@click.option("--offset", metavar="N|-N|earliest|latest",
              help="Begin here in each partition; -N is N before its end.")  # fmt: skip
@click.option("--from-time", metavar="ISO",
              help="Begin with the first record at or after this time; UTC where it names no zone.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Wait for more at the end.")
@click.option("--uncommitted", is_flag=True, help="Show records of open and aborted transactions.")
@click.option("--offsets", "with_offsets", is_flag=True, help="Partition, offset and key first.")
@click.option("--times", "with_times", is_flag=True, help="The record's time first.")
@click.option("--keys", "with_keys", is_flag=True, help="The key before the value.")
@click.option("--headers", "with_headers", is_flag=True, help="The headers before the value.")
@click.option("--max", "count_max", type=click.IntRange(1), help="Stop after so many records.")
@click.option("-o", "--output", "output", type=click.Choice(["text", "json"]), default="text",
              show_default=True, help="json: an object a line, which `produce --format json` takes.")  # fmt: skip
@bootstrap_option
def consume(
    topic: str, group: str | None, only: tuple[int, ...], offset: str | None,
    from_time: str | None, follow: bool, uncommitted: bool, with_offsets: bool, with_times: bool,
    with_keys: bool, with_headers: bool, count_max: int | None, output: str, bootstrap: str,
) -> None:  # fmt: skip
    """Print the values of TOPIC's records, one per line; committed ones only, unless asked."""
    from confluent_kafka import Consumer

    if group and (only or offset or from_time):
        fail("a group reads on where it has committed: --partition, --offset and --from-time go without"
             " --group (`tidemark group reset-offsets` puts a group elsewhere)", EXIT_USAGE)  # fmt: skip
    if offset and from_time:
        fail("--offset and --from-time exclude each other: where to begin?", EXIT_USAGE)
    begin = _begin(offset, from_time)
    config = client_config(
        bootstrap,
        **{
            "group.id": group or "tidemark-cli",
            "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
            # Only what is counted as printed is committed; without --follow that is behind a buffer until the end.
            "enable.auto.commit": bool(group) and follow,
            "auto.commit.interval.ms": _COMMIT_INTERVAL_MS,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "error_cb": _tell_of_silence,
        },
    )
    if output == "json":
        render: Callable[[Any], bytes] = to_json
    else:
        render = _text(with_times, with_offsets, with_keys, with_headers)
    consumer = Consumer(config, logger=quiet())
    try:
        member = f" by a member of group {group}" if group else ""
        with kafka_errors(f"topic {topic} cannot be read{member}"):
            _place(consumer, topic, _chosen(consumer, topic, only), group, begin)
            with _until_a_signal():
                for message in _messages(consumer, group, follow, count_max):
                    sys.stdout.buffer.write(render(message) + b"\n")
                    if follow:
                        sys.stdout.buffer.flush()
                    if group:
                        _count_as_printed(consumer, message)
            sys.stdout.flush()
            if group:
                _commit(consumer)
    finally:
        consumer.close()


@contextmanager
def _until_a_signal() -> Iterator[None]:
    """End the block at Ctrl-C, and at SIGTERM likewise (INV-CCO4)."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Time(NamedTuple):
    """A place in a log by its time."""

    wall_ms: int


def _begin(offset: str | None, from_time: str | None) -> "int | _Time | str":
    """Return an offset (negative: before the end), a time, or one of the two words; ends the command if unreadable."""
    if from_time is not None:
        try:
            return _Time(parse_datetime(from_time, "--from-time"))
        except PlanError as error:
            fail(str(error), EXIT_USAGE)
    if offset is None or offset == _EARLIEST:
        return _EARLIEST
    if offset == _LATEST:
        return _LATEST
    try:
        return int(offset)
    except ValueError:
        fail(f"--offset {offset!r} is neither a number nor {_EARLIEST} or {_LATEST}", EXIT_USAGE)


def _chosen(consumer: "Consumer", topic: str, only: Sequence[int]) -> list[int]:
    there = check_topic(consumer, topic)
    missing = sorted(set(only) - set(there))
    if missing:
        fail(
            f"topic {topic} has no partition {missing[0]}: it has {len(there)}, from 0 on",
            EXIT_USAGE,
        )
    return sorted(set(only)) or there


def _place(
    consumer: "Consumer", topic: str, partitions: Sequence[int], group: str | None,
    begin: "int | _Time | str",
) -> None:  # fmt: skip
    """Join the group, or put the reader where it begins; raises KafkaException."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if group:
        consumer.subscribe([topic])
        return
    if isinstance(begin, _Time):
        asked = [TopicPartition(topic, index, begin.wall_ms) for index in partitions]
        consumer.assign(consumer.offsets_for_times(asked, timeout=TIMEOUT_S))
        return
    if isinstance(begin, int):
        placed = [
            TopicPartition(topic, index, _within(consumer, topic, index, begin))
            for index in partitions
        ]
        consumer.assign(placed)
        return
    where = OFFSET_END if begin == _LATEST else OFFSET_BEGINNING
    consumer.assign([TopicPartition(topic, index, where) for index in partitions])


def _within(consumer: "Consumer", topic: str, partition: int, wanted: int) -> int:
    """Return an offset that is in the log, or at its nearest end; ends the command where the log tells none."""
    low, high = bounds_of(consumer, topic, partition)
    if low is None or high is None:
        fail(
            f"partition {partition} of {topic} cannot be read now: name the others with --partition, or mend it first"
        )
    return int(min(max(high + wanted if wanted < 0 else wanted, low), high))


def _commit(consumer: "Consumer") -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:  # nothing was printed
            raise


def _count_as_printed(consumer: "Consumer", message: Any) -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        consumer.store_offsets(message)
    except KafkaException as error:
        if (
            error.args[0].code() != KafkaError._STATE
        ):  # taken away meanwhile: the next member prints it again
            raise


def _messages(
    consumer: "Consumer", group: str | None, follow: bool, count_max: int | None
) -> Iterator[Any]:
    from confluent_kafka import KafkaError, KafkaException

    ends = _Ends(consumer, follow)
    count = 0
    empty_handed = _EmptyHanded(consumer, group, follow)
    while count_max is None or count < count_max:
        message: Any = consumer.poll(1.0)
        if message is None:
            empty_handed.look(ends.reached)
            continue
        empty_handed.end_of_silence()
        error = message.error()
        if (
            error is not None
            and not group
            and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        ):
            continue  # librdkafka looks for a coordinator of its own accord: who reads without a group needs none (INV-CCO5)
        if error is None:
            if ends.is_within(message):
                count += 1
                yield message
            ends.note(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            ends.reached.add(message.partition())
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)
        if ends.are_all_reached:
            return


class _Ends:
    """Where reading ends without --follow (INV-CCO2); with it, which partitions have nothing more just now."""

    def __init__(self, consumer: "Consumer", follow: bool) -> None:
        self._consumer, self._follow = consumer, follow
        self._of: dict[int, int] = {}
        self._ask_from: dict[int, int] = {}
        """From which offset on an end is asked for that nobody could tell."""
        self.reached: set[int] = set()

    def is_within(self, message: Any) -> bool:
        """Return whether the record lies before the end of its partition."""
        if self._follow:
            return True
        partition = message.partition()
        if partition not in self._of and message.offset() >= self._ask_from.get(partition, 0):
            end = self._end_of(message)
            if end is None:  # a leader may be about to be elected
                self._ask_from[partition] = message.offset() + _ASK_AGAIN_OFFSETS
            else:
                self._of[partition] = end
        return bool(message.offset() < self._of.get(partition, sys.maxsize))

    def _end_of(self, message: Any) -> int | None:
        from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

        asked = TopicPartition(message.topic(), message.partition(), OFFSET_END)
        try:
            (found,) = self._consumer.offsets_for_times([asked], timeout=TIMEOUT_S)
        except KafkaException:
            return None
        return None if found.error is not None else int(found.offset)

    def note(self, message: Any) -> None:
        """A record came: its partition is at its end now, or it is not."""
        partition = message.partition()
        if self._follow:
            self.reached.discard(partition)
        elif partition not in self.reached and message.offset() + 1 >= self._of.get(
            partition, sys.maxsize
        ):
            self.reached.add(partition)
            self._stop_reading(message)

    def _stop_reading(self, message: Any) -> None:
        """What is written behind the end is not to be fetched for nothing."""
        from confluent_kafka import KafkaException, TopicPartition

        with suppress(KafkaException):  # it was given to another member meanwhile
            self._consumer.pause([TopicPartition(message.topic(), message.partition())])

    @property
    def are_all_reached(self) -> bool:
        """Return whether there is nothing left to read."""
        if self._follow or not self.reached:
            return False
        return self.reached >= {each.partition for each in self._consumer.assignment()}


class _EmptyHanded:
    """Says once why nothing comes to a member without partitions, and from partitions that are not at their ends."""

    def __init__(self, consumer: "Consumer", group: str | None, follow: bool) -> None:
        self._consumer, self._group, self._follow = consumer, group, follow
        self._looks_without_partitions = 0
        self._silent_looks = 0

    def end_of_silence(self) -> None:
        """Count anew, after something came."""
        self._silent_looks = 0

    def look(self, ended: set[int]) -> None:
        """Look, after a second in which nothing came; ends the command where it is to end and nothing comes."""
        given = [each.partition for each in self._consumer.assignment()]
        if self._group is not None and not given:
            self._look_for_partitions(self._group)
            return
        self._looks_without_partitions = 0
        if silent := sorted(set(given) - ended):
            self._look_at(", ".join(map(str, silent)))

    def _look_for_partitions(self, group: str) -> None:
        self._looks_without_partitions += 1
        if self._looks_without_partitions == _LOOKS + 1:
            click.echo(
                f"tidemark: no partition is given to this member of group {group}: other members have them all"
                f" (`tidemark group describe {group}`). It waits for one",
                err=True,
            )

    def _look_at(self, silent: str) -> None:
        self._silent_looks += 1
        if self._silent_looks == _LOOKS:
            click.echo(
                f"tidemark: partitions {silent} give neither records nor their ends: the node does not answer, or cannot"
                " read them (`tidemark region status`, its /readyz). Reading waits for them",
                err=True,
            )
        if self._silent_looks >= _LOOKS_MAX and not self._follow:
            fail(
                f"partitions {silent} were not read to their ends: nothing came for {_LOOKS_MAX} s. See tidemark region"
                " status, then read again (with --offset, where you want to go on)",
                EXIT_UNKNOWN_OUTCOME,
            )


def _tell_of_silence(error: "KafkaError") -> None:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        click.echo("tidemark: no broker answers any more: reading waits for one", err=True)


def _text(
    with_times: bool, with_offsets: bool, with_keys: bool, with_headers: bool
) -> Callable[[Any], bytes]:
    """Return what prints a record as columns, with tabs between them, the value last."""

    def render(message: Any) -> bytes:
        columns: list[bytes] = []
        if with_times:
            columns.append(_time(message).encode())
        if with_offsets:
            columns.append(f"{message.partition()}@{message.offset()}".encode())
        if with_keys or with_offsets:
            columns.append(message.key() or b"")
        if with_headers:
            pairs = (f"{name}={(value or b'').decode(errors='replace')}"
                     for name, value in message.headers() or ())  # fmt: skip
            columns.append(printable(",".join(pairs)).encode())
        return b"\t".join([*columns, message.value() or b""])

    return render


def _time(message: Any) -> str:
    kind, timestamp_ms = message.timestamp()
    if not kind:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a time of a producer's own making
        return f"{timestamp_ms}ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
