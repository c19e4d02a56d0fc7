"""A drill that is asked for what it does not know says what there is, and begins nothing."""

import click
import pytest
from click.testing import CliRunner

from chaos import soak
from chaos.nodes import __main__ as nodes
from chaos.regions import __main__ as regions

CHOICES = [
    (nodes.main, "--faults", "kill, pause, restart, cut, part, full, eio"),
    (nodes.main, "--victims", "leader, follower, quorum"),
    (nodes.main, "--clients", "confluent, aiokafka, java"),
    (regions.main, "--kinds", "failover, pair"),
    (regions.main, "--clients", "confluent, aiokafka, java"),
    (soak.main, "--only", "kill"),
]


@pytest.mark.parametrize(("command", "option", "known"), CHOICES)
def test_a_word_that_is_not_known_is_answered_with_those_that_are(
    command: click.Command, option: str, known: str
) -> None:
    done = CliRunner().invoke(command, [option, "kill,stop"])
    assert done.exit_code == 2
    assert f"'{option}'" in done.stderr
    assert "stop" in done.stderr
    assert known in " ".join(done.stderr.split())


def test_no_word_at_all_is_no_drill() -> None:
    assert CliRunner().invoke(nodes.main, ["--faults", " , "]).exit_code == 2


def test_a_setting_without_a_value_is_named() -> None:
    done = CliRunner().invoke(nodes.main, ["--set", "linger.ms=5", "--set", "linger"])
    assert done.exit_code == 2
    assert "linger: say key=value" in done.stderr
