"""`tidemark produce`: records from standard input or files into a topic, once and in order.

INV-CPR1  each record that was read is counted once: written (acknowledged), not written, or without an answer; and what
          the broker said of the first that failed is what the command says
A line that is no record ends the command and is named; what came before it is sent, or, in a transaction, aborted with
it.
Not here: what a line means (`lines`).
"""

import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from region_broker.cli.kafka import (
    bootstrap_option,
    check_topic,
    client_config,
    exit_code,
    hint_of,
    kafka_errors,
)
from region_broker.cli.output import EXIT_AUTH, EXIT_FAILED, EXIT_UNKNOWN_OUTCOME, EXIT_USAGE, fail
from region_broker.cli.records.lines import (
    BadLine,
    Headers,
    Outgoing,
    from_json,
    from_text,
    parse_header,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_PROGRESS_INTERVAL_S: Final = 1.0
_ANSWER_TIMEOUT_S: Final = 30.0
_NOT_READ: Final = " What came behind them was not read any more."
_REFUSED: Final = re.compile(r"encountered error: (?P<why>Broker: .*?) \(actions")
_DISK: Final = "Disk error"
_REGION_HINT: Final = (
    "; `tidemark region status` says which region takes writes, or why none does; where it has several nodes, `tidemark cluster status` says"
    " whether they have a quorum, and who leads"
)
_KEY_HINT: Final = (
    ". The topic is sealed (tidemark.encryption), and the node has not its key, or all versions of that were destroyed: tidemark topic describe"
    " --configs names the key, tidemark key list FILE --check at the node says what there is (docs/reference/security.md#secrets-at-rest)"
)
"""Of a Produce, this is what POLICY_VIOLATION says; librdkafka keeps the node's own words to itself."""
_STORAGE_HINT: Final = (
    "; the broker's disk is full or failing: see its /readyz, and docs/runbooks/disk_full.md"
)


@click.command(
    epilog="""\b
Examples:
  echo hello | tidemark produce greetings
  tidemark produce orders --key-separator : --transactional-id import-1 < orders.txt
  tidemark produce orders --file monday.ndjson --file tuesday.ndjson --format json
  tidemark produce scans --key doc-17 --header type=pdf --whole --file scan.pdf
"""
)
@click.argument("topic")
@click.option("--file", "files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
              help="Read from this file instead of standard input; may be repeated.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text",
              show_default=True, help="text: each line is a value. json: each line is what"
              " `tidemark consume -o json` prints.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Each file (or all of standard input) is one record.")
@click.option("--key-separator", help="What parts key and value in a line; without it no keys.")
@click.option("--key", help="The key of every record.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="A header of every record; may be repeated.")  # fmt: skip
@click.option("--partition", type=click.IntRange(0), help="Into this partition, whatever the key.")
@click.option("--transactional-id", help="All records in one transaction: all or nothing.")
@bootstrap_option
def produce(
    topic: str, files: tuple[Path, ...], form: str, whole: bool, key_separator: str | None,
    key: str | None, headers: tuple[str, ...], partition: int | None,
    transactional_id: str | None, bootstrap: str,
) -> None:  # fmt: skip
    """Send each line of standard input (or of files) as a record to TOPIC, once, in order."""
    if key is not None and key_separator:
        fail("--key and --key-separator exclude each other: which key is meant?", EXIT_USAGE)
    if form == "json" and (whole or key_separator):
        fail("--format json names key and value itself: leave --whole and --key-separator out",
             EXIT_USAGE)  # fmt: skip
    try:
        common = [parse_header(each) for each in headers]
    except BadLine as error:
        fail(f"--header: {error}", EXIT_USAGE)
    _check_readable(files)
    sender = _Sender(topic, bootstrap, transactional_id, partition)
    read = _read(files, form=form, whole=whole, separator=key_separator)
    try:
        sender.send(_with_common(read, key, common, partition))
    except BadLine as error:
        sender.give_up()
        fail(f"{error}. {sender.told_given_up()}", EXIT_USAGE)
    sender.conclude()


def _check_readable(files: tuple[Path, ...]) -> None:
    """End the command before anything is sent, if one of the files cannot be read."""
    for path in files:
        if not os.access(path, os.R_OK):
            fail(f"--file {path}: there is no such file, or it may not be read", EXIT_USAGE)


def _read(
    files: tuple[Path, ...], *, form: str, whole: bool, separator: str | None
) -> Iterator[Outgoing]:
    for path in files or (None,):
        name = "standard input" if path is None else str(path)
        if path is None:
            yield from _records(sys.stdin.buffer, name, form=form, whole=whole, separator=separator)
            continue
        with path.open("rb") as file:
            yield from _records(file, name, form=form, whole=whole, separator=separator)


def _records(
    file: BinaryIO, name: str, *, form: str, whole: bool, separator: str | None
) -> Iterator[Outgoing]:
    if whole:
        yield Outgoing(value=file.read())
        return
    for number, line in enumerate(file, start=1):
        try:
            text = line.rstrip(b"\n")
            yield from_json(text) if form == "json" else from_text(text, separator)
        except BadLine as error:
            raise BadLine(f"{name}, line {number}: {error}") from error


def _with_common(
    records: Iterable[Outgoing], key: str | None, headers: Headers, partition: int | None
) -> Iterator[Outgoing]:
    for each in records:
        yield Outgoing(
            value=each.value,
            key=each.key if key is None else os.fsencode(key),
            headers=[*(each.headers or []), *headers] or None,
            partition=each.partition if partition is None else partition,
            timestamp_ms=each.timestamp_ms,
        )


class _Refusals(logging.Handler):
    """What brokers answered to batches: librdkafka tries again and tells its log only."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._counts: Counter[str] = Counter()

    @property
    def why(self) -> str:
        """Return the most frequent answer, a disk's first: a mirror that forwards may say another thing in between."""
        ranked = [why for why, _count in self._counts.most_common()]
        return next((why for why in ranked if _DISK in why), next(iter(ranked), ""))

    def emit(self, record: logging.LogRecord) -> None:
        found = _REFUSED.search(record.getMessage())
        if found is not None:
            self._counts[found["why"]] += 1


class _Sender:
    """Hands records over and counts what becomes of each (INV-CPR1)."""

    def __init__(
        self, topic: str, bootstrap: str, transactional_id: str | None, partition: int | None
    ) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._transactional = bool(transactional_id)
        self.handed_over = self.written = 0
        self._stopped = False
        self._first_error: KafkaError | None = None
        self._refusal = _Refusals()
        config = client_config(
            bootstrap,
            **{
                "enable.idempotence": True,
                "linger.ms": 5,
                "debug": "msg",
                "log_level": 7,
                "error_cb": self._note_fatal,
            },
        )
        if transactional_id:
            config["transactional.id"] = transactional_id
        self._producer = Producer(config, logger=_told_to(self._refusal))
        with kafka_errors(f"topic {topic} cannot be written to"):
            there = check_topic(self._producer, topic)
        if partition is not None and partition not in there:
            fail(f"topic {topic} has no partition {partition}: it has {len(there)}, from 0 on",
                 EXIT_USAGE)  # fmt: skip
        if transactional_id:
            with kafka_errors(f"no transaction could begin as {transactional_id}"):
                self._producer.init_transactions(_ANSWER_TIMEOUT_S)
                self._producer.begin_transaction()

    def send(self, records: Iterable[Outgoing]) -> None:
        """Hand all of `records` over; raises `BadLine`. Stops at the first that is refused."""
        shown_s = time.monotonic()
        for record in records:
            if self._first_error is not None or not self._hand_over(record):
                self._stopped = True
                return
            if time.monotonic() - shown_s > _PROGRESS_INTERVAL_S:
                shown_s = time.monotonic()
                click.echo(
                    f"{self.handed_over} records handed over, {self.written} written", err=True
                )

    def _hand_over(self, record: Outgoing) -> bool:
        """Return whether the record is on its way; waits for room, as long as answers come at all."""
        from confluent_kafka import KafkaException

        deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
        written = self.written
        while True:
            try:
                self._producer.produce(
                    self._topic, value=record.value, key=record.key, headers=record.headers,
                    partition=record.partition, timestamp=record.timestamp_ms,
                    on_delivery=self._delivered,
                )  # fmt: skip
            except BufferError:
                self._producer.poll(0.1)
                if self.written > written:
                    written, deadline_s = self.written, time.monotonic() + _ANSWER_TIMEOUT_S
                if time.monotonic() > deadline_s:
                    self.handed_over += 1  # read, and never sent
                    return False
                continue
            except KafkaException as error:
                self.handed_over += 1
                self._first_error = self._first_error or error.args[0]
                return False
            self.handed_over += 1
            self._producer.poll(0)
            return True

    def _note_fatal(self, error: "KafkaError") -> None:
        """Keep the cause: without somebody who takes it, confluent-kafka raises it out of the middle of a call."""
        if error.fatal() and self._first_error is None:
            self._first_error = error

    def _delivered(self, error: "KafkaError | None", _message: "Message") -> None:
        if error is None:
            self.written += 1
        elif self._first_error is None:
            self._first_error = error

    def give_up(self) -> None:
        """Leave nothing half done: an open transaction is aborted, what was handed over is waited for."""
        self._producer.flush(_ANSWER_TIMEOUT_S)
        if self._transactional:
            with kafka_errors(
                f"{self.told()} The transaction was not aborted: it ends by time-out"
            ):
                self._producer.abort_transaction(_ANSWER_TIMEOUT_S)

    def conclude(self) -> None:
        """Wait for all answers, end the transaction, and say what was written; ends the command on an error."""
        self._producer.flush(_ANSWER_TIMEOUT_S)
        missing = self.handed_over - self.written
        if missing == 0:
            if self._transactional:
                with kafka_errors(f"{self.told()} The transaction may not be committed"):
                    self._producer.commit_transaction(_ANSWER_TIMEOUT_S)
            records = "1 record" if self.written == 1 else f"{self.written} records"
            click.echo(f"{records} written to {self._topic}", err=True)
            return
        why, outcome = self._why()
        text = (
            f"{missing} of {self.handed_over} records were not acknowledged: {why}. {self.told()}"
            f"{_NOT_READ if self._stopped else ''}"
        )
        if self._transactional:
            self._abort(text)
            fail(f"{text} The transaction was aborted: none of them will be read", EXIT_FAILED)
        fail(text, outcome)

    def _abort(self, text: str) -> None:
        with kafka_errors(f"{text} The transaction was not aborted: it ends by time-out"):
            self._producer.abort_transaction(_ANSWER_TIMEOUT_S)

    def _why(self) -> tuple[str, int]:
        """Return the cause in words, and the exit code: 4 for what we may not, 1 for other refusals, 5 where no answer came."""
        from confluent_kafka import KafkaError

        full = _DISK in self._refusal.why
        if self._first_error is not None and self._first_error.code() != KafkaError._MSG_TIMED_OUT:
            own = self._first_error
            full = full or own.code() == KafkaError.KAFKA_STORAGE_ERROR
            hint = _STORAGE_HINT if full else hint_of(own.code())
            if own.code() == KafkaError.POLICY_VIOLATION:
                hint = _KEY_HINT
            code = EXIT_AUTH if exit_code(own.code()) == EXIT_AUTH else EXIT_FAILED
            return f"{own.str()} ({own.name()}){hint}", code
        if self._refusal.why:
            hint = _STORAGE_HINT if full else _REGION_HINT
            return f"the broker answered, again and again: {self._refusal.why}{hint}", EXIT_FAILED
        why = f"no answer in {_ANSWER_TIMEOUT_S:.0f} s; they may be there{_REGION_HINT}"
        return why, EXIT_UNKNOWN_OUTCOME

    def told(self) -> str:
        """Return how much was handed over and written."""
        return f"{self.written} were written to {self._topic}."

    def told_given_up(self) -> str:
        """Return the same after `give_up`: what an aborted transaction wrote nobody reads."""
        if self._transactional:
            return f"The transaction was aborted: nothing was written to {self._topic}."
        return self.told()


def _told_to(handler: logging.Handler) -> logging.Logger:
    logger = logging.getLogger("tidemark.cli.librdkafka.produce")
    logger.setLevel(logging.DEBUG)
    logger.handlers[:] = [handler]
    logger.propagate = False
    return logger
