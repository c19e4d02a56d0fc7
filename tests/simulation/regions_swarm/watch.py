"""What is looked at all the time while regions live.

INV-RGW1  in a region a leader epoch is led by one life of one node
INV-RGW2  a region epoch is acted under by one region
INV-RGW3  the high watermark of a log never goes back under one leader epoch of its group and region epoch, by the node's metadata and in one life of
          it, but where its log starts anew, and once as it is cut by a takeover, before the next leader epoch is begun (T20)
INV-RGW4  nodes in sync with the newest leader of their region have the same bytes below the lower high watermark of two
INV-RGW5  a region whose leaders are spread acts: it neither mirrors, nor is on its way round. One that is to spread them, and has not,
          says what it waits for
INV-RGW6  the last stable offset of a log never goes back at the node that takes its writes, under one leader epoch, but where it starts anew
"""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from geo_replicator.failover import Phase
from idempotency.fencing import region_epoch_of
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.partition import Partition
from tests.simulation.cluster_regions import (
    AnyNode,
    ClusterRegion,
    NodeAmong,
    leader_epoch_of,
    speaks,
)
from tests.simulation.cut_judge import whole
from tests.simulation.regions_swarm.access import AccessWatch
from tests.simulation.regions_swarm.stage import Stage
from tests.simulation.spread_facts import epochs_led, in_sync_everywhere

LOOK_S: Final = 0.02
COMPARE_LOOKS: Final = 10
"""Each how many looks logs are compared."""
STABLE_LOOKS: Final = 5
"""Each how many looks last stable offsets are looked at."""
_Under: TypeAlias = tuple[int, int]
"""A leader epoch and a region epoch."""


class _Shown(NamedTuple):
    under: _Under
    high_watermark: int
    image: MetadataImage
    """Which said so: by the same one it is still under these."""
    is_cut: bool = False
    """Whether it went back under these epochs."""


class Watch:
    """`run` beside a life."""

    def __init__(self, stage: Stage, access: AccessWatch | None = None) -> None:
        """Nothing was seen yet. `access`: who looks at that."""
        self._stage = stage
        self._access = access
        self.led: dict[tuple[str, int], AnyNode] = {}
        self.acted: dict[int, str] = {}
        self.compared = 0
        """How many bytes of two nodes were found to be the same."""
        self.groups_led = 0
        """How often somebody led a data group."""
        self._shown: dict[Partition, _Shown] = {}
        self._stable: dict[tuple[Partition, int], int] = {}
        self._same: dict[tuple[Partition, Partition], int] = {}
        """Up to where two logs were found to be the same."""
        self._looks = 0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Look once."""
        stage = self._stage
        stage.note_contacts()
        stage.have_mirrors_left()
        for region in stage.regions.values():
            for node in stage.serving(region):
                if not node.died:
                    self._look_at_epochs(region.name, node)
                    self._look_at_spread(node)
                    if self._looks % STABLE_LOOKS == 0:
                        self._look_at_stable_ends(node)
                    self._look_at_high_watermarks(node)
        if self._access is not None:
            self._access.look()
        self._looks += 1
        if self._looks % COMPARE_LOOKS == 0:
            for region in stage.regions.values():
                for one, two in pairwise(self._in_sync(region)):
                    self._compare(one, two)

    def _look_at_epochs(self, name: str, node: AnyNode) -> None:
        """Rules INV-RGW1 and INV-RGW2."""
        stage, role = self._stage, node.node.role
        of_groups = list(epochs_led(node.node))
        for epoch in filter(None, (leader_epoch_of(node), *of_groups)):
            self.groups_led += epoch in of_groups and (name, epoch) not in self.led
            first = self.led.setdefault((name, epoch), node)
            if first is not node:
                stage.blame(f"{name}: leader epoch {epoch} is led by {first.name} and {node.name}")
        for epoch in of_groups:
            self._acts(name, int(region_epoch_of(epoch)))
        if role.acting:
            self._acts(name, int(role.region_epoch))

    def _acts(self, name: str, region_epoch: int) -> None:
        acts = self.acted.setdefault(region_epoch, name)
        if acts != name:
            self._stage.blame(f"region epoch {region_epoch} is acted under by {acts} and {name}")

    def _look_at_spread(self, node: AnyNode) -> None:
        """Rule INV-RGW5, by who speaks for its region."""
        if not isinstance(node, NodeAmong) or not speaks(node):
            return
        image, phase = node.node.storage.metadata.image, node.phase
        if image.spread is not None and phase is not Phase.ACTING:
            self._stage.blame(f"{node.name} is {phase}, and leaders are spread")
        keeper = node.node._replication and node.node._replication.spread_keeper
        if keeper and image.spread is None and image.spread_wanted and not keeper.waits_for():
            self._stage.blame(f"{node.name} does not say why leaders are not spread")

    def _look_at_stable_ends(self, node: AnyNode) -> None:
        """Rule INV-RGW6."""
        role, replication = node.node.role, node.node._replication
        for partition in _sound_logs(node):
            epoch = int(role.leader_epoch) if role.acting else 0
            if replication is not None and not replication.groups.is_main(partition.key):
                epoch = int(replication.groups.leads_under(partition.key) or 0)
            if not epoch:
                continue
            now, before = (
                partition.sight.last_stable_offset,
                self._stable.get((partition, epoch), 0),
            )
            if now < before and partition.log_start_offset < before:
                self._stage.blame(
                    f"LSO of {partition.tp} at {node.name} goes back from {before} to {now} under {epoch}"
                )
            self._stable[partition, epoch] = now

    def _look_at_high_watermarks(self, node: AnyNode) -> None:
        """Rule INV-RGW3."""
        image, shown = node.node.storage.metadata.image, self._shown
        for partition in _sound_logs(node):
            now, last = partition.high_watermark, shown.get(partition)
            if last is not None and last.high_watermark == now and last.image is image:
                continue
            under = _under(node, partition)
            before = last or _Shown(under, 0, image)
            goes_back = (
                now < before.high_watermark and partition.log_start_offset < before.high_watermark
            )
            is_cut = before.is_cut and before.under == under
            if goes_back and before.under == under:
                if is_cut:
                    self._stage.blame(
                        f"HW of {partition.tp} at {node.name} goes back from {before.high_watermark} to {now} under {under}"
                    )
                is_cut = True
            shown[partition] = _Shown(under, now, image, is_cut)

    def _in_sync(self, region: ClusterRegion) -> list[AnyNode]:
        """Return who is in sync by the newest leadership that anybody knows, and knows that one itself."""
        serving = [
            n for n in self._stage.serving(region) if not n.died and not self._stage.unsound(n.name)
        ]
        newest = max(map(_under, serving), default=(0, 0))
        return [
            node
            for node in serving
            if isinstance(node, NodeAmong)
            and _under(node) == newest
            and node.member._begun.member in in_sync_everywhere(node.node.storage.metadata.image)
        ]

    def _compare(self, one: AnyNode, two: AnyNode) -> None:
        """Rule INV-RGW4."""
        theirs = {each.key: each for each in _sound_logs(two)}
        for log in _sound_logs(one):
            other = theirs.get(log.key)
            if other is None:
                continue
            both = (log, other)
            end = min(each.high_watermark for each in both)
            kept_from = max(max(each.log.cleaning.holes_below, each.kept_from) for each in both)
            known = self._same.get(both, 0)
            start = max(kept_from, known if known <= end else 0)
            if start < end:
                data = whole(log, start, end)
                if data != whole(other, start, end):
                    self._stage.blame(
                        f"{log.tp} in {start} to {end}, which is committed, differs between {one.name} and {two.name}"
                    )
                self.compared += len(data)
            self._same[both] = end


def _under(node: AnyNode, log: Partition | None = None) -> _Under:
    """Return the epochs that its metadata name, for a log or all: the role of a node that follows says nothing of takeovers."""
    image = node.node.storage.metadata.image
    leadership, domain = image.leadership, image.main_domain
    if log is not None and image.spread is not None:
        leadership = image.leadership_of(log.key)
    return 0 if leadership is None else leadership.leader_epoch, int(domain.region_epoch)


def _sound_logs(node: AnyNode) -> Iterator[Partition]:
    for each in node.node.storage.partitions:
        content = each.log.content
        if content.failed is None and not content.closed:
            yield each
