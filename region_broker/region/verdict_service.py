"""The final word on a transaction, from the primary region's log and lineage (rule T29).

INV-VS1  the answer is never guessed: `lost` needs a region epoch that ended and a log that does not hold the
         record, `committed` and `aborted` need the marker below the high watermark, anything else is `open`
INV-VS2  only the primary region answers: a mirror may not have copied what decides
INV-VS3  one question costs a bounded amount of reading, in steps that give way to other work: below the last
         stable offset the aborted index answers, above it at most `scan_bytes_max` are looked through
INV-VS5  so many questions at most look through a log at once, one of each who asks, and the others wait: a turn of the loop holds no step of
         each of them, and nobody's questions keep all others' waiting. Who has waited is answered from the history he asked about, or refused
INV-VS9  so many questions of one who asks wait to look through a log, and one more is refused at once and told when to ask again: each that waits
         holds a place of the HTTP port, which probes and operators need, too
INV-VS4  what the lineage says is lost is never called anything else, whatever stands at its offset now, or stood there
         and was trimmed or compacted since
INV-VS6  where the question names the pair of producer id and epoch, whose the record at that offset is decides, whatever region epoch it
         was written under: its own batch has the word, and a marker is nobody's record. Another's there says that it is lost only where a
         takeover since the pair was given out cut the log at or below it, which INV-VS4 finds: who asks may have been given his pair since
INV-VS7  a node that may lead no more, as no other one in sync was heard of lately, says so, and nothing else: a later leader of the same region epoch may
         have written, and decided, what is not in its log
INV-VS8  where a topic of that name was deleted, nothing is called lost: what lay there may have gone with that one, and its records were kept

The question is a record's position and, where known, who wrote it: after a failover another record may lie at the same offset. The
region epoch says it to whoever knows under which one it was written. A producer does not, as a planned switch leaves its pair in force and
is noticed by nobody (INV-TC14):
1. It is given its pair under region epoch 8. 2. A switch: it writes under 16. 3. The answer to its commit is lost in a failover to 25,
which has the commit. 4. The log from where 16 began holds nothing of 8, so by the region epoch of its pair that would be lost.
Its pair says it: producer ids are given out once, and a failover fences every pair, so that none writes above the cut.
The ledger is not asked: what it decided is in the markers (T6), and it is compacted.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from geo_replicator.lineage import LogKey, in_force
from idempotency import fencing
from idempotency.fencing import region_epoch_of
from idempotency.identity import ProducerPair, RegionEpoch
from idempotency.record_batch import BatchHeader, Buffer, ControlType, iter_headers, read_marker
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, LineageEntry, MetadataImage
from region_broker.handlers.dispatch.services import RegionView
from region_broker.limits import KIB, MIB
from region_broker.log.failures import LogError, OffsetOutOfRange
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.table import PartitionTable
from region_broker.ports.fair_turns import FairTurns
from region_broker.region.ports import MetadataSide

SCAN_BYTES_MAX: Final = 64 * MIB
SCANS_AT_ONCE_MAX: Final = 4
SCANS_OF_AN_ASKER_MAX: Final = 16
"""Of one who asks, those that wait counted in: who stands behind so many may not have his turn before his request times out."""
_RETRY_AFTER_S: Final = 1
# Some thousand small batches: a few ms on the loop.
_STEP_BYTES: Final = 128 * KIB

_NO_HISTORY: Final = (
    "this region does not act, and does not know which one does: it has no history yet. Ask the others;"
    " tidemark region status, asked here by who may describe the cluster, says what it waits for"
)
_NOT_SURE: Final = (
    "another node of this region may lead by now, as no other one was heard of lately: ask again"
)
_NOT_COPIED: Final = (
    "another node leads this partition now, and what it has was not copied to here yet"
)
_PERHAPS_CUT: Final = (
    ". A failover since the producer was given its id has cut this log at or below the offset: if the record was written before that, it"
    " is lost, and this stays open until something is written there again. tidemark region losses lists what was cut off"
)


class VerdictRefused(Exception):
    """No verdict can be given here; `status` is the HTTP status that says why.

    `region` and `url` name who to ask instead, where somebody else is to be asked; `retry_after_s`: when to ask here again.
    """

    def __init__(
        self, status: int, code: str, reason: str, *,
        region: str = "", url: str = "", retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        """Keep the code beside the text."""
        super().__init__(reason)
        self.status = status
        self.code = code
        self.region = region
        self.url = url
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class GivenVerdict:
    """`verdict` is committed, aborted, lost or open; `why` is for people."""

    verdict: str
    why: str


def _surely() -> bool:
    """Return True: a region of one node has no other one that could lead."""
    return True


class VerdictService:
    """Answers for the partitions of this node."""

    def __init__(
        self, partitions: PartitionTable, metadata: MetadataSide, region: RegionView,
        *, scan_bytes_max: int = SCAN_BYTES_MAX, http_scheme: str = "http", leads_surely: Callable[[], bool] = _surely,
    ) -> None:  # fmt: skip
        """Read from `partitions` while `region` acts, and this node `leads_surely` in it."""
        self._partitions = partitions
        self._metadata = metadata
        self._region = region
        self._scan_bytes_max = scan_bytes_max
        self._http_scheme = http_scheme
        self._leads_surely = leads_surely
        self._scans = FairTurns(SCANS_AT_ONCE_MAX)

    @property
    def refusal(self) -> type[VerdictRefused]:
        """Return the exception of refused questions."""
        return VerdictRefused

    def check_acting(self) -> None:
        """Raise `VerdictRefused` (409, with who to ask if that is known) where this region does not act, or another node may lead it (503, INV-VS7)."""
        if self._region.acting:
            if not self._leads_surely():
                raise VerdictRefused(503, "not-sure", _NOT_SURE, retry_after_s=1)
            return
        image = self._metadata.image
        acting = image.domains[DEFAULT_DOMAIN].acting_region
        place = image.regions.get(acting)
        # Why it does not act may name logs of others (INV-HND5).
        if place is None:
            raise VerdictRefused(409, "not-acting", _NO_HISTORY)
        raise VerdictRefused(
            409,
            "not-acting",
            f"ask the primary region, {acting} as far as is known here: this one does not act",
            region=acting,
            url=f"{self._http_scheme}://{place.http_host}:{place.http_port}",
        )

    async def verdict(
        self, topic: str, partition: int, offset: int, region_epoch: RegionEpoch | None, *,
        pair: ProducerPair | None = None, asker: str = "",
    ) -> GivenVerdict:  # fmt: skip
        """Return the verdict on the record at `offset`; raises `VerdictRefused`. `asker`: the principal who asks.

        `region_epoch`: under which it was written, or, beside the `pair` that wrote it (INV-VS6), under which that was given out.
        """
        self.check_acting()
        cut_off: str | None = None
        if region_epoch is not None:
            self._check_epoch(region_epoch)
            cut_off = self._cut_off(topic, partition, offset, region_epoch)
            if cut_off is not None and pair is None:
                return self._lost(topic, cut_off)
        found = self._partitions.get(topic, partition)
        if found is None:
            raise VerdictRefused(
                404, "unknown-partition", self._why_unknown(topic, partition, region_epoch)
            )
        if not 0 <= offset < found.high_watermark:
            return self._beyond_the_end(found, offset, region_epoch, was_cut=cut_off is not None)
        try:
            if pair is not None:
                return await self._of_pair(found, offset, pair, asker, was_cut=cut_off is not None)
            return await self._of_record(found, offset, region_epoch, asker)
        except OffsetOutOfRange as error:
            raise VerdictRefused(
                404, "expired", f"{topic}-{partition} begins at {found.log_start_offset} now"
            ) from error
        except LogError as error:
            raise VerdictRefused(503, "partition-failed", str(error)) from error

    def _cut_off(
        self, topic: str, partition: int, offset: int, region_epoch: RegionEpoch
    ) -> str | None:
        """Return which failover since `region_epoch` cut the log at or below `offset` (INV-VS4), None if none did.

        A log that an entry does not name had not come to the region that took over: all of it was cut off. A failover
        that was passed over cut nothing off that counts (INV-LN4).
        """
        image = self._metadata.image
        known = image.topics.get(topic)
        if known is None or offset < 0:
            return None
        key = LogKey(known.topic_id, partition).encode()
        for entry in in_force(image.domains[DEFAULT_DOMAIN].lineage):
            if entry.region_epoch > region_epoch and offset >= entry.positions.get(key, 0):
                return (
                    f"the failover to region {entry.acting_region} under region epoch {entry.region_epoch} cut"
                    f" off what region epoch {region_epoch} had from {entry.positions.get(key, 0)} on"
                )
        return None

    def _lost(self, topic: str, why: str) -> GivenVerdict:
        """Return `lost`; raises `VerdictRefused` where a topic of that name was deleted (INV-VS8).

        1. A record lies in `orders`, in a transaction with one in `invoices`, and a failover keeps both. 2. `orders` is deleted, and made again. 3. That topic
        has an id that the failover cannot name, and its log does not hold the record: whoever was told that the transaction is lost would do it again.
        """
        image = self._metadata.image
        if any(each.topic.name == topic for each in image.deleted.values()):
            raise VerdictRefused(
                404, "made-again",
                f"a topic {topic} was deleted, and one of that name is there now: the record may have been kept, and have gone with the former one."
                " tidemark region losses lists what failovers cut off",
            )  # fmt: skip
        return GivenVerdict("lost", why)

    def _why_unknown(self, topic: str, partition: int, region_epoch: RegionEpoch | None) -> str:
        reason = f"there is no {topic}-{partition}"
        if region_epoch is None or region_epoch == self._region.region_epoch:
            return reason
        return (
            f"{reason} now. If it was created under region epoch {region_epoch} and nobody deleted it, a failover"
            " lost it with all its records: see tidemark region losses"
        )

    async def _of_record(
        self, partition: Partition, offset: int, region_epoch: RegionEpoch | None, asker: str
    ) -> GivenVerdict:
        header, data = await self._batch_at(partition, offset)
        written_under = int(region_epoch_of(header.leader_epoch))
        if region_epoch is not None and written_under > region_epoch:
            return self._lost(
                partition.tp.topic,
                f"offset {offset} was written again under region epoch {written_under}: the failover"
                f" cut off what region epoch {region_epoch} had there",
            )
        if region_epoch is not None and written_under < region_epoch:
            raise VerdictRefused(
                404,
                "never-written",
                f"offset {offset} was written under region epoch {written_under}; region epoch"
                f" {region_epoch} began behind it",
            )
        if header.is_control:
            return _word_of(header, data)
        if not header.is_transactional:
            return GivenVerdict("committed", "a plain record, durable")
        return await self._decided(partition, header, offset, asker)

    async def _of_pair(
        self, partition: Partition, offset: int, pair: ProducerPair, asker: str, *, was_cut: bool
    ) -> GivenVerdict:  # fmt: skip
        """Answer by whose the record is (INV-VS6). `was_cut`: whether a takeover since the pair was given out cut the log at or below it.

        A marker is none. 1. Behind the cut of a failover lie the marker of a transaction that was decided, and a record of the same pair's
        next one. 2. The marker is written again, with that pair, and may come to lie where the record was.

        What no takeover cut off is not lost, whosever it is. 1. A transaction is written, and kept by a failover. 2. Its producer starts again:
        it is given another pair. 3. A planned switch. 4. It asks as whom it is now: the record is another's, and stands.
        """
        header, _ = await self._batch_at(partition, offset)
        is_its_id = not header.is_control and header.producer_id == pair[0]
        if is_its_id and header.is_transactional and header.producer_epoch == pair[1]:
            return await self._decided(partition, header, offset, asker)
        if is_its_id or not was_cut:
            raise VerdictRefused(
                404,
                "never-written",
                f"offset {offset} holds nothing of producer id {pair[0]} in epoch {pair[1]} that belongs to a transaction, and no failover"
                " explains that: was its producer given another pair since?",
            )
        return self._lost(
            partition.tp.topic,
            f"offset {offset} holds nothing of producer id {pair[0]}: a failover since that was given out cut off what it had there",
        )

    async def _decided(
        self, partition: Partition, header: BatchHeader, offset: int, asker: str
    ) -> GivenVerdict:
        if offset < partition.sight.last_stable_offset:
            return await self._by_aborted_index(partition, header, offset)
        if any(
            open_.producer_id == header.producer_id and open_.first_offset <= header.base_offset
            for open_ in partition.state.open_transactions()
        ):
            return GivenVerdict("open", "no marker yet: the transaction is open or being completed")
        region_epoch = self._region.region_epoch
        if self._scans.asked_for(asker) >= SCANS_OF_AN_ASKER_MAX:
            raise VerdictRefused(
                503,
                "too-many-questions",
                f"{SCANS_OF_AN_ASKER_MAX} questions of this principal look through a log, or wait for that: ask again",
                retry_after_s=_RETRY_AFTER_S,
            )
        async with self._scans.turn(asker):
            self.check_acting()
            if self._region.region_epoch != region_epoch:
                raise VerdictRefused(503, "moved", "a failover came while this waited: ask again")
            return await self._by_scan(partition, header)

    async def _by_scan(self, partition: Partition, header: BatchHeader) -> GivenVerdict:
        """Look for the marker that closed the batch's transaction: the first of its producer behind it.

        A marker of an older producer epoch belongs to an earlier transaction; one of a newer epoch
        closes this one too (fencing bumps the epoch before it aborts, C13).
        """
        position = header.next_offset
        left_bytes = self._scan_bytes_max
        while position < partition.high_watermark:
            if left_bytes <= 0:
                return GivenVerdict(
                    "open",
                    f"looked through {self._scan_bytes_max} bytes, up to offset {position}, and found"
                    " no marker; ask again when older transactions of the partition are decided",
                )
            data = await partition.reader.cold_reads.read(
                partial(partition.reader.read_raw, position, _STEP_BYTES)
            )
            left_bytes -= len(data)
            for start, each in iter_headers(data):
                if (
                    each.is_control
                    and each.producer_id == header.producer_id
                    and each.producer_epoch >= header.producer_epoch
                ):
                    return _word_of(each, data[start : start + each.size_bytes])
                position = each.next_offset
            await asyncio.sleep(0)
            self.check_acting()  # a failover may have cut the log meanwhile
        return GivenVerdict("open", "the marker is written but not durable yet")

    async def _batch_at(self, partition: Partition, offset: int) -> tuple[BatchHeader, Buffer]:
        one_batch = partial(partition.reader.read_raw, offset, 1)
        data = await partition.reader.cold_reads.read(one_batch)
        self.check_acting()  # a failover may have cut the log meanwhile
        compacted = VerdictRefused(
            410,
            "compacted",
            f"the record at {offset} was compacted away: a later one of its key took its place, or its"
            " transaction was aborted",
        )
        for start, header in iter_headers(data):
            if header.base_offset > offset:
                raise compacted
            if header.last_offset >= offset:
                return header, data[start : start + header.size_bytes]
        raise compacted

    async def _by_aborted_index(
        self, partition: Partition, header: BatchHeader, offset: int
    ) -> GivenVerdict:
        """Answer below the last stable offset, as read-committed consumers are answered (C38)."""
        found = await partition.reader.cold_reads.read(
            partial(partition.reader.fetch, offset, 1, Isolation.READ_COMMITTED, as_stored=True)
        )
        self.check_acting()
        for each in found.aborted:
            if (
                each.producer_id == header.producer_id
                and each.first_offset <= header.base_offset <= each.last_offset
            ):
                return GivenVerdict("aborted", f"the abort marker lies at {each.last_offset}")
        return GivenVerdict("committed", "decided, and not by an abort marker")

    def _check_epoch(self, region_epoch: RegionEpoch) -> None:
        domain = self._metadata.image.domains[DEFAULT_DOMAIN]
        if region_epoch > self._region.region_epoch:
            raise VerdictRefused(
                409,
                "behind",
                f"this region acts under region epoch {self._region.region_epoch} and knows nothing of"
                f" {region_epoch}: a later one acts elsewhere",
            )
        known = {entry.region_epoch for entry in domain.lineage} | {self._region.region_epoch}
        known |= {entry.base_region_epoch for entry in domain.lineage if entry.base_region_epoch}
        known |= _first_epochs(self._metadata.image, domain.lineage)
        if region_epoch not in known:
            names = ", ".join(str(epoch) for epoch in sorted(known))
            raise VerdictRefused(
                404, "unknown-epoch", f"no region acted under epoch {region_epoch}, only {names}"
            )

    def _beyond_the_end(
        self, partition: Partition, offset: int, asked_epoch: RegionEpoch | None, *, was_cut: bool
    ) -> GivenVerdict:  # fmt: skip
        if 0 <= offset < partition.log_end_offset:
            return GivenVerdict("open", "the record is written but not durable yet")
        if self._metadata.image.group_of(partition.key) != MAIN_GROUP:
            return GivenVerdict("open", _NOT_COPIED + (_PERHAPS_CUT if was_cut else ""))
        if asked_epoch is None or asked_epoch == self._region.region_epoch or offset < 0:
            raise VerdictRefused(
                404,
                "never-written",
                f"no record was written at {offset} under region epoch {self._region.region_epoch}",
            )
        return self._lost(
            partition.tp.topic,
            f"the log ends before {offset}: the failover cut off what region epoch {asked_epoch} had"
            " there",
        )


def _first_epochs(image: MetadataImage, lineage: Sequence[LineageEntry]) -> set[RegionEpoch]:
    """Return the epoch that a cluster begins with, where the first takeover came before any tidemark.

    Its entry names no base then. A cluster begins under number 1 of its primary region, and that did not take over.
    """
    if not lineage or lineage[0].base_region_epoch:
        return set()
    primaries = (
        region for region in image.regions.values() if region.name != lineage[0].acting_region
    )
    return {
        fencing.region_epoch(fencing.FIRST_REGION_NUMBER, primary.ordinal) for primary in primaries
    }


def _word_of(header: BatchHeader, batch: Buffer) -> GivenVerdict:
    committed = read_marker(batch).control_type is ControlType.COMMIT
    return GivenVerdict(
        "committed" if committed else "aborted", f"the marker lies at {header.base_offset}"
    )
