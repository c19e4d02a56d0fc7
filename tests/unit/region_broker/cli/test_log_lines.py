"""The node's log is one JSON object a line, and what a line is about are keys of it."""

import json
import subprocess
import sys

PROBE = """
import logging
from region_broker.cli.broker import _configure_logs
_configure_logs("info")
log = logging.getLogger("some.module")
log.warning("it %s", "broke", extra={"client_id": "billing", "correlation_id": 7})
log.debug("not shown")
logging.getLogger("aiosqlite").info("not shown")
try:
    raise ValueError("why")
except ValueError:
    log.exception("two\\nlines")
"""


def test_a_line_is_an_object_with_the_request_as_keys() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stderr.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "it broke", "level": "warning", "logger": "some.module",
        "client_id": "billing", "correlation_id": 7,
    }  # fmt: skip
    assert "ValueError: why" in second["exception"]
