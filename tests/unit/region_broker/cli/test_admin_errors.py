"""What commands over Kafka's protocol say when something is wrong: with the words given, or at the broker."""

from concurrent.futures import Future

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from region_broker.cli import kafka
from region_broker.cli.admin.group import group
from region_broker.cli.kafka import kafka_errors, wait_for
from region_broker.cli.output import EXIT_UNKNOWN_OUTCOME


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
        " Does a region act? See tidemark region status\n"
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


def test_an_order_that_is_answered_returns_what_came() -> None:
    answered = Future[int]()
    answered.set_result(3)
    assert wait_for(answered, "topic orders is not created") == 3
