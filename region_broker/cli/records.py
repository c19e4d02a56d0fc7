"""`tidemark produce` and `tidemark consume`: records as lines, for hands and scripts."""

import sys
import time
from contextlib import suppress
from typing import Any, Final

import click

from region_broker.cli.kafka import (
    bootstrap_option,
    check_topic,
    client_config,
    kafka_errors,
    quiet,
)
from region_broker.cli.output import EXIT_FAILED, fail

_PROGRESS_INTERVAL_S: Final = 1.0
_FLUSH_TIMEOUT_S: Final = 30.0


@click.command(
    epilog="""\b
Examples:
  echo hello | tidemark produce greetings
  tidemark produce orders --key-separator : --transactional-id import-1 < orders.txt
"""
)
@click.argument("topic")
@click.option("--key-separator", help="What parts key and value in a line; without it no keys.")
@click.option("--transactional-id", help="All lines in one transaction: all or nothing.")
@bootstrap_option
def produce(
    topic: str, key_separator: str | None, transactional_id: str | None, bootstrap: str
) -> None:
    """Send each line of standard input as a record to TOPIC, once, in order."""
    from confluent_kafka import Producer

    config = client_config(bootstrap, **{"enable.idempotence": True, "linger.ms": 5})
    if transactional_id:
        config["transactional.id"] = transactional_id
    producer = Producer(config, logger=quiet())
    with kafka_errors(f"topic {topic} cannot be written to"):
        check_topic(producer, topic)
    failed: list[str] = []
    with kafka_errors("not sent"):
        if transactional_id:
            producer.init_transactions(_FLUSH_TIMEOUT_S)
            producer.begin_transaction()
        count = _send_lines(producer, topic, key_separator, failed)
        if transactional_id and not failed:
            producer.commit_transaction(_FLUSH_TIMEOUT_S)
        elif transactional_id:
            producer.abort_transaction(_FLUSH_TIMEOUT_S)
    if failed:
        fail(f"{len(failed)} of {count} records were not written: {failed[0]}", EXIT_FAILED)
    click.echo(f"{count} records written to {topic}", err=True)


def _send_lines(producer: Any, topic: str, separator: str | None, failed: list[str]) -> int:
    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error.str())

    count, shown_s = 0, time.monotonic()
    for line in sys.stdin.buffer:
        value: bytes = line.rstrip(b"\n")
        key = None
        if separator:
            key, _, value = value.partition(separator.encode())
        while True:
            try:
                producer.produce(topic, value=value, key=key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
        producer.poll(0)
        if time.monotonic() - shown_s > _PROGRESS_INTERVAL_S:
            shown_s = time.monotonic()
            click.echo(f"{count} records handed over", err=True)
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if left:
        failed.append(f"{left} records had no answer in {_FLUSH_TIMEOUT_S:.0f} s")
    return count


@click.command(
    epilog="""\b
Examples:
  tidemark consume orders                        from the beginning to the end, then stop
  tidemark consume orders --follow --group billing
  tidemark consume orders --uncommitted --offsets
"""
)
@click.argument("topic")
@click.option("--group", help="Read as a member of this group and commit what was printed.")
@click.option("--follow", is_flag=True, help="Wait for more at the end.")
@click.option("--uncommitted", is_flag=True, help="Show records of open and aborted transactions.")
@click.option("--offsets", "with_offsets", is_flag=True, help="Partition, offset and key first.")
@click.option("--max", "count_max", type=click.IntRange(1), help="Stop after so many records.")
@bootstrap_option
def consume(
    topic: str, group: str | None, follow: bool, uncommitted: bool, with_offsets: bool,
    count_max: int | None, bootstrap: str,
) -> None:  # fmt: skip
    """Print the values of TOPIC's records, one per line; committed ones only, unless asked."""
    from confluent_kafka import Consumer, TopicPartition

    config = client_config(
        bootstrap,
        **{
            "group.id": group or "tidemark-cli",
            "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        },
    )
    consumer = Consumer(config, logger=quiet())
    try:
        with kafka_errors(f"topic {topic} cannot be read"):
            partition_numbers = check_topic(consumer, topic)
            if group:
                consumer.subscribe([topic])
            else:
                consumer.assign([TopicPartition(topic, index, 0) for index in partition_numbers])
            with suppress(KeyboardInterrupt):
                _print_records(consumer, follow, with_offsets, count_max)
            sys.stdout.flush()
            if group:
                _commit(consumer)
    finally:
        consumer.close()


def _commit(consumer: Any) -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:  # nothing was printed
            raise


def _print_records(consumer: Any, follow: bool, with_offsets: bool, count_max: int | None) -> None:
    from confluent_kafka import KafkaError, KafkaException

    ended: set[int] = set()
    count = 0
    while count_max is None or count < count_max:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            count += 1
            ended.discard(message.partition())
            _print_record(message, with_offsets)
            if follow:
                sys.stdout.buffer.flush()
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
            if not follow and len(ended) >= len(consumer.assignment()):
                return
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)


def _print_record(message: Any, with_offsets: bool) -> None:
    if with_offsets:
        where = f"{message.partition()}@{message.offset()}\t"
        sys.stdout.buffer.write(where.encode() + (message.key() or b"") + b"\t")
    sys.stdout.buffer.write((message.value() or b"") + b"\n")
