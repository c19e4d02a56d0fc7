"""What the commands that speak Kafka share: where to connect, and errors in words.

INV-KC1  a Kafka error ends a command with its name, what it means and the exit code of `cli.output`
"""

import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from region_broker.cli.output import (
    EXIT_AUTH,
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    EXIT_USAGE,
    fail,
)

TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 3.0
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")


def bootstrap_option(command: Command) -> Command:
    """Add ``--bootstrap``; TIDEMARK_BOOTSTRAP is its default."""
    option = click.option(
        "--bootstrap", envvar="TIDEMARK_BOOTSTRAP", default=DEFAULT_BOOTSTRAP, show_default=True,
        help="Kafka addresses of the cluster, with commas (or TIDEMARK_BOOTSTRAP).",
    )  # fmt: skip
    return option(command)


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return a quiet configuration for confluent-kafka; ends the command if nobody listens there."""
    _check_reachable(bootstrap)
    return {"bootstrap.servers": bootstrap, "log_level": 0, **more}


def quiet() -> logging.Logger:
    """Return where librdkafka logs to: fatal errors would go to stderr whatever its level."""
    logger = logging.getLogger("tidemark.cli.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def admin_client(bootstrap: str) -> Any:
    """Return an AdminClient that has reached a broker; ends the command if there is none."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient(client_config(bootstrap), logger=quiet())
    with kafka_errors(f"no broker answers at {bootstrap}: is it running? See `tidemark dev`"):
        client.list_topics(timeout=TIMEOUT_S)
    return client


def _check_reachable(bootstrap: str) -> None:
    """End the command at once if no address takes a connection; librdkafka would go on trying."""
    reasons = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            fail(f"--bootstrap: {address!r} is not host:port", EXIT_USAGE)
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    fail(
        f"no broker answers ({'; '.join(reasons)}). Is it running? `tidemark dev` starts one; give"
        " another address with --bootstrap or TIDEMARK_BOOTSTRAP."
    )


def check_topic(client: Any, topic: str) -> list[int]:
    """Return the partitions of `topic`; raises KafkaException if there is none of that name."""
    from confluent_kafka import KafkaException

    found = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def wait_for(future: Future[Result], what: str) -> Result:
    """Return the result of an admin request; ends the command if it failed."""
    with kafka_errors(what):
        return future.result(timeout=TIMEOUT_S)


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn a KafkaException into a message and an exit code."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        inner = error.args[0]
        code = _exit_code(inner.code())
        if code == EXIT_UNKNOWN_OUTCOME and what.startswith("no broker"):
            code = EXIT_FAILED
        fail(f"{what}: {inner.str()} ({inner.name()})", code)


def _exit_code(error_code: int) -> int:
    from confluent_kafka import KafkaError

    codes = {
        EXIT_USAGE: (
            KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_CONFIG, KafkaError.TOPIC_EXCEPTION,
            KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_REQUEST, KafkaError._INVALID_ARG,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
        ),
        EXIT_NOT_FOUND: (
            KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION, KafkaError.GROUP_ID_NOT_FOUND,
        ),
        EXIT_AUTH: (
            KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        EXIT_UNKNOWN_OUTCOME: (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT),
    }  # fmt: skip
    return next((code for code, errors in codes.items() if error_code in errors), EXIT_FAILED)
