"""What the commands that speak Kafka share: where to connect, and errors in words.

INV-K1  a Kafka error ends a command with its name, what it means and the exit code of `cli.output`
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from region_broker.cli.output import EXIT_NOT_FOUND, EXIT_UNKNOWN_OUTCOME, fail

TIMEOUT_S: Final = 15.0

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")


def bootstrap_option(command: Command) -> Command:
    """Add ``--bootstrap``; TIDEMARK_BOOTSTRAP is its default."""
    option = click.option(
        "--bootstrap", envvar="TIDEMARK_BOOTSTRAP", default="127.0.0.1:9092", show_default=True,
        help="Kafka addresses of the cluster, with commas (or TIDEMARK_BOOTSTRAP).",
    )  # fmt: skip
    return option(command)


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return a quiet configuration for confluent-kafka."""
    return {"bootstrap.servers": bootstrap, "log_level": 0, **more}


def admin_client(bootstrap: str) -> Any:
    """Return an AdminClient that has reached a broker; ends the command if there is none."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient(client_config(bootstrap))
    with kafka_errors(f"no broker answers at {bootstrap}: is it running? See `tidemark dev`"):
        client.list_topics(timeout=TIMEOUT_S)
    return client


def wait_for(future: Future[Result], what: str) -> Result:
    """Return the result of an admin request; ends the command if it failed."""
    with kafka_errors(what):
        return future.result(timeout=TIMEOUT_S)


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn a KafkaException into a message and an exit code."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except KafkaException as error:
        inner = error.args[0]
        assert isinstance(inner, KafkaError), inner
        not_found = {
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError.GROUP_ID_NOT_FOUND,
        }
        timed_out = {KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT}
        code = 1
        if inner.code() in not_found:
            code = EXIT_NOT_FOUND
        elif inner.code() in timed_out and not what.startswith("no broker"):
            code = EXIT_UNKNOWN_OUTCOME
        fail(f"{what}: {inner.str()} ({inner.name()})", code)
