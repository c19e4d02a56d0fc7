"""Carries the audit trail of this node to a topic, line by line, while it may write there.

INV-NAT1  only what is durable in the files is carried, in the order of the chain, each line as it is: whoever reads the topic can verify
          the chain of each node, and holds heads of it that nobody who may write a node's files can take back
INV-NAT2  a line is carried at least once: what was appended and not noted as carried before a crash is appended again, the same bytes
          Where what was noted is of another chain, as its files were all moved away, that chain is carried from its beginning, and that is noted
          at once: by the next start it may have grown beyond what was noted
INV-NAT4  how far it is counts from the acknowledgement on, also where the disk does not let it be noted: a backlog that is carried while the disk of
          the files is full would else begin anew each second, with the same lines, for as long as that lasts
INV-NAT3  carrying makes no audit records, but for the creation of the topic
A node carries while it leads the topic's partition in the region that acts. Until then its records wait in its files: those of a mirror
until it acts, those of a follower until it leads. What a failover cuts off from the topic is in the files, and not carried again.
Not here: the files (`security.audit.chain_files`).
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from idempotency.ports import Clock
from region_broker.config.node_config import NodeConfig
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.dispatch.services import Services
from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.node.auditing import trail_folder
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.ports.disk import Disk
from region_broker.ports.unbroken import to_its_end
from region_broker.records.batches import Record, build_batch
from region_broker.security.audit.chain import LINE_BYTES_MAX, NotALink, read_line
from region_broker.security.audit.chain_files import chain_names, file_name
from region_broker.security.audit.recorder import AuditRecorder
from region_broker.security.audit.trail import AuditTrail

_log: Final = logging.getLogger("tidemark.audit")

LOOK_MS: Final = 1_000
BATCH_BYTES_MAX: Final = 256 * 1024
READ_BYTES: Final = 2 * LINE_BYTES_MAX
POSITION_FILE: Final = "carried"
TOPIC_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": str(90 * 24 * 3_600_000)}


class Position(msgspec.Struct, frozen=True):
    """How far the files were carried: `seq` is the last record, `at` where the next line begins in the file with that number.

    `digest`: the hash of that record, "" where there is none, or an older version noted it.
    """

    seq: int = 0
    number: int = 1
    at: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class _Taken:
    """Lines that come next, and the position behind them."""

    records: Sequence[Record]
    behind: Position


class AuditTopic:
    """`run` it beside the node's other tasks."""

    def __init__(
        self, trail: AuditRecorder, services: Services, disk: Disk, folder: Path, topic: str
    ) -> None:
        """Carry the files in `folder`, which `trail` writes, to `topic`."""
        self._trail = trail
        self._services = services
        self._clock: Clock = services.clock
        self._disk = disk
        self._folder = folder
        self._topic = topic
        self._said = ""
        self.position = self._noted = Position()

    async def run(self) -> None:
        """Carry until cancelled."""
        while not await self._began():
            await self._clock.sleep_ms(LOOK_MS)
        while True:
            if not await self._carried_some():
                await self._clock.sleep_ms(LOOK_MS)

    async def _began(self) -> bool:
        """Take up where it was left off; return whether that could be read."""
        try:
            self._noted = await to_its_end(asyncio.to_thread(self._read_noted))
            self.position = await to_its_end(asyncio.to_thread(self._in_this_chain, self._noted))
        except OSError as error:
            self._say(f"how far audit records were carried cannot be read now: {error}")
            return False
        self._trail.carried_seq = self.position.seq
        return True

    async def _carried_some(self) -> bool:
        """Carry the next lines, if there are some and this node may, and note how far that is; return whether it did carry some."""
        before = self.position
        try:
            if before.seq < self._trail.head.seq:
                await self._carry_next()
        except (CommandRefused, NotLeader, PartitionFailed, OSError, NotALink, _NotTaken) as error:
            self._say(f"audit records are not carried to topic {self._topic} now: {error}")
            return False
        if self.position != self._noted:
            await self._note_where(self.position)
        return self.position != before

    async def _note_where(self, position: Position) -> None:
        try:
            await to_its_end(asyncio.to_thread(self._note, position))
        except OSError as error:
            self._say(
                f"up to where audit records are in topic {self._topic} cannot be noted, so a start brings some again: {error}"
            )
        else:
            self._noted = position
            self._said = ""

    async def _carry_next(self) -> None:
        partition = await self._writable()
        if partition is None:
            return
        taken = await to_its_end(asyncio.to_thread(self._next, self.position, self._trail.head.seq))
        if taken.records:
            await self._append(partition, taken.records)
        self.position = taken.behind  # INV-NAT4
        self._trail.carried_seq = self.position.seq

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            _log.warning("%s", what)

    async def _writable(self) -> Partition | None:
        """Return the topic's partition where this node may write to it now; makes the topic where there is none."""
        services = self._services
        if self._topic not in services.metadata.image.topics:
            if not (services.leads and services.region.acting):
                return None
            await services.metadata.create_topic(self._topic, 1, TOPIC_CONFIGS)
        partition = services.partitions.get(self._topic, 0)
        return partition if partition is not None and self._may_write(partition) else None

    def _may_write(self, partition: Partition) -> bool:
        services = self._services
        if not partition.is_leader or not services.is_served_here(partition):
            return False
        apart = services.apart
        if apart is not None and apart.is_open(partition):
            return apart.takes_writes
        return services.leads and services.region.acting

    async def _append(self, partition: Partition, records: Sequence[Record]) -> None:
        """Append lines, and return once they are acknowledged; raises `_NotTaken`, and what waiting raises."""
        batch = build_batch(records)
        if not self._may_write(partition):  # a thread was waited for
            raise _NotTaken("this node leads it no more")
        if refusal := self._services.partitions.room.refusal:
            raise _NotTaken(refusal)
        outcome = partition.writer.append(batch)
        if outcome.verdict is not AppendVerdict.APPENDED:
            raise _NotTaken(outcome.detail or outcome.verdict.name)
        await partition.wait_committed(outcome.next_offset)

    # -- in a thread -----------------------------------------------------------------------------

    def _read_noted(self) -> Position:
        path = self._folder / POSITION_FILE
        if not self._disk.exists(path):
            return Position()
        try:
            return msgspec.json.decode(self._disk.read_file(path), type=Position)
        except msgspec.MsgspecError:
            return Position()  # carried again (INV-NAT2)

    def _in_this_chain(self, noted: Position) -> Position:
        """Return where to go on: behind what was noted if that is of the chain that is here, else at the beginning of that (INV-NAT2)."""
        if noted.seq <= self._trail.head.seq and self._is_behind_its_record(noted):
            return noted
        _log.warning(
            "the audit trail was carried up to record %d once, and that is not in the files: it was begun anew since, and is carried from its"
            " beginning, up to record %d now", noted.seq, self._trail.head.seq,
        )  # fmt: skip
        return Position()

    def _is_behind_its_record(self, noted: Position) -> bool:
        """Return whether the line before a position is the record that was noted, as far as its file is here, or was just moved away."""
        names = chain_names(self._disk.list_dir(self._folder))
        name = file_name(noted.number)
        if name not in names:
            return noted == Position() or any(later > name for later in names)
        begin = max(0, noted.at - READ_BYTES)
        file = self._disk.open(self._folder / name)
        try:
            before = file.pread(noted.at - begin, begin)
        finally:
            file.close()
        if len(before) < noted.at - begin or not before.endswith(b"\n"):
            return noted.at == 0
        try:
            last = read_line(before[:-1].rpartition(b"\n")[2]).head
        except NotALink:
            return True  # it was changed, which is for `tidemark audit verify` to say
        return last.seq == noted.seq and noted.digest in {"", last.digest}

    def _note(self, position: Position) -> None:
        self._disk.write_file_atomic(self._folder / POSITION_FILE, msgspec.json.encode(position))

    def _next(self, position: Position, durable_seq: int) -> _Taken:
        """Read what comes behind a position, up to a batch, and no further than what is durable; raises `NotALink`, `OSError`."""
        names = chain_names(self._disk.list_dir(self._folder))
        later = [name for name in names if name >= file_name(position.number)]
        if not later:
            return _Taken((), position)
        if later[0] != file_name(position.number):  # its file was moved away
            position = _beginning(position, later[0])
        file = self._disk.open(self._folder / later[0])
        try:
            data = file.pread(READ_BYTES, position.at)
        finally:
            file.close()
        taken = _taken(position, data, durable_seq, self._clock.wall_ms())
        if taken.behind == position and len(later) > 1 and b"\n" not in data:
            return _Taken((), _beginning(position, later[1]))
        return taken


def carrying(
    trail: AuditTrail, services: Services, config: NodeConfig, disk: Disk
) -> list[tuple[str, Coroutine[object, None, None]]]:
    """Return the task that carries a node's trail, by its name; none where it keeps none, or carries it nowhere."""
    if not isinstance(trail, AuditRecorder) or not config.audit_topic:
        return []
    topic = AuditTopic(trail, services, disk, trail_folder(config), config.audit_topic)
    return [("audit-topic", topic.run())]


class _NotTaken(Exception):
    """The topic did not take a batch; the text says why."""


def _beginning(position: Position, name: str) -> Position:
    """Return the beginning of another file, behind the same record."""
    number = int("".join(filter(str.isdigit, name)))
    return msgspec.structs.replace(position, number=number, at=0)


def _taken(position: Position, data: bytes, durable_seq: int, wall_ms: int) -> _Taken:
    """Return the whole lines of `data` that are durable, as records of this moment, up to a batch.

    When it happened is in the line: a clock that was wrong then does not keep it from the topic.
    """
    records: list[Record] = []
    at, seq, digest, size_bytes = 0, position.seq, position.digest, 0
    while (stop := data.find(b"\n", at)) >= 0:
        line = data[at:stop]
        link = read_line(line)
        if link.head.seq > durable_seq:
            break
        if records and size_bytes + len(line) > BATCH_BYTES_MAX:
            break
        if link.head.seq > position.seq:
            node = str(link.fields.get("node", ""))
            records.append(Record(node.encode(), line, timestamp_ms=wall_ms))
            size_bytes += len(line)
        at = stop + 1
        if link.head.seq >= seq:
            seq, digest = link.head
    behind = Position(seq=seq, number=position.number, at=position.at + at, digest=digest)
    return _Taken(records, behind)
