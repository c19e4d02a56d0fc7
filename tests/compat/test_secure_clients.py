"""How `tests.compat.secure_clients` judges clients that come in over TLS, and the Python ones and kcat for real (no download)."""

import shutil
from collections.abc import Iterator

import pytest

from tests.compat import secure_clients
from tests.compat.secure_cases import LIMIT_S, RIGHT, Case, Played, Told, cases, faults, told_of
from tests.compat.secure_clients import CLIENTS, play_all
from tests.compat.secure_world import World, open_world

GOOD = "list\tok\nproduce\tok\nconsume\tok\n"
BAD = "".join(f"{step}\trefused\tSaslError: SASL\n" for step in ("list", "produce", "consume"))
ENTERS = Case("PLAIN", RIGHT)
WRONG = Case("PLAIN", "wrong password", "login")
REVOKED = Case("client certificate", "revoked", "revoked")


def test_every_mechanism_has_one_case_that_is_right_and_some_that_are_not() -> None:
    by_mechanism: dict[str, list[Case]] = {}
    for case in cases():
        by_mechanism.setdefault(case.mechanism, []).append(case)
    for mechanism, found in by_mechanism.items():
        assert [case.is_right for case in found][:1] == [True], mechanism
        assert sum(case.is_right for case in found) == 1
        assert len(found) > 2


def test_what_a_program_is_told_it_understands() -> None:
    told = Told(bootstrap="h:1", topic="t", value="v", ca="c", secret="a=b", is_token=True)
    assert Told.of(told.text()) == told


def test_what_is_right_must_work_in_every_step() -> None:
    assert faults("java", ENTERS, Played(GOOD, 1.0)) == []
    assert told_of(ENTERS, Played(GOOD, 1.0)) == "works"
    for printed in ("", GOOD.replace("produce\tok\n", ""), BAD):
        assert faults("java", ENTERS, Played(printed, 1.0)), printed


def test_who_is_refused_must_say_so_soon_and_the_node_must_know_why() -> None:
    assert faults("java", WRONG, Played(BAD, 1.0, 1.0)) == []
    assert told_of(WRONG, Played(BAD, 1.0, 1.0)) == "SaslError"
    assert faults("java", WRONG, Played(BAD, 1.0, 0.0)), "the node counted nothing"
    assert faults("java", WRONG, Played(BAD, LIMIT_S + 1, 1.0)), "it hung"
    assert faults("java", WRONG, Played(BAD.replace("SaslError: SASL", "E: timed out"), 1.0, 1.0))
    assert faults("java", REVOKED, Played(BAD, 1.0, 1.0)), "a login is no handshake"
    disconnected = "E: ssl://localhost:1/1: Disconnected"
    assert faults("kcat", REVOKED, Played(BAD.replace("SaslError: SASL", disconnected), 1.0, 1.0))
    one_in = BAD.replace("consume\trefused\tSaslError: SASL", "consume\tok")
    assert faults("java", WRONG, Played(one_in, 1.0, 1.0)) == ["consume: it was let in"]


@pytest.mark.parametrize(
    ("name", "tool", "says"),
    [("franz", "go", "Go module proxy"), ("sarama", "go", "Go module proxy"), ("kafkajs", "node", "npm"),
     ("java", "java", "Maven Central"), ("kcat", "kcat", "apt install kcat")],
)  # fmt: skip
def test_what_is_missing_is_said(
    name: str, tool: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert secure_clients.main(["--clients", name]) == 2
    said = capsys.readouterr().err
    assert tool in said
    assert says in said


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("secure")) as made:
        yield made


@pytest.mark.process
@pytest.mark.slow
def test_a_client_comes_in_by_what_is_right_and_by_nothing_else(world: World) -> None:
    """aiokafka. The other seven by `python -m tests.compat.secure_clients`: three of them alone take over three minutes."""
    assert play_all(world, "aiokafka", CLIENTS["aiokafka"]()) == []
