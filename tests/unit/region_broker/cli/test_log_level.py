"""The level of a node's log is the one that counts now."""

import logging

import pytest

from region_broker.cli.broker import _set_log_level
from tests.fixtures.kafka_port import node_file


@pytest.mark.parametrize(
    ("level", "number"),
    [("debug", 10), ("info", 20), ("warning", 30), ("error", 40)],  # as Python's logging has them
)
def test_the_log_follows_its_key(level: str, number: int) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        _set_log_level(node_file(log_level=level))
        assert root.level == number
    finally:
        root.setLevel(before)
