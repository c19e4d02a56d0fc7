"""Logs whose beginning goes, by DeleteRecords and by retention, while a mirror may lag: judged over both regions.

INV-RGL1  what was acknowledged, and lies behind the log start that a region shows, is there, but for an operator's word
INV-RGL2  retention takes nothing that a mirror still needs (T14): once all is well both regions go on, and have the same records behind the
          later one of their log starts

A log start that was shown and not answered may be taken back: its leader may have died before another node had it.
Not here: what readers of a region must be told (`chaos.judges.trims`), that mirrors go on (`life`).
"""

from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from chaos.judges.trims import judge_trims
from tests.simulation.swarm.plain_writer import NamedPipeliner, PlainWriter
from tests.simulation.swarm.workloads.setting import End, Load, Setting, TopicPlan
from tests.simulation.swarm.workloads.trims import Trimmer, TrimsLoad

TOPIC: Final = "retained"
PARTITIONS: Final = 2
SMALL: Final = {"retention.bytes": "4096", "segment.bytes": "4096"}
FILLER: Final = b"." * 400


class OftenTrimmer(Trimmer):
    """Deletes often, and does not wait for long."""

    rest_s = 0.4
    timeout_ms = 1_000


class RegionTrims(TrimsLoad):
    """`TrimsLoad` where leaders die."""

    @override
    def opened(self, setting: Setting) -> Trimmer:
        return OftenTrimmer(setting)

    @override
    def counts(self) -> Mapping[str, int]:
        return {**super().counts(), "deletions of records": self._answered()}

    @override
    async def violations(self, end: End) -> list[str]:
        run = await self.run_of(end, undisturbed=False)
        return judge_trims(run, lambda gone, alike: gone.shown or end.excuse(gone, alike))


class _LargePipeliner(NamedPipeliner):
    """Writes records that fill segments."""

    @override
    def value_of(self, sequence: int) -> bytes:
        return super().value_of(sequence) + b" " + FILLER


class LargeWriter(PlainWriter):
    """A plain writer of large records; what it notes does not name the filler."""

    @override
    def opened(self, writer: str) -> NamedPipeliner:
        return _LargePipeliner(self, writer, self._reach, self._number, self._chance)


class RetainedLoad(Load):
    """Writers of a topic whose retention keeps little."""

    def __init__(self, setting: Setting) -> None:
        """Nothing runs before `start`."""
        super().__init__(TopicPlan(name=TOPIC, partitions=PARTITIONS, configs=SMALL))
        names = list(setting.reach.regions)
        self._removed = 0
        self.writers = [
            LargeWriter(
                setting.reach.only(name := names[number % len(names)]), name, number, setting.drawn(), setting.pace_s, TOPIC,
            )
            for number in range(PARTITIONS)
        ]  # fmt: skip
        self.clients += self.writers

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {f"producer {TOPIC}-{n}": len(each.acked) for n, each in enumerate(self.writers)}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {
            f"producer {TOPIC}-{n}": each.producer.last_error for n, each in enumerate(self.writers)
        }

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {"records that retention removed": self._removed}

    async def violations(self, end: End) -> list[str]:
        """See `Workload` (INV-RGL1, INV-RGL2)."""
        found: list[str] = []
        later, shown = [0] * PARTITIONS, {}
        for name in end.reach.regions:
            starts = await end.starts(name, TOPIC, PARTITIONS)
            places = await end.places(name, TOPIC, PARTITIONS, starts)
            later = list(map(max, later, starts))
            shown[name] = {place._replace(value=place.value.rpartition(" ")[0]) for place in places}
            for each in (said for writer in self.writers for said in writer.acked):
                is_kept = each.place.offset >= starts[each.place.partition]
                if is_kept and each.place not in shown[name] and not end.excuse(each, [each]):
                    found.append(f"acknowledged, not removed, and gone in {name}: {each.place}")
        self._removed = sum(later)
        alike = {
            frozenset(p for p in places if p.offset >= later[p.partition])
            for places in shown.values()
        }
        if len(alike) > 1:
            found.append(f"the regions show other records behind {later}")
        return found[:5]
