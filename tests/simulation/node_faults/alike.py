"""That nodes which have come to rest are alike, and that what was consumed stands where its output stands."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from chaos.story import Place
from region_broker.node import Node
from region_broker.partitions.partition import Partition
from tests.simulation.cut_judge import whole
from tests.simulation.kafka_client import Connection
from tests.simulation.swarm.processor import OUTPUT_TOPIC, Processor, committed_offset


def metadata_differ(nodes: Mapping[str, Node]) -> Iterator[str]:
    """Say where the metadata of nodes are not the same."""
    for (one, here), (two, there) in pairwise(nodes.items()):
        ours, theirs = here.storage.metadata.image, there.storage.metadata.image
        if ours != theirs:
            fields = [f for f in ours.__struct_fields__ if getattr(ours, f) != getattr(theirs, f)]
            yield f"the metadata of {one} and {two} differ in {fields}"


def logs_differ(nodes: Mapping[str, Node]) -> Iterator[str]:
    """Say which logs of nodes are not the same; those that only grow now (ledgers of tidemarks) are compared as far as all have them."""
    for (one, here), (two, there) in pairwise(nodes.items()):
        ours = {p.key: p for p in here.storage.partitions}
        theirs = {p.key: p for p in there.storage.partitions}
        if ours.keys() != theirs.keys():
            yield f"{one} and {two} have other partitions"
        for key in sorted(ours.keys() & theirs.keys()):
            if told := _difference(ours[key], theirs[key]):
                yield f"{ours[key].tp} of {one} and {two}: {told}"


def _difference(ours: Partition, theirs: Partition) -> str:
    failed = [each.failed for each in (ours, theirs) if each.failed is not None]
    if failed:
        return f"stopped: {failed}"
    start = max(max(each.log.cleaning.holes_below, each.kept_from) for each in (ours, theirs))
    end = min(ours.high_watermark, theirs.high_watermark)
    if start >= end:
        return ""
    return "" if whole(ours, start, end) == whole(theirs, start, end) else f"in {start} to {end}"


def undecided_logs(logs: Iterable[Partition]) -> Iterator[str]:
    """Say which logs hold an open transaction, or records that are not committed, or not shown."""
    for each in logs:
        if each.sight.last_stable_offset != each.log_end_offset:
            yield f"{each.tp}: {each.sight.last_stable_offset} of {each.log_end_offset}"


async def processed_wrongly(
    connection: Connection, processors: Sequence[Processor], places: Sequence[Place]
) -> list[str]:
    """Say where a committed offset and the output do not stand together (INV-SWP1); `places`: all that is there, sorted. Raises OSError, `Refused`."""
    found = []
    for each in processors:
        end = await committed_offset(connection, each.group, each.topic, each.number)
        here = [p for p in places if p.partition == each.number]
        taken = [f"done {p.value}" for p in here if p.topic == each.topic and p.offset < end]
        made = [p.value for p in here if p.topic == OUTPUT_TOPIC]
        if taken != made:
            lacks, more = Counter(taken) - Counter(made), Counter(made) - Counter(taken)
            found.append(
                f"processor {each.name}, offset {end}: lacks {dict(lacks)}, too much {dict(more)}"
            )
        found += [
            f"processor {each.name}: a committed offset is out of range: {b}" for b in each.beyond
        ]
    return found
