"""Which tidemarks were reached before a transaction began in a log."""

from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.ports import ReachedStore
from geo_replicator.tidemark import LogPosition, Tidemark
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import NO_ROUND
from geo_replicator.whole_ends import NOTHING_WHOLE, WholeEnds
from idempotency.identity import Round
from region_broker.region.mirror.rounds_before import RoundsBefore
from tests.unit.geo_replicator.test_reading import LOG, Records
from tests.unit.geo_replicator.test_tidemark import TIDEMARK

OTHER = LogKey(UUID(int=9), 1)
LEDGERS = LedgerTopics(UUID(int=1), UUID(int=2))


@dataclass
class Reached:
    """What a mirror has reached."""

    point: TidemarkPoint
    whole: WholeEnds = NOTHING_WHOLE


def full(number: int, end: int) -> Tidemark:
    moved = {LOG: LogPosition(end, 0), OTHER: LogPosition(number, 0)}
    return replace(TIDEMARK, number=number, round=Round(10 * number), ledger={}, moved=moved)


RECORDS = Records(
    [
        full(3, 5),
        replace(full(4, 7), full=False, previous_at=0, full_at=0),
        replace(full(5, 9), previous_at=1),
    ]
)


def rounds(point: TidemarkPoint = RECORDS.tidemarks[-1].point) -> RoundsBefore:
    reached: ReachedStore = Reached(point)  # type: ignore[assignment]  # nothing is saved
    return RoundsBefore(RECORDS, LEDGERS, reached)


@pytest.mark.parametrize(
    ("offset", "found"), [(4, 0), (5, 30), (6, 30), (7, 40), (8, 40), (9, 50), (10, 50)]
)
def test_INV_WC5_the_newest_tidemark_that_ends_the_log_at_or_below_is_looked_for(
    offset: int, found: int
) -> None:
    here = rounds()
    assert [here.round_before(LOG, offset) for _ in range(2)] == [Round(found)] * 2


def test_INV_WC5_no_tidemark_above_what_was_reached_counts() -> None:
    assert rounds(RECORDS.tidemarks[1].point).round_before(LOG, 9) == Round(40)
    assert rounds(BEFORE_ALL).round_before(LOG, 9) == NO_ROUND
