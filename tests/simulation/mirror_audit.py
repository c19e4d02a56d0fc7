"""What a read-committed reader of the mirror sees at every tidemark: no half of a transfer, and the sum unchanged.

Two auditors. One notes the last stable offsets at every tidemark as it is shown, and judges them by the bytes of
the logs. The other is a client: it asks for the ends of all partitions in one request and reads up to them.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.history import Seen, seen
from geo_replicator.whole_ends import View
from idempotency.record_batch import ControlType
from region_broker.partitions.partition import Partition
from region_broker.region.mirror.mirror_view import MirrorView
from tests.simulation.bank import ACCOUNTS, TOPIC
from tests.simulation.cut_judge import batches_of
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.region_pair import Pair, Region


def expect_whole(records: Iterable[Seen], where: object) -> int:
    """Fail unless every transfer among `records` is there with both halves; return how many there are."""
    found = list(records)
    halves = Counter(record.attempt for record in found)
    assert set(halves.values()) <= {2}, (where, halves)
    assert sum(record.change for record in found) == 0, (where, found)
    return len(halves)


@dataclass
class EndsAtEachShow:
    """The last stable offsets of the accounts on a mirror, noted whenever it shows something."""

    region: Region
    noted: dict[tuple[int, ...], None] = field(default_factory=dict)

    def listen(self) -> None:
        """Note from now on, until the link is opened anew."""
        view = self.region.node.tidemarks.view
        assert view is not None
        show = view.show

        def noting(shown: View) -> None:
            show(shown)
            self.noted[tuple(each.sight.last_stable_offset for each in self._partitions())] = None

        view.show = noting  # type: ignore[method-assign,assignment]
        assert isinstance(view, MirrorView)

    def _partitions(self) -> list[Partition]:
        return [self.region.partition(TOPIC, number) for number in range(ACCOUNTS)]

    def judge(self) -> int:
        """Judge what was noted by the logs' bytes; return how many different ends with transfers there were."""
        logs = [_committed(self.region, number) for number in range(ACCOUNTS)]
        count = 0
        for ends in self.noted:
            shown = [
                seen(number, offset, value)
                for number, end in enumerate(ends)
                for offset, value in logs[number]
                if offset < end
            ]
            count += expect_whole(shown, ends) > 0
        return count


def _committed(region: Region, number: int) -> list[tuple[int, bytes]]:
    """Return the records of a partition that have a COMMIT marker, wherever that lies."""
    kept: list[tuple[int, bytes]] = []
    open_values: dict[int, list[tuple[int, bytes]]] = {}
    for batch in batches_of(region.partition(TOPIC, number)):
        if batch.marker is None:
            open_values.setdefault(batch.producer_id, []).extend(batch.values)
            continue
        values = open_values.pop(batch.producer_id, [])
        if batch.marker.control_type is ControlType.COMMIT:
            kept += values
    return kept


async def audit_by_wire(pair: Pair) -> None:
    """Audit the mirror as a client until cancelled."""
    network = pair.fabric.site("client-mirror-auditor")
    while True:
        try:
            connection = await Connection.open(network, pair.us.kafka_port)
            while True:
                await _audit_once(connection)
                await asyncio.sleep(0.01)
        except (OSError, Refused):
            await asyncio.sleep(0.01)


async def _audit_once(connection: Connection) -> None:
    ends = await connection.ends(TOPIC, ACCOUNTS)
    reader = Reader(TOPIC, ACCOUNTS, committed=True)
    while any(reader.positions[number] < end for number, end in ends.items()):
        if not await reader.read(connection):
            break
    records = [each for each in reader.records if each[1] < ends[each[0]]]
    expect_whole((seen(*each) for each in records), ends)
