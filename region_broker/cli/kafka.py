"""What the commands that speak Kafka share: where to connect, and errors in words.

A Kafka error ends a command with its name, what it means and the exit code of `cli.output`.
"""

import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from region_broker.cli.context.credentials import credential_options
from region_broker.cli.context.store import DEFAULT_BOOTSTRAP, ContextError, chosen
from region_broker.cli.kafka_connection import LoginFailed, handshake_problem, is_alert, opened
from region_broker.cli.output import (
    EXIT_AUTH,
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    EXIT_USAGE,
    fail,
)
from region_broker.workbench.credentials import kafka_login, presented

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 3.0
_LEADER_TIMEOUT_S: Final = 3.0
"""For what is asked beside the point: whether the region acts."""
_CORRELATION_ID: Final = 0x74696465
# ApiVersions (18), version 0, without a client id; and how its answer begins.
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
_API_VERSIONS_HEAD: Final = struct.Struct(">ii")
_ACTING: Final = "tidemark.acting"
_CREATE: Final = (
    "`tidemark topic create` makes one, `tidemark topic list` shows all. A region whose data folder has no history knows"
    " none: `tidemark region status` says so"
)

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")


def bootstrap_option(command: Command) -> Command:
    """Add ``--bootstrap``; without it TIDEMARK_BOOTSTRAP, the context, and `tidemark dev` (INV-CTX1)."""
    option = click.option(
        "--bootstrap", envvar="TIDEMARK_BOOTSTRAP", default=_default_bootstrap,
        help="Kafka addresses of the cluster, with commas; dead ones are skipped. Default:"
        f" TIDEMARK_BOOTSTRAP, then the context, then {DEFAULT_BOOTSTRAP}.",
    )  # fmt: skip
    return option(credential_options(command))


def _default_bootstrap() -> str:
    try:
        return chosen().bootstrap
    except ContextError as error:
        fail(str(error), EXIT_USAGE)


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return a quiet configuration for confluent-kafka; ends the command if nobody listens there."""
    _check_reachable(bootstrap)
    if presented().kafka_protocol.startswith("SASL"):
        _check_login(bootstrap)
    return {"bootstrap.servers": bootstrap, "log_level": 0, **kafka_login(), **more}


def quiet() -> logging.Logger:
    """Return where librdkafka logs to: fatal errors would go to stderr whatever its level."""
    logger = logging.getLogger("tidemark.cli.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def admin_client(bootstrap: str) -> "AdminClient":
    """Return an AdminClient that has reached a broker; ends the command if there is none."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient(client_config(bootstrap), logger=quiet())
    metadata_of(client)
    return client


def metadata_of(client: "AdminClient") -> "ClusterMetadata":
    """Return what a broker tells of its topics; ends the command where none does: one that is cut off from its region closes the connection."""
    with kafka_errors(
        "somebody listens there, and no broker tells its topics: does anybody lead the region (tidemark cluster status, tidemark region"
        " status), and is it the Kafka port?"
    ):
        return client.list_topics(timeout=TIMEOUT_S)


def tell_if_behind(client: "AdminClient") -> bool | None:
    """Say in one line if the region that answers does not act, or is led by nobody; return whether it acts, None where that is not told (us).

    A leader that does not answer keeps nobody from what another node shows: its region may have lost its quorum.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin._config import ConfigResource

    number = metadata_of(client).controller_id
    if number < 0:
        click.echo(
            "nobody leads the region whose node answers: it shows what it has, which may lie behind (tidemark cluster status)",
            err=True,
        )
        return None
    resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
    asked = client.describe_configs([resource], request_timeout=_LEADER_TIMEOUT_S)[resource]
    if _is_forbidden(asked):
        return None
    try:
        told = asked.result(timeout=TIMEOUT_S).get(_ACTING)
    except (TimeoutError, KafkaException) as error:
        click.echo(
            f"node {number} leads the region, as far as the node that answers knows, and does not answer ({_why(error)}): what is shown"
            " may lie behind (tidemark cluster status)",
            err=True,
        )
        return None
    if told is None:
        return None
    acting = bool(told.value == "true")
    if not acting:
        click.echo(
            f"node {number} answers, whose region does not act: it shows what it has reached, which may lie behind"
            " (tidemark region status)",
            err=True,
        )
    return acting


def _why(error: Exception) -> str:
    """Return what a broker, or librdkafka in its place, says."""
    from confluent_kafka import KafkaException

    return _words(error.args[0]) if isinstance(error, KafkaException) else "no answer"


def _check_login(bootstrap: str) -> None:
    """End the command at once if no address lets us in; librdkafka would go on trying."""
    refused = ""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            opened(host.strip("[]"), int(port), TIMEOUT_S).close()
        except LoginFailed as error:
            refused = refused or f"{address}: {error}"
        except (OSError, OverflowError):
            continue
        else:
            return
    if refused:
        fail(refused, EXIT_AUTH)


def _is_forbidden(asked: Future[Any]) -> bool:
    """Return whether a node refuses to tell, as we may not ask: what it answers otherwise still counts."""
    from confluent_kafka import KafkaError

    try:
        error = asked.exception(timeout=TIMEOUT_S)
    except TimeoutError:
        return False
    return (
        error is not None
        and bool(error.args)
        and isinstance(error.args[0], KafkaError)
        and error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    )


def _check_reachable(bootstrap: str) -> None:
    """End the command at once if no address takes a connection; librdkafka would go on trying."""
    reasons: list[str] = []
    refusals, silent = 0, 0
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            fail(f"--bootstrap: {address!r} is not host:port", EXIT_USAGE)
        try:
            if _speaks_kafka(host.strip("[]"), int(port)):
                return
        except ssl.SSLCertVerificationError as error:
            reasons.append(f"{address}: {_not_believed(error)}")
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            reasons.append(f"{address}: closed the connection as TLS began: does it speak it at all (--protocol PLAINTEXT where not)?")  # fmt: skip
        except ssl.SSLError as error:
            reasons.append(f"{address}: {handshake_problem(error)}")
            refusals += is_alert(error)
        except (OSError, OverflowError) as error:
            reasons.append(f"{address}: {error}")
            silent += 1
        else:
            reasons.append(f"{address}: {_says_otherwise()}")
    start = "Is it running? `tidemark dev` starts one; give" if silent else "Give"
    fail(
        f"no broker answers ({'; '.join(reasons)}). {start}"
        " another address with --bootstrap, TIDEMARK_BOOTSTRAP or `tidemark context`.",
        EXIT_AUTH if refusals == len(reasons) else EXIT_FAILED,
    )


def _not_believed(error: ssl.SSLCertVerificationError) -> str:
    ca = presented().ca or "this system, as there is no --ca"
    return f"its certificate does not count by the CAs of {ca}: {error.verify_message}"


def _says_otherwise() -> str:
    if presented().kafka_protocol.endswith("SSL"):
        return (
            "closed the connection, or does not speak Kafka over TLS: is it the HTTP or the peer port, or does it want a client's certificate"
            " that counts there (--certificate, --certificate-key)? The node's log says why"
        )
    return "does not speak Kafka; is it the HTTP or the peer port, or does it ask for TLS (--ca)?"


def _speaks_kafka(host: str, port: int) -> bool:
    """Return False if what listens there answers ApiVersions with something else; raises OSError.

    Silence counts as Kafka: a broker that is busy is no wrong port.
    """
    security = presented()
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, port), CONNECT_TIMEOUT_S))
        if security.kafka_protocol.endswith("SSL"):
            context = security.ssl_context()
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
        try:
            connection.sendall(_API_VERSIONS)
            answer = b""
            while len(answer) < _API_VERSIONS_HEAD.size:
                said = connection.recv(_API_VERSIONS_HEAD.size - len(answer))
                if not said:
                    break
                answer += said
        except TimeoutError:
            return True
        except ConnectionError:
            return False
    if len(answer) < _API_VERSIONS_HEAD.size:
        return False
    size, correlation_id = _API_VERSIONS_HEAD.unpack(answer)
    return bool(size > 0 and correlation_id == _CORRELATION_ID)


def check_topic(client: "AdminClient | Consumer | Producer", topic: str) -> list[int]:
    """Return the partitions of `topic`; raises KafkaException if there is none of that name."""
    from confluent_kafka import KafkaError, KafkaException

    # All are listed: to ask for one by its name would make it, where brokers make what clients ask for.
    found = client.list_topics(timeout=TIMEOUT_S).topics.get(topic)
    if found is None:
        unknown = KafkaError(
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            f"there is no topic {topic}{or_unseen(topic)}: {_CREATE}",
        )
        raise KafkaException(unknown)
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def or_unseen(topic: str) -> str:
    """Return that it may be there all the same: topics that may not be seen are left out (INV-HAZ4)."""
    user = presented().user
    return (
        f", or {user} may not see it (tidemark acl explain {user} describe topic:{topic})"
        if user
        else ""
    )


def bounds_of(reader: "Consumer", topic: str, partition: int) -> tuple[int | None, int | None]:
    """Return where a log begins and ends for `reader`; None twice, told on stderr, of a partition that serves nothing.

    One of many that has stopped does not hide the others. Raises KafkaException where nobody answers.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    # What librdkafka says of a partition without a leader comes first: that is how a stopped one is announced.
    stopped = {KafkaError._UNKNOWN_PARTITION, KafkaError.KAFKA_STORAGE_ERROR,
               KafkaError.LEADER_NOT_AVAILABLE}  # fmt: skip
    try:
        low, high = reader.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=TIMEOUT_S
        )
    except KafkaException as error:
        if error.args[0].code() not in stopped:
            raise
        click.echo(
            f"tidemark: {topic}-{partition} does not say where it begins and ends: it has stopped, or is not there yet"
            " (`tidemark region status`, /readyz of the node, docs/runbooks/disk_full.md)",
            err=True,
        )
        return None, None
    return low, high


def wait_for(future: Future[Result], what: str) -> Result:
    """Return the result of an admin request; ends the command if it failed."""
    with kafka_errors(what):
        return future.result(timeout=TIMEOUT_S)


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn a KafkaException, or an answer that does not come, into a message and an exit code."""
    from confluent_kafka import KafkaException

    try:
        yield
    except TimeoutError:
        fail(
            f"{what}: no answer within {TIMEOUT_S} s, the outcome is unknown. See whether the region can decide anything:"
            " tidemark region status, tidemark cluster status",
            EXIT_UNKNOWN_OUTCOME,
        )
    except KafkaException as error:
        inner = error.args[0]
        code = exit_code(inner.code())
        if code == EXIT_UNKNOWN_OUTCOME and what.startswith("somebody listens"):
            code = EXIT_FAILED
        fail(f"{what}: {_words(inner)} ({inner.name()}){hint_of(inner.code())}", code)


def _words(error: "KafkaError") -> str:
    """Return what an error says; that of its code where the broker sent no text, which librdkafka ends with a colon."""
    words = error.str().strip()
    return (
        words
        if words not in {"", "(null)"} and not words.endswith(":")
        else type(error)(error.code()).str()
    )


def hint_of(error_code: int) -> str:
    """Return where to look for what an error of the protocol has no words for."""
    from confluent_kafka import KafkaError

    if error_code == KafkaError.SECURITY_DISABLED:
        return (
            ". Nothing says who anybody is, so everything is allowed: name somebody who may make ACLs in super_users of the nodes' files"
            " (docs/reference/security.md)"
        )
    if exit_code(error_code) == EXIT_AUTH and error_code != KafkaError._AUTHENTICATION:
        who = presented().user or "who does not log in"
        hint = f". It is asked as {who}: tidemark acl explain tells who may describe the cluster what is allowed, and why (docs/reference/security.md#who-may-what)"
        if error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            hint += ". Where that is allowed, and the topic is sealed (tidemark.encryption), it is the key: the node has it not, or it was destroyed; its log says which"
        if error_code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            hint += f". Who reads by a group needs READ of the group, too, beside READ of the topic: tidemark acl add {presented().user or 'USER'} read group:NAME"
        return hint
    standing_still = {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_CONTROLLER}
    if error_code == KafkaError.INVALID_MSG:  # Kafka's CORRUPT_MESSAGE
        return (
            ". Bytes that are stored there are damaged. Where another node or region has them they are mended within a minute or two:"
            " try again; if it stays so: docs/runbooks/damaged_log.md"
        )
    if error_code not in standing_still:
        return ""
    return ". Does a region act, and does anybody lead it? See tidemark region status, tidemark cluster status"


def exit_code(error_code: int) -> int:
    """Return what a command ends with for an error of the protocol."""
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
