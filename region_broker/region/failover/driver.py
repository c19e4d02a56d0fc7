"""The failover driver: keeps the machine's state durable, runs its effects, and learns of the other regions.

INV-FD3  a higher region epoch closes the gate in the same call that learns of it, before anything is awaited
An event is in the journal before the state changes, and the state changes before the next effect runs (INV-FA1); only
`record` changes it. A state that changes cancels the effect of the old one; effects may be cancelled anywhere
(INV-FS2).

Construct it, hand it to `PeerServer` and `PeerClient` as their identity, let `failover.answers` answer the others for it,
`recover` once, and keep `run` running.
Not here: what a step does (`steps`), what the other regions ask (`failover.answers`), what an operator asks for
(`failover.operations`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from geo_replicator.failover import (
    Act,
    Adopt,
    AwaitOperator,
    CollectPromises,
    CutLogs,
    Effect,
    IllegalTransition,
    LearnLineage,
    Mirror,
    Phase,
    RollBackDrain,
    SeekHistory,
    State,
    born,
    fold,
    next_effect,
    standing_reason,
    unborn,
    why_fenced,
)
from geo_replicator.failover_events import (
    Born,
    Event,
    FolderNamed,
    HigherEpochLearned,
    HistoryRefuted,
)
from geo_replicator.folder_life import BirthVerdict, Shown, judge_births
from geo_replicator.history import NAMED_MAX, HistoryDifference
from geo_replicator.lineage import TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.region.failover.record import (
    FailoverRecord,
    LeadersGathered,
    LeadsNoMore,
    until_cancelled,
)
from region_broker.region.failover.steps.accepting import (
    lost_to_mirrors,
)
from region_broker.region.failover.steps.disputed import (
    refutation,
    refuted_by_lineage,
)
from region_broker.region.failover.steps.effects import FailoverSteps
from region_broker.region.failover.steps.fenced import learn_lineage
from region_broker.region.failover.steps.gate import Closing
from region_broker.region.failover.steps.outlook import FailoverParts, FailoverSettings, Outlook
from region_broker.region.failover.steps.without_history import seek_history
from region_broker.region.peers.protocol import (
    Hello,
)

_log: Final = logging.getLogger("tidemark.failover")


class FailoverDriver:
    """One domain's failover on this node. It is the `PeerIdentity` of the node, too."""

    def __init__(
        self, parts: FailoverParts, record: FailoverRecord, settings: FailoverSettings
    ) -> None:
        """Join `parts`; nothing is read or run yet."""
        self.parts: Final = parts
        self.settings: Final = settings
        self._record = record
        self._state: State | None = None
        self._changed = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._recoveries = 0
        self._learned: Hello | None = None
        self._heard = asyncio.Event()
        self._disputes: asyncio.Queue[HistoryRefuted] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None
        self.on_step: Callable[[Event, State, State], None] = lambda _event, _before, _after: None
        """Told of each event that is durable, with the states before and after."""
        self.outlook: Final = Outlook(parts, settings)
        self.steps: Final = FailoverSteps(self.outlook, lambda: self.state)
        self.outlook.lives.spawn = self._spawn_if_running
        parts.peers.identity = self

    @property
    def state(self) -> State:
        """Return the machine's state; `recover` comes first."""
        assert self._state is not None, "recover comes first"
        return self._state

    async def recover(self) -> State:
        """Read the record, or write its first event from what the folder's identity and the metadata say (T32).

        Again whenever this node begins to lead a region of several; what is being recorded since an earlier time ends first.
        """
        self.outlook.begin_anew()
        self._recoveries += 1
        async with self._write_lock:
            try:
                self._state = state = await self._recovered()
            except LeadsNoMore:
                await until_cancelled()
                raise
            self.steps.gate.done(Closing.RECORDING)
            self.steps.gate.done(Closing.ASIDE)  # of an earlier election, or is heard again
        _log.info("the folder says that region %s is %s", state.region, state.phase.value)
        return state

    async def _recovered(self) -> State:
        recorded = self._record.recover()
        if recorded.state is None:
            return await self._first_state()
        if not recorded.names_folder:
            named = FolderNamed(self.parts.folder.identity.folder_id)
            await self._record.append(named, recorded.state)
        return recorded.state

    async def _first_state(self) -> State:
        region, folder = self.parts.role.region, self.parts.folder.identity
        domain = self.parts.metadata.image.domains[self.parts.domain]
        acts = domain.acting_region == region
        if folder.history is None or (acts and folder.born is None):
            return unborn(region)  # one that was about to join asks again
        first = Born(region, acts, domain.region_epoch, folder.folder_id)
        await self._record.append(first, born(first))
        return born(first)

    def show(self, state: State | None) -> None:
        """Tell what the region's leader has recorded, while this node is not it; None: nothing yet."""
        assert self._tasks is None, "it runs, and changes its state by itself"
        self._state = unborn(self.parts.role.region) if state is None else state

    def hello(self) -> Hello:
        """Return this node's hello (`PeerIdentity`)."""
        image = self.parts.metadata.image
        domain, folder = image.domains[self.parts.domain], self.parts.folder.identity
        return Hello(
            cluster_id=image.cluster_id,
            region=self.parts.role.region,
            node_id=self.parts.role.node_id,
            region_epoch=domain.region_epoch,
            acting_region=domain.acting_region,
            lineage=domain.lineage,
            folder=Shown.of(folder, aside=bool(self.outlook.lives.aside()), elected=folder.elected),
            feature_level=image.feature_level,
            abandoned_epoch=RegionEpoch(0) if self._state is None else self._state.abandoned_epoch,
        )

    def learn(self, hello: Hello) -> None:
        """Take note of a handshake; a higher region epoch fences this region at once (INV-FD3).

        Raises `PeerRefused` where that node may not talk (T36): nothing is learnt of it then.
        """
        if hello.region == self.parts.role.region or self._state is None:
            return
        ours = Shown.of(self.parts.folder.identity)
        if judge_births(ours, hello.folder) is BirthVerdict.OTHER:
            return  # T32: what a region of another birth says concerns another cluster
        self.outlook.heard_ms[hello.region] = self.parts.clock.monotonic_ms()
        self.outlook.lives.heed(hello)
        self._stand_aside_or_not()
        self.outlook.lives.judge(hello)
        self.outlook.heed(hello)
        if hello.lineage and self.state.phase.acts:
            self._refute(refuted_by_lineage(self.outlook, self.state, [hello]))
        if self._is_news(hello):
            region = self.parts.role.region
            reason = why_fenced(region, hello.region_epoch, hello.acting_region)
            reason = f"{reason}; it goes on by itself: it joins whoever acts"
            self.steps.gate.close(Closing.HIGHER_EPOCH, reason)
            if self._learned is None or hello.region_epoch > self._learned.region_epoch:
                self._learned = hello
            self._heard.set()

    def _stand_aside_or_not(self) -> None:
        """Close the gate where this node was just refused, until it is let in, or stands still for that (INV-FGT2)."""
        aside = self.outlook.lives.aside()
        if not aside:
            self.steps.gate.done(Closing.ASIDE)
        elif self.parts.role.acting:
            self.steps.gate.close(Closing.ASIDE, aside)

    def runs_twice(self) -> dict[str, str]:
        """Return the other regions that two nodes run as, with what is known of both (T36)."""
        return self.outlook.lives.twice()

    def _is_news(self, hello: Hello) -> bool:
        state = self.state
        if state.phase in {Phase.FENCED, Phase.UNBORN}:
            return False
        wanted = state.takeover.region_epoch if state.takeover is not None else 0
        entry = state.entry.region_epoch if state.entry is not None else 0
        newest = state.unseen[-1].region_epoch if state.unseen else 0
        return hello.region_epoch > max(state.region_epoch, wanted, entry, newest)

    async def record(self, event: Event, *, expected: State | None = None) -> bool:
        """Make `event` durable and apply it; False if the state is not `expected` any more.

        Raises `IllegalTransition` where the phase does not know the event, and `LeadsNoMore`, which is a `PeerRefused`.
        """
        recoveries = self._recoveries
        async with self._write_lock:
            if expected is not None and self._state is not expected:
                return False
            if self._recoveries != recoveries:
                raise LeadsNoMore  # what leads by now has read what is recorded
            after = fold(self.state, event)
            if not after.may_act:
                # Where `append` fails it may be recorded: `recover` is next, or the end of this node.
                self.steps.gate.close(Closing.RECORDING, standing_reason(after))
            await self._record.append(event, after)
            if self._recoveries != recoveries:
                raise LeadsNoMore  # others may have led, and gone on, in between
            _log.info("%s: %s -> %s", type(event).__name__, self.state.phase, after.phase)
            self.on_step(event, self.state, after)
            self._state = after
            self.steps.gate.done(Closing.RECORDING)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            return True

    async def _record_own(
        self,
        event: Event,
        *,
        expected: State | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> bool:
        """Do the same for a task of `run`, which is cancelled where this node leads no more.

        `keep` is called where leaders were gathered for it: nothing of it is recorded, and this node may lead on (INV-GTH4).
        """
        try:
            return await self.record(event, expected=expected)
        except LeadsNoMore as ended:
            if isinstance(ended, LeadersGathered):
                keep()
            await until_cancelled()
            raise

    async def until(self, done: Callable[[State], bool]) -> State:
        """Return the first state, from now on, that `done` accepts."""
        while not done(self.state):
            await self._changed.wait()
        return self.state

    @property
    def running(self) -> bool:
        """Return whether `run` is at work."""
        return self._tasks is not None

    def spawn(self, work: Coroutine[object, None, None], name: str) -> None:
        """Run `work` as long as this driver runs; its errors are the driver's."""
        assert self._tasks is not None, "the driver does not run"
        self._tasks.create_task(work, name=name)

    def _spawn_if_running(self, work: Coroutine[object, None, None], name: str) -> bool:
        if self._tasks is None:
            work.close()
            return False
        self.spawn(work, name)
        return True

    async def run(self) -> None:
        """Run one effect after the other, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._digest(), name="failover-learn")
            tasks.create_task(self._digest_disputes(), name="failover-disputes")
            try:
                while True:
                    await self._run_effect(tasks)
            finally:
                self._tasks = None  # while the group waits for its tasks it takes no other

    async def _run_effect(self, tasks: asyncio.TaskGroup) -> None:
        state = self.state
        changed = tasks.create_task(self._leave(state), name="failover-watch")
        effect = tasks.create_task(self._perform(state), name=f"failover-{state.phase.value}")
        try:
            await asyncio.wait({changed, effect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            effect.cancel()
            await asyncio.wait({changed, effect})
        if effect.cancelled() or effect.exception() is not None:
            return
        event = effect.result()
        if event is not None:
            await self._record_own(event, expected=state)

    async def _leave(self, state: State) -> None:
        await self.until(lambda now: now is not state)

    async def _perform(self, state: State) -> Event | None:
        try:
            event = await self._step(next_effect(state), state)
        finally:
            self.steps.first_taken.set()
        if event is None:
            await self._leave(state)
        return event

    async def _step(self, effect: Effect, state: State) -> Event | None:
        match effect:
            case SeekHistory():
                return await seek_history(self.outlook)
            case Mirror():
                await self.steps.mirror(state)
                return None
            case CollectPromises(takeover=takeover):
                return await self.steps.collect_promises(takeover)
            case CutLogs():
                return await self.steps.cut(state, effect)
            case Adopt():
                return await self.steps.adopt(effect)
            case Act():
                return await self.steps.act(state)
            case AwaitOperator():
                return await self.steps.await_operator(state)
            case RollBackDrain():
                return await self.steps.roll_back_drain()
            case LearnLineage():
                return await self.steps.stand_fenced(
                    state, partial(learn_lineage, self.outlook, state, self._record.has_room)
                )

    async def _digest(self) -> None:
        """Record what is learnt. What could not be recorded, as this node leads no more, is judged again when it leads (INV-GTH4)."""
        while True:
            await self._heard.wait()
            hello = self._learned
            if hello is not None and self._is_news(hello):
                await self._record_own(HigherEpochLearned(hello.region_epoch, hello.acting_region))
            if self._learned is hello:
                self._learned = None
                self._heard.clear()
                self.steps.gate.done(Closing.HIGHER_EPOCH)

    def cut_is_owed(self) -> bool:
        """Return whether this region has recorded that it takes over, and its logs are not cut yet (T20).

        One of them may have stopped as the others were cut, and be readable again after a start: what it holds beyond
        the base is another history's.
        """
        state = self.state
        if state.phase is Phase.ADOPTING and state.entry is not None:
            return self.steps.owes_cuts(state.entry.region_epoch)
        may_owe = state.phase.acts or state.phase in {Phase.FENCED, Phase.FENCING, Phase.RETURNING}
        return state.phase is Phase.CUTTING or (
            may_owe and self.steps.owes_cuts(state.region_epoch)
        )

    def doubt(self) -> str:
        """Return what is known against the history here: a dispute, or lost logs (T33, T36); empty where nothing is."""
        if dispute := self.dispute():
            return dispute
        missed = lost_to_mirrors(self.outlook) if self.parts.manifest.lost() else ()
        named = ", ".join(missed[:NAMED_MAX])
        return f"{len(missed)} logs are not on its disk any more ({named})" if missed else ""

    def dispute(self) -> str:
        """Return why the history here may not be the one that counts (T33); empty where nothing is known, or logs alone are lost."""
        state, lost = self.state, bool(self.parts.manifest.lost())
        for refuted in (state.refuted, self.outlook.refuted):
            counts = refuted is not None and refuted.region_epoch == state.region_epoch
            if refuted is not None and counts and not (refuted.lost_here and lost):
                return refuted.reason
        return ""

    def refuted(
        self, region: str, point: TidemarkPoint, missing: Sequence[HistoryDifference]
    ) -> None:
        """Hear that a mirror has shown what is not here: writes close in this very call (T33)."""
        state = self.state
        if point.region_epoch == state.region_epoch:
            self._refute(refutation(self.outlook, region, point, missing))

    def _refute(self, event: HistoryRefuted | None) -> None:
        state = self.state
        if event is None or not (state.refuted is None or state.refuted.lost_here):
            return
        known = self.outlook.is_refuted(state.region_epoch)
        self.outlook.refuted = event
        if state.phase.acts:
            self.parts.role.close_gate(event.reason)
        if not known:
            _log.error("writes are closed: %s", event.reason)
            self._disputes.put_nowait(event)

    async def _digest_disputes(self) -> None:
        while True:
            event = await self._disputes.get()
            recorded = False
            while not recorded and not self.state.refuted:
                state = await self.until(lambda now: now.phase.acts)
                if state.region_epoch != event.region_epoch:
                    break  # another history counts by now
                keep = partial(self._disputes.put_nowait, event)
                recorded = await self._record_own(event, expected=state, keep=keep)

    def promised_to(self) -> str:
        """Return the region that this one stands fenced for, empty where it does not: it may copy what is here (T24)."""
        state = self.state
        own = self.parts.role.region
        fenced = state.phase is Phase.FENCED and state.promise.candidate != own
        return state.promise.candidate if fenced else ""


__all__ = ["FailoverDriver", "IllegalTransition"]
