"""Searches come last, and in another order with each turn."""

from tests.searches import place

EXAMPLE, MODEL, LIFE = (
    "tests/unit/test_z.py::test",
    "tests/model/test_m.py::test",
    "tests/simulation/test_a.py::test",
)
MODELS = [f"tests/model/test_{name}.py::test_{n}" for name in "abcdefgh" for n in (2, 1)]


def in_order(nodeids: list[str], turn: str) -> list[str]:
    return sorted(nodeids, key=lambda nodeid: place(nodeid, is_life=nodeid == LIFE, turn=turn))


def test_INV_TSE1_searches_come_behind_examples_and_lives_behind_all() -> None:
    for turn in ("", "one", "two", "three", "four"):
        assert in_order([LIFE, MODEL, EXAMPLE], turn) == [EXAMPLE, MODEL, LIFE], turn


def test_INV_TSE2_each_turn_has_its_order_of_files() -> None:
    one, two = in_order(MODELS, "one"), in_order(MODELS, "two")
    assert one != two
    assert one != MODELS
    assert one == in_order(MODELS, "one")


def test_INV_TSE2_a_file_stays_together_and_in_its_order() -> None:
    for turn in ("one", "two"):
        files = [nodeid.partition("::")[0] for nodeid in in_order(MODELS, turn)]
        assert files[::2] == files[1::2], turn
        assert [nodeid[-1] for nodeid in in_order(MODELS, turn)] == ["2", "1"] * 8, turn


def test_INV_TSE2_without_a_turn_files_stand_in_their_order() -> None:
    assert in_order(MODELS, "") == MODELS
