"""What nodes decide, noted as the model names it: journal events, rounds, tidemarks, what is reached and shown.

Each place is where the product has made it durable, or is about to say it. What is noted is checked to be a behaviour of
the model (`tests.model.behaviour`).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from geo_replicator import failover
from geo_replicator.cut_rounds import RoundsCore
from geo_replicator.effects import EnterRound, PublishTidemark, ReleaseRound, RoundEffect
from geo_replicator.events import RoundEvent, ShardEntered
from geo_replicator.failover_events import Event
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.tidemark import Tidemark
from geo_replicator.tidemark_writer import ClosedCut, TidemarkWriter
from geo_replicator.whole_ends import View, WholeEnds
from region_broker.region.failover.journal import FailoverJournal
from region_broker.region.mirror.mirror_view import MirrorView
from region_broker.region.tidemarks.reached_store import ReachedFile
from tests.simulation.trace import Trace

MODEL: Final = "model"


@contextlib.contextmanager
def watched(trace: Trace) -> Iterator[None]:
    """Note what the nodes of this process decide, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        _watch_journals(trace, patch)
        _watch_rounds(trace, patch)
        _watch_tidemarks(trace, patch)
        _watch_views(trace, patch)
        yield


def _region_of(path: Path) -> str:
    return path.parts[2]  # /simulated/REGION/...


def _watch_journals(trace: Trace, patch: pytest.MonkeyPatch) -> None:
    append, recover = FailoverJournal.append, FailoverJournal.recover

    async def appending(self: FailoverJournal, event: Event) -> None:
        await append(self, event)
        text = msgspec.json.encode(event).decode()
        trace.note(MODEL, "journal", _region_of(self._path), text)

    def recovering(self: FailoverJournal) -> list[Event]:
        events = recover(self)
        state = failover.replay(events)
        text = "" if state is None else msgspec.json.encode(state).decode()
        trace.note(MODEL, "opened", _region_of(self._path), text)
        return events

    patch.setattr(FailoverJournal, "append", appending)
    patch.setattr(FailoverJournal, "recover", recovering)


def _watch_rounds(trace: Trace, patch: pytest.MonkeyPatch) -> None:
    step = RoundsCore.step

    def stepping(self: RoundsCore, event: RoundEvent, *, now_ms: int) -> list[RoundEffect]:
        if isinstance(event, ShardEntered):
            trace.note(MODEL, "entered", event.round, event.shard, event.ledger_offset)
        effects = step(self, event, now_ms=now_ms)
        for effect in effects:
            match effect:
                case EnterRound(round=number):
                    trace.note(MODEL, "enter", number, self.shard_count)
                case ReleaseRound(round=number):
                    trace.note(MODEL, "release", number)
                case PublishTidemark(round=number, ledger=ledger):
                    trace.note(MODEL, "close", number, sorted(ledger.items()))
                case _:
                    pass
        return effects

    patch.setattr(RoundsCore, "step", stepping)


def _watch_tidemarks(trace: Trace, patch: pytest.MonkeyPatch) -> None:
    prepare, write = TidemarkWriter.prepare, ReachedFile._write

    def preparing(self: TidemarkWriter, cut: ClosedCut) -> Tidemark:
        tidemark = prepare(self, cut)
        named = sorted((key.encode(), place.cut_offset) for key, place in tidemark.moved.items())
        ledger = sorted(cut.ledger.items())
        trace.note(MODEL, "tidemark", *tidemark.point, tidemark.round, ledger, tidemark.full, named)
        return tidemark

    def writing(self: ReachedFile, point: TidemarkPoint, whole: WholeEnds) -> Any:
        write(self, point, whole)
        trace.note(MODEL, "reached", _region_of(self._path), *point)

    patch.setattr(TidemarkWriter, "prepare", preparing)
    patch.setattr(ReachedFile, "_write", writing)


def _watch_views(trace: Trace, patch: pytest.MonkeyPatch) -> None:
    show = MirrorView.show

    def showing(self: MirrorView, view: View) -> None:
        region = _region_of(self._partitions.data_dir)
        ends = [
            (key.encode(), cut, view.ends[key])
            for key, cut in sorted(view.cuts.items())
            if key in view.ends
        ]
        if ends:
            trace.note(MODEL, "shown", region, ends)
        show(self, view)

    patch.setattr(MirrorView, "show", showing)
