"""Which tidemarks were reached before a transaction began in a log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

import pytest

from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.ports import ReachedStore
from geo_replicator.tidemark import NOWHERE, LogPosition, Tidemark, encode
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import NO_ROUND
from geo_replicator.whole_ends import NOTHING_WHOLE, WholeEnds
from idempotency.identity import RegionEpoch, Round
from region_broker.region.mirror import rounds_before
from region_broker.region.mirror.rounds_before import POSITIONS_MAX, RoundsBefore
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


class Counting(Records):
    """Counts how many records are read."""

    read = 0

    def tidemark_records(self, start_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        for at in range(start_offset, len(self.tidemarks)):
            self.read += 1
            yield at, *encode(self.tidemarks[at])

    def last_tidemark_record(self) -> tuple[int, bytes, bytes]:
        self.read += 1
        return len(self.tidemarks) - 1, *encode(self.tidemarks[-1])


def history(count: int) -> list[Tidemark]:
    """Return tidemarks of which each ends the log one further, one in eight with all positions; the other log moves there alone."""
    made: list[Tidemark] = []
    full_at = 0
    for number in range(count):
        each = full(3 + number, 100 + number)
        if number % 8:
            each = replace(each, full=False, moved={LOG: each.moved[LOG]})
        made.append(replace(each, previous_at=number - 1 if number else NOWHERE, full_at=full_at))  # fmt: skip
        full_at = number if number % 8 == 0 else full_at
    return made


def slowly(tidemarks: Sequence[Tidemark], key: LogKey, offset: int, reached: int) -> Round:
    """Return what the rule says, from the vectors of all tidemarks."""
    best, ends = NO_ROUND, dict[LogKey, int]()
    for each in tidemarks[: reached + 1]:
        ends = {} if each.full else ends
        ends |= {log: place.cut_offset for log, place in each.moved.items()}
        for log in each.removed:
            ends.pop(log, None)
        if ends.get(key, 0) <= offset:
            best = each.round
    return best


@pytest.mark.parametrize("kept", [1, 5, 40, POSITIONS_MAX])
def test_INV_WC5_INV_RBF1_what_is_remembered_says_what_reading_all_does(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_before, "POSITIONS_MAX", kept)
    chance, tidemarks = Random(7), history(60)
    tidemarks[21] = replace(tidemarks[21], moved={}, removed=(LOG,))
    reached = Reached(tidemarks[0].point)
    here = RoundsBefore(Records(tidemarks), LEDGERS, reached)  # type: ignore[arg-type]
    for at, tidemark in enumerate(tidemarks):
        reached.point = tidemark.point
        for _ in range(12):
            key, offset = chance.choice([LOG, OTHER]), chance.choice([chance.randrange(170), 100 + at - chance.randrange(4)])  # fmt: skip
            here._found.clear()
            assert here.round_before(key, offset) == slowly(tidemarks, key, offset, at), (at, key, offset)  # fmt: skip


def test_INV_RBF1_a_question_reads_what_was_reached_since_and_nothing_above() -> None:
    records = Counting(history(1_000))
    reached = Reached(records.tidemarks[500].point)
    here = RoundsBefore(records, LEDGERS, reached)  # type: ignore[arg-type]
    here.round_before(LOG, 100 + 499)
    records.read = 0
    for at in range(501, 520):
        reached.point = records.tidemarks[at].point
        assert here.round_before(LOG, 100 + at - 1) == records.tidemarks[at - 1].round
    assert records.read <= 3 * 19, "the last one again, the next one, and the one behind it"


def test_INV_RBF1_INV_TR5_after_a_day_behind_a_log_that_waited_a_question_reads_from_a_full_record() -> (
    None
):
    """What lies between the question before and this one is not read, nor what is not reached yet."""
    records = Counting(history(40_000))
    reached = Reached(records.tidemarks[5].point)
    here = RoundsBefore(records, LEDGERS, reached)  # type: ignore[arg-type]
    assert here.round_before(LOG, 100 + 4) == records.tidemarks[4].round
    assert records.read < 400, "39,994 lie above, one in eight a full one"
    for at in (20_001, 39_999):
        records.read = 0
        reached.point = records.tidemarks[at].point
        assert here.round_before(LOG, 100 + at - 1) == records.tidemarks[at - 1].round
        assert records.read < 400, at


def test_INV_RBF1_what_a_takeover_cut_off_is_not_remembered() -> None:
    records = Records(history(20))
    reached = Reached(records.tidemarks[19].point)
    here = RoundsBefore(records, LEDGERS, reached)  # type: ignore[arg-type]
    assert here.round_before(LOG, 118) == records.tidemarks[18].round
    newer = RegionEpoch(TIDEMARK.region_epoch + 1)
    records.tidemarks[17:] = [
        replace(each, region_epoch=newer, moved={LOG: LogPosition(200, 0)}, round=Round(each.round + 1))
        for each in records.tidemarks[17:]
    ]  # fmt: skip
    reached.point = records.tidemarks[19].point
    assert here.round_before(LOG, 119) == records.tidemarks[16].round


def test_INV_WC5_no_tidemark_above_what_was_reached_counts() -> None:
    assert rounds(RECORDS.tidemarks[1].point).round_before(LOG, 9) == Round(40)
    assert rounds(BEFORE_ALL).round_before(LOG, 9) == NO_ROUND
