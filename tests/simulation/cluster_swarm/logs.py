"""Logs from whose beginning records are deleted, and topics that grow, in a region of three: the swarm's own, judged as one region.

INV-CSG1  where a deletion was answered all that may lead start, at every time: who leads under the newest leader epoch, and whoever is
          in sync with it (INV-RPL11)

A log start that was shown and not answered may be taken back: its leader may have died before another node had it. Nobody is excused
otherwise. Not here: what the readers of a region must be told (`chaos.judges.trims`).
"""

from collections.abc import Iterator, Mapping

from typing_extensions import override

from chaos.judges.growth import Growth, judge_growth
from chaos.judges.trims import judge_trims
from chaos.story import Sighting
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.region_cluster import Member
from tests.simulation.swarm.workloads.growth import TOPIC as GROWN
from tests.simulation.swarm.workloads.growth import GrowthLoad
from tests.simulation.swarm.workloads.setting import End, Setting
from tests.simulation.swarm.workloads.trims import PARTITIONS, TOPIC, Trimmer, TrimsLoad


def _shown_only(gone: Sighting, _alike: object) -> bool:
    return gone.shown


def _nobody(_gone: Sighting, _alike: object) -> bool:
    return False


class NearTrimmer(Trimmer):
    """Deletes often, and mostly nearly all: then each deletion moves the log start."""

    rest_s = 0.1
    timeout_ms = 1_000
    """Shorter than a call: then the answer is REQUEST_TIMED_OUT."""

    @override
    def drawn_offset(self, end: int) -> int:
        return self.chance.randint(max(0, end - self.chance.choice((1, 2, 2, 5, end))), end)


class ClusterTrims(TrimsLoad):
    """Deletes, and looks at the nodes meanwhile."""

    @override
    def opened(self, setting: Setting) -> Trimmer:
        return NearTrimmer(setting)

    @override
    def counts(self) -> Mapping[str, int]:
        answered = [each for each in self.trimmer.deletions if each.log_start is not None]
        return {
            **super().counts(),
            "deletions of records": len(answered),
            "deletions in doubt": len(self.trimmer.deletions) - len(answered),
        }

    def below(self) -> list[int]:
        """Return below which offset all is deleted, of each partition, as was answered."""
        found = [0] * PARTITIONS
        for each in self.trimmer.deletions:
            if each.log_start is not None:
                found[each.partition] = max(found[each.partition], each.log_start, each.offset)
        return found

    def broken(self, who: list[Member]) -> Iterator[str]:
        """Say which of these start lower than was answered (INV-CSG1)."""
        for number, start in enumerate(self.below()):
            for member in who:
                log = member.node.storage.partitions.get(TOPIC, number)
                if log is not None and log.failed is None and log.log_start_offset < start:
                    yield (
                        f"{TOPIC}-{number} starts at {log.log_start_offset} at {member.name}, and a deletion below"
                        f" {start} was answered"
                    )

    @override
    async def violations(self, end: End) -> list[str]:
        run = await self.run_of(end, undisturbed=False)
        return judge_trims(run, _shown_only)


class ClusterGrowth(GrowthLoad):
    """Grows a topic, and compares what the nodes have of it."""

    def __init__(self, setting: Setting, stage: Stage) -> None:
        """Nothing runs before `start`."""
        super().__init__(setting)
        self._stage = stage

    @override
    async def violations(self, end: End) -> list[str]:
        counts = {
            m.name: m.node.storage.metadata.image.topics[GROWN].partition_count
            for m in self._stage.serving()
        }
        final = {end.acting: await end.places(end.acting, GROWN, min(counts.values()))}
        run = Growth(GROWN, self.grower.asked, self.grower.answered, self.acked(), counts, final)
        return judge_growth(run, _nobody)
