"""Who looks at the invariants of a life, and when; each that is broken is blamed once. See `rules`."""

import asyncio
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from geo_replicator.failover import Phase
from geo_replicator.lineage import BEFORE_ALL, Lineage, LogKey, TidemarkPoint
from idempotency.fencing import leader_epoch
from region_broker.node.node import Node
from region_broker.partitions.partition import Partition
from region_broker.region.failover.known_lineage import lineage_of
from tests.simulation.cut_judge import tidemarks_of
from tests.simulation.region_pair import Region
from tests.simulation.swarm.invariants.rules import (
    LOOK_S,
    Ends,
    replayed,
    wrong_actors,
    wrong_ends,
    wrong_epochs,
    wrong_history,
    wrong_producers,
    wrong_quarantine,
    wrong_reached,
    wrong_shown,
    wrong_state,
)
from tests.simulation.swarm.stage import Stage

QUARANTINE = "quarantine"
PARTIAL = ".partial"


class Watch:
    """Looks at all regions of a stage, from `run` on."""

    def __init__(self, stage: Stage) -> None:
        """Look where a region is killed, too."""
        self._stage = stage
        self._blamed: set[str] = set()
        self._watched: dict[Partition, int] = {}
        self._actors: dict[int, str] = {}
        self._reached: dict[str, tuple[int, TidemarkPoint]] = {}
        self._quarantine: dict[str, tuple[int, dict[str, bytes]]] = {}
        stage.on_kill = self.look_whole

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Look at who acts and what is reached, and from now on at partitions that are new."""
        up = [name for name in self._stage.names if self._stage.up(name)]
        nodes = {name: self._stage.regions[name].node for name in up}
        acting = [(name, n.role.region_epoch) for name, n in nodes.items() if n.role.acting]
        self._blame("", wrong_actors(self._actors, acting))
        for name, node in nodes.items():
            for partition in node.storage.partitions:
                if partition not in self._watched:
                    self._watch(name, partition)
                self._look_at_history(name, partition)
            damages = self._damages(name) + self._stage.given_up(name)
            before, highest = self._reached.get(name, (damages, BEFORE_ALL))
            point = node.storage.reached.point
            lineage = _lineage_of(node)
            if point < highest and before < damages:
                before = damages  # a lost log or a word takes it back once it is followed again, a lost folder at once
            elif all(highest <= entry.base for entry in lineage.since(highest.region_epoch)):
                # A takeover that was passed over counts here: a region may have followed it while it was the newest.
                self._blame(name, wrong_reached(highest, point))
            self._reached[name] = before, point

    def look_whole(self, name: str) -> None:
        """Look at all of a region that is up, its logs and quarantine as well; not at what is damaged."""
        if self._stage.flips.at(name):
            return
        region = self._stage.regions[name]
        logs = region.node.storage.partitions
        partitions = [p for p in logs if p.failed is None and not p.log.content.closed]
        for partition in partitions:
            where = f"{name} {partition.tp}"
            epochs = partition.log.epochs.entries()
            self._blame(where, wrong_epochs(epochs, partition.log_end_offset))
            state, log_end = partition.state, partition.log_end_offset
            gaps_of = {gap.producer_id for gap in state.accepted_gaps}
            holes_below = partition.log.cleaning.holes_below
            self._blame(where, wrong_producers(state.producer_table, log_end, gaps_of, holes_below))
            if partition.kept_from == 0 and holes_below == 0:
                replay = replayed(_bytes_of(region, partition))
                self._blame(where, wrong_state(state, replay))
        self._look_at_quarantine(name, region)
        # A region that has not reached its base yet shows what it showed before it followed.
        reached = region.node.storage.reached.point
        mirrors = region.node.failover.state.phase is Phase.MIRRORING and all(
            entry.base <= reached for entry in _lineage_of(region.node).entries
        )
        if mirrors and name not in self._stage.disk_failed:
            self._look_at_mirror(name, region, partitions)

    def _watch(self, name: str, partition: Partition) -> None:
        disk = self._stage.regions[name].disk
        life = self._watched[partition] = disk.life
        before: Ends | None = None

        def changed() -> None:
            nonlocal before
            if disk.life == life and partition.failed is None:
                now = _ends_of(partition)
                self._blame(f"{name} {partition.tp}", wrong_ends(before, now))
                self._look_at_history(name, partition)
                before = now

        changed()
        partition.watchers.add(changed)

    def _look_at_history(self, name: str, partition: Partition) -> None:
        node = self._stage.regions[name].node
        domain = node.storage.metadata.image.main_domain
        if partition.failed is not None or domain.acting_region == name or not domain.lineage:
            return
        newest = domain.lineage[-1]
        own_end = partition.sight.end_of_older(leader_epoch(newest.region_epoch, 0))
        key = LogKey(partition.topic_id, partition.tp.partition)
        # Where a log's beginning was removed, older terms end at its start, though nothing is left of them.
        base = max(newest.positions.get(key.encode(), 0), partition.kept_from)
        shown = partition.sight.visible_end
        # Of a cleaned log nobody can say where older terms end: the first records of the newest one may be gone.
        cleaned = partition.log.cleaning.holes_below > base
        if shown > partition.log_start_offset and not cleaned:
            where = f"{name} {partition.tp}"
            self._blame(where, wrong_history(shown, own_end, base))

    def _look_at_quarantine(self, name: str, region: Region) -> None:
        folder, disk, damages = region.folder / QUARANTINE, region.disk, self._damages(name)
        files = disk.files_under(folder) if disk.exists(folder) else []
        now = {str(f): bytes(disk.content(f)) for f in files if f.suffix != PARTIAL}
        before, held = self._quarantine.get(name, (damages, {}))
        if before == damages:
            self._blame(name, wrong_quarantine(held, now))
        self._quarantine[name] = damages, {f: now[f] for f in now if disk.is_durable(Path(f))}

    def _look_at_mirror(self, name: str, region: Region, partitions: Iterable[Partition]) -> None:
        newest = deque(tidemarks_of(region), maxlen=1)
        for _, cut in newest:
            shown = {
                p: p.sight.visible_end
                for p in partitions
                if p.sight.visible_end > p.log_start_offset
            }
            says = {str(p.tp): cut.position_of(LogKey(p.topic_id, p.tp.partition)) for p in shown}
            self._blame(name, wrong_shown({str(p.tp): end for p, end in shown.items()}, says))

    def _damages(self, name: str) -> int:
        return sum(each.region == name for each in self._stage.story.damages)

    def _blame(self, where: str, found: Iterable[str]) -> None:
        for text in found:
            rule = text.split(" ", 1)[0]
            if rule not in self._blamed:
                self._blamed.add(rule)
                self._stage.blame(f"{text.replace(rule, f'{rule} {where}:', 1)}")


def _lineage_of(node: Node) -> Lineage:
    domain = node.storage.metadata.image.main_domain
    return lineage_of(domain.lineage)


def _ends_of(partition: Partition) -> Ends:
    return Ends(
        partition.log_start_offset,
        partition.sight.last_stable_offset,
        partition.sight.visible_end,
        partition.high_watermark,
        partition.log_end_offset,
        partition.sight.leader_epoch if partition.is_leader else None,
    )


def _bytes_of(region: Region, partition: Partition) -> bytes:
    """Return what a log holds, synced or not."""
    return b"".join(
        region.disk.content(each.path)[: each.size_bytes]
        for each in partition.log.segments.segments
    )
