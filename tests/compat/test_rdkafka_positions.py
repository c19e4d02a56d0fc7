"""Lines of librdkafka 2.16.0, as it wrote them in runs that copied records twice and in runs that did not."""

from pathlib import Path

import pytest

from tests.compat.rdkafka_positions import own_steps

QUERY = "timed offset query for offset BEGINNING (leader epoch -1) in state"
OWN = [
    f"%7|1795824235.358|OFFSET|rdkafka#consumer-1| [thrd:main]: Topic orders [3]: {QUERY} active",
    "%7|1795824234.824|PARTSTATE|rdkafka#consumer-1| [thrd:main]: Partition orders [3] changed fetch state stopped -> offset-query",
    "%7|1795823615.004|OFFSETFETCH|rdkafka#consumer-5| [thrd:main]: Adding orders [3] back to pending list because on-going transaction is blocking offset retrieval",
]
ASKED = [
    f"%7|1795824234.615|OFFSET|rdkafka#consumer-1| [thrd:main]: Topic orders [3]: {QUERY} offset-query",
    "%7|1795824234.514|PARTSTATE|rdkafka#consumer-1| [thrd:main]: Partition orders [3] changed fetch state none -> offset-query",
    "%7|1795824236.224|PARTSTATE|rdkafka#consumer-1| [thrd:main]: Partition orders [3] changed fetch state offset-wait -> active",
    # An answer OFFSET_OUT_OF_RANGE: the broker's word, right or wrong.
    "%7|1795824236.224|PARTSTATE|rdkafka#consumer-1| [thrd:main]: Partition orders [3] changed fetch state active -> offset-query",
    "%7|1795823764.899|OFFSETFETCH|rdkafka#consumer-1| [thrd:main]: Adding orders [3] back to pending list with offset 100",
    "%7|1795823615.003|OFFSETFETCH|rdkafka#consumer-5| [thrd:main]: GroupCoordinator/1: OffsetFetchResponse: orders [3] offset -1, leader epoch -1, metadata 0 byte(s): UNSTABLE_OFFSET_COMMIT",
]


@pytest.mark.parametrize("line", OWN)
def test_a_step_of_its_own_is_found_for_its_partition_only(tmp_path: Path, line: str) -> None:
    log = tmp_path / "worker-1-t2.log"
    log.write_text("\n".join([*ASKED, line, *ASKED]) + "\n")
    assert own_steps([log], "orders", 3) == [f"worker-1-t2.log: {line}"]
    assert own_steps([log], "orders", 2) == []
    assert own_steps([log], "s [3]: orders", 3) == []


def test_what_a_broker_has_answered_is_no_step_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "worker-1-t2.log"
    log.write_text("\n".join(ASKED) + "\n")
    assert own_steps([log], "orders", 3) == []
