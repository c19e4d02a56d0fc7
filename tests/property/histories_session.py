"""A link session in the model of histories: the real core, and what its driver does for it, at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from geo_replicator import topology
from geo_replicator.effects import (
    ApplyTopics,
    CheckEpochs,
    HandOverDivergence,
    ReadRegistry,
    ShowHistory,
)
from geo_replicator.events import (
    DivergenceResolved,
    HandshakeDone,
    HistoryShown,
    LinkEvent,
    LinkStarted,
    LogsChecked,
    MirrorLogEnd,
    PrimaryLogEnd,
    RegistryRead,
    TopicsApplied,
)
from geo_replicator.history import HistoryDifference, ShownLog
from geo_replicator.lineage import (
    Cut,
    Lineage,
    LogKey,
    TidemarkPoint,
)
from geo_replicator.link import comparing
from geo_replicator.link.core import LinkCore
from idempotency.identity import LeaderEpoch, RegionEpoch
from tests.property.histories_regions import (
    Broken,
    Region,
    answer,
    cut_log,
    differences,
    epoch_end,
    evidence,
)


def own_lineage(region: Region) -> Lineage:
    """Return the entries that a region has recorded itself."""
    return Lineage(tuple(record.entry() for record in region.metadata.lineage))


class SessionsWorld(Protocol):
    """What a session needs of the world around it."""

    mutants: frozenset[str]

    def strangers(self, one: Region, other: Region) -> bool:
        """Return whether two regions are of different births."""
        ...

    def drop(self, region: Region, topic_id: UUID) -> None:
        """Carry out a deletion that a command ordered."""
        ...

    def refute(self, primary: Region, mirror: str, point: TidemarkPoint, logs: int) -> None:
        """Tell the primary that a mirror has shown what it lacks."""
        ...


class Session:
    """What the link's driver does for its core, at once."""

    def __init__(self, world: SessionsWorld, mirror: Region, primary: Region) -> None:
        self.world, self.mirror, self.primary = world, mirror, primary
        self.core = LinkCore(mirror.now.region_epoch, primary.name, own_lineage(mirror))
        self.proven: Mapping[LogKey, int] = {}

    def run(self) -> None:
        if self.world.strangers(self.mirror, self.primary):
            return
        handshake = HandshakeDone(
            self.primary.name,
            RegionEpoch(self.primary.metadata.region_epoch),
            self.primary.is_primary,
            own_lineage(self.primary),
        )
        self.core.step(LinkStarted())
        event: LinkEvent | None = handshake
        while event is not None:
            effects = self.core.step(event)
            event = None
            for effect in effects:
                event = self._perform(effect) or event
        if self.core.cursor.positions:
            self._fetch()

    def _perform(self, effect: object) -> LinkEvent | None:
        match effect:
            case ShowHistory():
                return self._show()
            case ReadRegistry():
                return self._registry()
            case ApplyTopics():
                return TopicsApplied(self._ends())
            case CheckEpochs(logs=ends):
                answers = {
                    key: PrimaryLogEnd(*epoch_end(self.primary.opened[key], end.leader_epoch), 0)
                    for key, end in ends.items()
                    if key in self.primary.opened
                }
                work = comparing.compared(self, self, ends, answers, self.proven)
                return LogsChecked(answer(work))
            case HandOverDivergence(divergences=divergences):
                return self._resolve(divergences)
            case _:
                return None

    def _show(self) -> HistoryShown:
        cut = self.mirror.shown()
        shown = evidence(self.mirror, cut, cut.positions)
        missing = differences(self.primary, shown)
        if "T33 a session proves nothing" in self.world.mutants:
            missing = []
        if missing:
            self.world.refute(self.primary, self.mirror.name, cut.point, len(missing))
        else:
            self.proven = dict(cut.positions)
        return HistoryShown(cut.point.region_epoch, tuple(found.reason for found in missing))

    def _registry(self) -> RegistryRead:
        mirrored, registry = self._topics(self.mirror), self._topics(self.primary)
        difference = topology.topic_difference(mirrored, registry)
        unnamed = topology.unnamed_absences(
            difference, self.primary.metadata.deleted, lambda key: bool(self.mirror.logs.get(key))
        )
        if "T34 absence deletes" in self.world.mutants:
            unnamed = ()
        if unnamed:
            point = TidemarkPoint(self.mirror.now.region_epoch, 0)
            self.world.refute(self.primary, self.mirror.name, point, len(unnamed))
        else:
            version = self.primary.metadata.version
            self.mirror.change(drops=tuple((topic.topic_id, version) for topic in difference.gone))
            topics = self.mirror.metadata.topics | self.primary.metadata.topics
            self.mirror.note(topics=topics, deleted=self.primary.metadata.deleted)
            for key in self.primary.opened:
                if key not in self.mirror.logs:
                    self.mirror.put(key, ())
        return RegistryRead(self.primary.metadata.version, registry, mirrored, unnamed)

    def _topics(self, region: Region) -> tuple[topology.MirrorTopic, ...]:
        ids = sorted(region.metadata.topics)
        return tuple(topology.MirrorTopic(topic, topic.hex, 1) for topic in ids)

    def _ends(self) -> dict[LogKey, MirrorLogEnd]:
        return {
            key: MirrorLogEnd(LeaderEpoch(log[-1].leader_epoch if log else -1), len(log))
            for key, log in self.mirror.logs.items()
            if key in self.primary.opened
        }

    def _resolve(self, divergences: Iterable[Any]) -> LinkEvent | None:
        shown = self.mirror.shown()
        for found in divergences:
            log = self.mirror.logs[found.key]
            end = min(epoch_end(log, found.primary_leader_epoch)[1], found.primary_end_offset)
            below = end < shown.position_of(found.key)
            below = below and shown.point.region_epoch == self.mirror.now.region_epoch
            if below and "T35 divergences are cut anywhere" not in self.world.mutants:
                self.core.cursor.positions.clear()
                return None  # INV-LS5
            cut_log(self.mirror, found.key, end)
        return DivergenceResolved(self._ends())

    # The two ports of `comparing`.

    async def evidence(self, cut: Cut, keys: Iterable[LogKey]) -> list[ShownLog]:
        return evidence(self.mirror, cut, keys)

    async def show_history(
        self, _point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> list[HistoryDifference]:
        return differences(self.primary, shown)

    async def first_offset(self, _key: LogKey) -> int:
        return 0

    async def batch_at(self, _key: LogKey, offset: int) -> tuple[int, int]:
        return offset, offset + 1

    def _fetch(self) -> None:
        for key, position in self.core.cursor.positions.items():
            log, theirs = self.mirror.logs[key], self.primary.opened[key]
            if theirs[: len(log)] != log or position != len(log):
                raise Broken(f"T23: {self.mirror.name} copies behind another history of {key}")
            self.mirror.put(key, theirs)
        self._reach()

    def _reach(self) -> None:
        mirror, lineage = self.mirror, self.mirror.known_lineage()
        for cut, version in mirror.tidemarks():
            whole = all(len(mirror.logs.get(key, ())) >= end for key, end in cut.positions.items())
            if whole and cut.point > mirror.folder.reached and not lineage.is_void(cut.point):
                mirror.change(reached=cut.point)
                for topic_id, needed in mirror.folder.drops:
                    if needed <= version and topic_id in mirror.metadata.topics:
                        mirror.note(topics=mirror.metadata.topics - {topic_id})
                        if topic_id not in mirror.metadata.deleted:
                            self._drop_unnamed(topic_id)
                            continue
                        self.world.drop(mirror, topic_id)

    def _drop_unnamed(self, topic_id: UUID) -> None:
        logs = {key: log for key, log in self.mirror.logs.items() if key.topic_id != topic_id}
        self.mirror.change(logs=logs)
