"""Lines of aiohttp's parser: what is below the level that counts is heard, and not told."""

import logging

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from region_broker.http_api.parse_log import parser_log


def test_INV_HPL2_what_is_below_the_level_that_counts_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = parser_log()
    assert log.parent is not None
    before = log.parent.level
    log.parent.setLevel(logging.WARNING)
    try:
        log.debug("noise")
        refuse(log, logging.DEBUG)
        assert caplog.messages == []
        refuse(log, logging.ERROR)
    finally:
        log.parent.setLevel(before)
    assert caplog.messages == [
        "a request of ? cannot be read (BadHttpMessage), and 0 more since the last line"
    ]


def refuse(log: logging.Logger, level: int) -> None:
    error = BadHttpMessage("no HTTP")
    with pytest.raises(BadHttpMessage):
        raise error
    assert error.__traceback__ is not None
    log.log(level, "a request that cannot be read", exc_info=error)
    assert error.__traceback__ is None, "what is not told is let go, too"
