"""What `tidemark consume` counts as printed, and what it says while nothing comes.

Played: confluent-kafka's Consumer with one partition of three records.
"""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from region_broker.cli.records import consume as module


class Printed:
    def __init__(self, offset: int, timestamp_ms: int = 0, partition: int = 0) -> None:
        self._offset, self._timestamp_ms, self._partition = offset, timestamp_ms, partition

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._timestamp_ms

    def value(self) -> bytes:
        return b"%d" % self._offset


class PlayedConsumer:
    def __init__(self, found: Iterator[Any], given: Sequence[int], end: int) -> None:
        self._found, self._given, self._end = found, given, end
        self.paused: list[int] = []
        self.asked: list[int] = []
        self._stored: int | None = None
        self.committed: int | None = None

    def poll(self, _timeout_s: float) -> Any:
        return next(self._found)

    def subscribe(self, _topics: list[str]) -> None:
        """Partitions come with a poll."""

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("orders", each) for each in self._given]

    def assign(self, _partitions: list[TopicPartition]) -> None:
        """What is assigned was given at the start."""

    def offsets_for_times(
        self, asked: list[TopicPartition], *, timeout: float
    ) -> list[TopicPartition]:
        assert timeout > 0
        assert [each.offset for each in asked] == [confluent_kafka.OFFSET_END]
        self.asked += [each.partition for each in asked]
        return [TopicPartition(each.topic, each.partition, self._end) for each in asked]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused += [each.partition for each in partitions]

    def store_offsets(self, message: Printed) -> None:
        self._stored = message.offset() + 1

    def commit(self, *, asynchronous: bool) -> None:
        assert not asynchronous
        self.committed = self._stored

    def close(self) -> None:
        """Nothing is open."""


def consume(
    monkeypatch: pytest.MonkeyPatch,
    found: Iterator[Any],
    *words: str,
    given: Sequence[int] = (),
    end: int = 3,
) -> tuple[PlayedConsumer, Any]:
    played = PlayedConsumer(found, given, end)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda *_args, **_more: played)
    monkeypatch.setattr(module, "client_config", lambda *_args, **_more: {})
    monkeypatch.setattr(module, "check_topic", lambda *_args: [0])
    return played, CliRunner().invoke(module.consume, ["orders", *words])


def test_INV_CCO1_what_an_interrupt_kept_from_being_printed_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(Printed):
        def value(self) -> bytes:
            raise KeyboardInterrupt

    played, done = consume(
        monkeypatch, iter([Printed(0), Printed(1), Interrupted(2)]), "--group", "g", "--follow"
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == "0\n1\n"
    assert played.committed == 2


def test_INV_CCO3_a_member_without_partitions_says_why_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing() -> Iterator[None]:
        for _ in range(20):
            yield None
        raise KeyboardInterrupt

    _, done = consume(monkeypatch, nothing(), "--group", "g", "--follow")
    assert done.stderr.count("no partition is given to this member of group g") == 1


class Failed:
    def __init__(self, code: int, *, retriable: bool = False) -> None:
        self._error = KafkaError(code, retriable=retriable)

    def error(self) -> KafkaError:
        return self._error


@pytest.mark.parametrize(
    ("failed", "words", "is_read"),
    [
        (Failed(KafkaError.GROUP_AUTHORIZATION_FAILED), (), True),  # INV-CCO5
        (Failed(KafkaError.GROUP_AUTHORIZATION_FAILED), ("--group", "g"), False),
        (Failed(KafkaError.TOPIC_AUTHORIZATION_FAILED), (), False),
        (Failed(KafkaError._TRANSPORT, retriable=True), (), True),
    ],
    ids=["no group, no right on one", "a member without the right", "no right on the topic", "it passes"],
)  # fmt: skip
def test_INV_CCO5_what_forbids_reading_ends_the_command_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, failed: Failed, words: tuple[str, ...], is_read: bool
) -> None:
    found = itertools.chain([failed], map(Printed, range(3)))
    _, done = consume(monkeypatch, found, *words, given=(0,), end=3)
    assert (done.exit_code == 0, done.stdout) == (is_read, "0\n1\n2\n" if is_read else "")
    assert ("topic orders cannot be read" in done.stderr) is not is_read


def test_INV_CCO2_a_member_without_partitions_yet_is_at_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [Failed(KafkaError._TRANSPORT, retriable=True), Printed(0)]
    _, done = consume(monkeypatch, iter(found), "--group", "g", given=(), end=1)
    assert (done.exit_code, done.stdout) == (0, "0\n"), done.output


def test_INV_CCO2_a_partition_that_another_member_has_by_now_is_not_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    monkeypatch.setattr(PlayedConsumer, "pause", gone)
    _, done = consume(monkeypatch, map(Printed, range(3)), given=(0,), end=3)
    assert (done.exit_code, done.stdout) == (0, "0\n1\n2\n"), done.output


def test_INV_CCO2_a_minute_of_silence_is_counted_anew_behind_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = itertools.chain.from_iterable((None, Printed(offset)) for offset in range(200))
    _, done = consume(monkeypatch, found, given=(0,), end=200)
    assert (done.exit_code, done.stdout.count("\n"), done.stderr) == (0, 200, "")


class End:
    def __init__(self, partition: int) -> None:
        self.partition = lambda: partition

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)


def test_INV_CCO2_a_partition_that_gives_nothing_is_named_and_ends_the_command_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence = itertools.repeat(None, 1_000)
    found = itertools.chain([Printed(0), End(0)], silence)
    _, done = consume(monkeypatch, found, given=(0, 1))
    assert done.exit_code == 5, done.output
    assert done.stdout == "0\n"
    assert done.stderr.count("partitions 1 give neither records nor their ends") == 1
    assert "partitions 1 were not read to their ends" in done.stderr
    assert len(list(silence)) == 940  # seconds that it did not wait


@pytest.mark.parametrize(
    ("offsets", "printed"),
    [
        (itertools.count(), "0\n1\n2\n"),
        (iter(range(3)), "0\n1\n2\n"),
        (itertools.chain([0, 1], itertools.count(3)), "0\n1\n"),
    ],
    ids=["records up to the end", "none comes behind it", "a marker is the last before the end"],
)
def test_INV_CCO2_it_ends_however_much_is_written_meanwhile(
    monkeypatch: pytest.MonkeyPatch, offsets: Iterator[int], printed: str
) -> None:
    played, done = consume(monkeypatch, map(Printed, offsets), given=(0,), end=3)
    assert (done.exit_code, done.stdout) == (0, printed), done.output
    assert played.paused == [0]


@pytest.mark.parametrize("is_answered", [False, True])
def test_INV_CCO2_it_ends_also_where_nobody_can_tell_the_end_at_first(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """A leader is being elected as the first record comes."""
    tell = PlayedConsumer.offsets_for_times
    asked = 0

    def at_first_nobody(
        self: PlayedConsumer, places: list[TopicPartition], *, timeout: float
    ) -> list[Any]:
        nonlocal asked
        asked += 1
        if asked > 1:
            return tell(self, places, timeout=timeout)
        error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
        if is_answered:
            return [SimpleNamespace(error=error)]
        raise KafkaException(error)

    monkeypatch.setattr(PlayedConsumer, "offsets_for_times", at_first_nobody)
    played, done = consume(monkeypatch, map(Printed, range(9_000)), given=(0,), end=1_500)
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1_500), done.output
    assert (played.paused, asked) == ([0], 2)


def test_INV_CCO2_each_partition_has_the_end_that_it_had_when_its_first_record_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records that were fetched before it was paused come while another partition is read."""
    found = [Printed(1), Printed(2), Printed(3), Printed(2, partition=1), Printed(4)]
    played, done = consume(monkeypatch, iter(found), given=(0, 1), end=3)
    assert (done.exit_code, done.stdout) == (0, "1\n2\n2\n"), done.output
    assert (played.asked, played.paused) == ([0, 1], [0, 1])


@pytest.mark.parametrize("told", ["refused", "none"])
def test_INV_CCO2_where_nobody_tells_an_end_it_reads_to_where_a_fetch_meets_it(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    def no_end(_: object, asked: list[TopicPartition], *, timeout: float) -> list[SimpleNamespace]:
        if told == "refused":
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [SimpleNamespace(offset=-1, error=KafkaError(KafkaError._TIMED_OUT)) for _ in asked]

    monkeypatch.setattr(PlayedConsumer, "offsets_for_times", no_end)
    _, done = consume(monkeypatch, iter([Printed(0), Printed(1), End(0)]), given=(0,))
    assert (done.exit_code, done.stdout) == (0, "0\n1\n"), done.output


def test_INV_CCO2_who_follows_reads_on_where_a_fetch_has_met_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found() -> Iterator[Any]:
        yield from (Printed(0), End(0), Printed(1))
        yield from itertools.repeat(None, 100)
        raise KeyboardInterrupt

    _, done = consume(monkeypatch, found(), "--follow", given=(0,))
    assert (done.exit_code, done.stdout) == (0, "0\n1\n"), done.output
    assert done.stderr.count("partitions 0 give neither records nor their ends") == 1


def test_INV_CCO2_who_follows_reads_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = map(Printed, itertools.count())
    played, done = consume(monkeypatch, found, "--follow", "--max", "5", given=(0,), end=3)
    assert (done.exit_code, done.stdout) == (0, "0\n1\n2\n3\n4\n"), done.output
    assert played.paused == []


def test_INV_CCO3_who_follows_hears_of_a_silent_partition_and_waits_on_but_not_of_a_quiet_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def followed(*first: Any) -> Any:
        def found() -> Iterator[Any]:
            yield from first
            yield from itertools.repeat(None, 100)
            raise KeyboardInterrupt

        return consume(monkeypatch, found(), "--follow", given=(0,))[1]

    silent, quiet = followed(Printed(0)), followed(Printed(0), End(0))
    assert (silent.exit_code, quiet.exit_code) == (0, 0)
    assert silent.stderr.count("partitions 0 give neither records nor their ends") == 1
    assert quiet.stderr == ""


def test_a_time_that_is_none_is_refused_by_the_option_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, done = consume(monkeypatch, iter(()), "--from-time", "yesterday")
    assert done.exit_code == 2
    assert "--from-time 'yesterday'" in done.stderr
    assert "--to-datetime" not in done.stderr


def test_a_time_that_no_calendar_has_is_printed_as_it_is() -> None:
    assert module._time(Printed(0, timestamp_ms=1_700_000_000_000)) == "2023-11-14T22:13:20.000Z"
    assert module._time(Printed(0, timestamp_ms=10**17)) == "100000000000000000ms"
