"""What commands over Kafka's protocol say when something is wrong: with the words given, or at the broker."""

import socket
import ssl
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from region_broker.cli import kafka, kafka_connection
from region_broker.cli import user as user_commands
from region_broker.cli.admin import acl as acl_commands
from region_broker.cli.admin import topic as topic_commands
from region_broker.cli.admin.acl import acl
from region_broker.cli.admin.group import group
from region_broker.cli.admin.quota import quota
from region_broker.cli.admin.topic import topic
from region_broker.cli.kafka import kafka_errors, wait_for
from region_broker.cli.output import EXIT_AUTH, EXIT_UNKNOWN_OUTCOME
from region_broker.cli.user import user
from region_broker.security.login import Security
from region_broker.security.sasl.scram_keys import PASSWORD_BYTES_MAX
from region_broker.security.tls_contents import TlsFiles
from tests.fixtures.certificates import authority, node_certificate, put, user_certificate


@pytest.mark.parametrize(
    "place", [(), ("--to-earliest", "--to-latest"), ("--to-datetime", "yesterday")]
)
def test_a_place_to_reset_to_is_checked_before_any_broker_is_asked(place: tuple[str, ...]) -> None:
    nobody = ("--bootstrap", "127.0.0.1:9")
    words = ("reset-offsets", "billing", "--topic", "orders", *place, *nobody)
    result = CliRunner().invoke(group, words)
    assert result.exit_code == 2
    assert "no broker answers" not in result.output


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("ConsumerGroupDescribe: ", "Broker: Coordinator not available"),
        ("(null)", "Broker: Coordinator not available"),
        ("the ledger loads", "the ledger loads"),
    ],
)
def test_an_error_without_words_is_told_in_those_of_its_code(
    sent: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, sent))
    with pytest.raises(SystemExit) as ended, kafka_errors("group billing is not described"):
        raise error
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"tidemark: group billing is not described: {told} (COORDINATOR_NOT_AVAILABLE)."
        " Does a region act, and does anybody lead it? See tidemark region status, tidemark cluster status\n"
    )


def test_bytes_that_are_damaged_on_a_disk_are_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit), kafka_errors("topic orders cannot be read"):
        raise KafkaException(KafkaError(KafkaError.INVALID_MSG))
    assert "try again; if it stays so: docs/runbooks/damaged_log.md" in capsys.readouterr().err


def test_an_order_that_is_not_answered_ends_with_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a quorum nothing of the metadata is settled, and librdkafka's future is answered never, or late."""
    monkeypatch.setattr(kafka, "TIMEOUT_S", 0.01)
    with pytest.raises(SystemExit) as ended:
        wait_for(Future[None](), "topic orders is not created")
    assert ended.value.code == EXIT_UNKNOWN_OUTCOME
    told = capsys.readouterr().err
    assert told.startswith("tidemark: topic orders is not created: no answer within 0.01 s, the")
    assert "tidemark cluster status" in told


@pytest.mark.parametrize("words", [("list",), ("explain", "bob", "read", "topic:orders")])
def test_acls_that_nobody_tells_end_a_command_without_a_traceback(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody leads, librdkafka looks for a controller for ever, and its future is never answered."""

    class Asked:
        def describe_acls(self, _asked: object) -> Future[None]:
            return Future()

        def list_topics(self, **_more: object) -> Mock:
            return Mock(controller_id=-1)

    monkeypatch.setattr(kafka, "TIMEOUT_S", 0.01)
    monkeypatch.setattr(acl_commands, "TIMEOUT_S", 0.01)
    monkeypatch.setattr(acl_commands, "admin_client", lambda *_: Asked())
    result = CliRunner().invoke(acl, [*words, "--bootstrap", "127.0.0.1:9"])
    assert (result.exit_code, "tidemark cluster status" in result.output) == (5, True)


@pytest.mark.parametrize(
    "words", [("list",), ("describe", "orders"), ("delete", "orders", "--yes")]
)
def test_a_broker_that_tells_no_topics_any_more_ends_a_command_without_a_traceback(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-HD8: a node that is cut off from its region closes connections that ask it for metadata; that may be the second time."""

    def closed(**_more: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))

    monkeypatch.setattr(topic_commands, "admin_client", lambda *_: Mock(list_topics=closed))
    result = CliRunner().invoke(topic, [*words, "--bootstrap", "127.0.0.1:9"])
    assert (result.exit_code, "does anybody lead the region" in result.output) == (1, True)


def test_a_broker_that_knows_no_controller_is_one_whose_region_nobody_leads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: Any = Mock(list_topics=lambda **_: Mock(controller_id=-1))
    assert kafka.tell_if_behind(asked) is None
    assert "nobody leads the region" in capsys.readouterr().err


@pytest.mark.parametrize(
    "outcome",
    [
        KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed while waiting for controller")),
        None,
    ],
)
def test_a_leader_that_does_not_answer_keeps_nobody_from_what_another_node_shows(
    outcome: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region without a quorum names who led last: the topics that a node has are asked for in that hour of all."""
    monkeypatch.setattr(kafka, "TIMEOUT_S", 0.01)
    asked = Future[Any]()
    if outcome is not None:
        asked.set_exception(outcome)

    class Client:
        def list_topics(self, **_more: object) -> Mock:
            return Mock(controller_id=2, topics={"orders": Mock(partitions={0: None})})

        def describe_configs(self, resources: list[Any], **_more: object) -> dict[Any, Any]:
            return dict.fromkeys(resources, asked)

    monkeypatch.setattr(topic_commands, "admin_client", lambda *_: Client())
    result = CliRunner().invoke(topic, ["list", "--bootstrap", "127.0.0.1:9"])
    assert result.exit_code == 0
    assert "orders" in result.output
    assert "node 2 leads the region, as far as the node that answers knows, and does not answer" in result.output  # fmt: skip


def test_an_order_that_is_answered_returns_what_came() -> None:
    answered = Future[int]()
    answered.set_result(3)
    assert wait_for(answered, "topic orders is not created") == 3


def test_a_topic_that_may_not_be_read_may_be_one_whose_key_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "Fetch failed"))
    with pytest.raises(SystemExit) as ended, kafka_errors("topic payments cannot be read"):
        raise error
    told = capsys.readouterr().err
    assert (ended.value.code, "tidemark acl explain" in told) == (EXIT_AUTH, True)
    assert "tidemark.encryption" in told


def test_who_may_not_be_in_a_group_is_told_which_rule_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commonest rule to forget: READ of the topic alone lets nobody into a group."""
    error = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "refused"))
    with pytest.raises(SystemExit) as ended, kafka_errors("topic orders cannot be read"):
        raise error
    told = capsys.readouterr().err
    assert ended.value.code == EXIT_AUTH
    assert "read group:NAME" in told


@pytest.mark.parametrize("host", ["eu1.example.org", "10.0.0.0/8", "10.0.0"])
def test_a_host_that_no_client_comes_from_is_no_host_of_a_rule(host: str) -> None:
    """ADR 59: nodes compare the address that a client comes from, letter by letter; such a rule would never count."""
    nobody = ("--bootstrap", "127.0.0.1:9", "--host", host)
    for words in (
        ("add", "bob", "all", "topic:*", "--deny"),
        ("explain", "bob", "read", "topic:x"),
    ):
        result = CliRunner().invoke(acl, [*words, *nobody])
        assert (result.exit_code, "is no IP address" in result.output) == (2, True)


def test_an_address_has_its_quota_by_itself() -> None:
    """KIP-612: an entity of an address has no other component."""
    words = ("remove", "--for-default-ip", "--for-user", "a", "--bootstrap", "127.0.0.1:9")
    result = CliRunner().invoke(quota, words)
    assert (result.exit_code, "has its quota by itself" in result.output) == (2, True)


def test_a_new_password_that_nobody_types_is_asked_for_by_its_options() -> None:
    result = CliRunner().invoke(
        user, ["keys", "admin"], input="", env={"TIDEMARK_NEW_PASSWORD": None}
    )
    assert result.exit_code == 2
    assert "--new-password-file" in result.output


@pytest.mark.parametrize(
    "words", [("describe", "secret"), ("delete", "secret", "--yes"), ("alter", "secret", "--partitions", "2")]
)  # fmt: skip
def test_a_topic_that_is_not_shown_may_be_one_that_may_not_be_seen(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-HAZ4: it is left out of lists, so it looks as if it were not there."""
    shown = Mock(list_topics=lambda **_: Mock(controller_id=-1, topics={}))
    monkeypatch.setattr(topic_commands, "admin_client", lambda *_: shown)
    monkeypatch.setattr(kafka, "presented", lambda: Security(user="bob", password="p"))
    result = CliRunner().invoke(topic, [*words, "--bootstrap", "127.0.0.1:9"])
    assert result.exit_code == 3, result.output
    assert "there is no topic secret, or bob may not see it (tidemark acl explain bob describe topic:secret)" in result.output  # fmt: skip


def _refusing_port(files: TlsFiles, stack: ExitStack) -> int:
    """Listen as a port does that lets nobody in without a certificate that counts; one connection is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    left = threading.Event()
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def serve() -> None:
        connection, _ = server.accept()
        with context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        ) as tls:
            with pytest.raises(ssl.SSLError):
                tls.do_handshake()
            left.wait(10)  # or what was said of it would be lost with the connection

    thread = threading.Thread(target=serve)
    thread.start()
    stack.callback(thread.join)
    stack.callback(left.set)
    return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("with_certificate", "said"),
    [
        (False, "refuses us (certificate required): it asks for a client's certificate (--certificate, --certificate-key)"),
        (True, "own.pem (unknown ca): tidemark cert show"),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_certificate_of_ours_is_not_called_dead(
    with_certificate: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """docs/reference/security.md: exit code 4 says that a node does not let us in."""
    files = put(tmp_path / "node", node_certificate())
    strange = authority("another")
    own = put(tmp_path / "own", user_certificate(by=strange), trusted=[strange])
    certificate, key = (own.certificate, own.key) if with_certificate else ("", "")
    security = Security(ca=files.ca, certificate=certificate, key=key)
    for module in (kafka, kafka_connection):
        monkeypatch.setattr(module, "presented", lambda: security)
    with ExitStack() as stack:
        port = _refusing_port(files, stack)
        with pytest.raises(SystemExit) as ended:
            kafka._check_reachable(f"127.0.0.1:{port}")
    told = capsys.readouterr().err
    assert (ended.value.code, said in told) == (EXIT_AUTH, True), told
    assert "tidemark dev" not in told


def test_a_user_who_is_there_keeps_his_password_when_somebody_creates_him_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = Mock()
    monkeypatch.setattr(user_commands, "admin_client", Mock())
    monkeypatch.setattr(user_commands, "_present", lambda _: {"alice": ["SCRAM-SHA-256"]})
    monkeypatch.setattr(user_commands, "_put", put)
    done = CliRunner().invoke(user, ["create", "alice"], env={"TIDEMARK_NEW_PASSWORD": "another"})
    assert done.exit_code == 1
    assert "user alice is there already: tidemark user set-password alice" in done.stderr
    assert not put.called
    assert CliRunner().invoke(user, ["create", "bob"]).exit_code == 0
    assert put.called


@pytest.mark.parametrize("password", ["p" * (PASSWORD_BYTES_MAX + 1), "tab\tin it"])
def test_a_password_that_is_none_is_refused_before_any_broker_is_asked(password: str) -> None:
    """It is too long, or has a control character (RFC 4013, 2.3)."""
    words = ["keys", "admin"]
    done = CliRunner().invoke(user, words, env={"TIDEMARK_NEW_PASSWORD": password})
    assert (done.exit_code, done.stdout) == (2, "")
