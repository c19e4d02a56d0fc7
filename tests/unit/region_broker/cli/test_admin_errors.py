"""What commands over Kafka's protocol say when something is wrong: with the words given, or at the broker."""

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from region_broker.cli.admin.group import group
from region_broker.cli.kafka import kafka_errors


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
