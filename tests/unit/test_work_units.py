"""Which tests go to one worker together."""

import pytest

from tests.work_units import unit_of

MATRIX = "tests/compat/test_client_matrix.py"


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        (f"{MATRIX}::test_a[nodes-kafka-python]", "tests/compat/[nodes]"),
        ("tests/compat/test_kcat.py::test_b[nodes]", "tests/compat/[nodes]"),
        ("tests/compat/test_kcat.py::test_b[one-none]", "tests/compat/[one]"),
    ],
)
def test_INV_TWU1_what_is_played_at_one_place_goes_to_one_worker(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


@pytest.mark.parametrize(
    "nodeid",
    [
        "tests/compat/test_late_requests.py::test_a[late-commit]",
        "tests/compat/test_group_clients.py::test_b",
        "tests/unit/test_secrets.py::test_c[one]",
        "tests/process/test_cli.py::TestD::test_e[nodes-1]",
    ],
)
def test_INV_TWU2_every_other_test_goes_with_its_file(nodeid: str) -> None:
    assert unit_of(nodeid) == nodeid.split("::", maxsplit=1)[0]
