"""The failover driver: keeps the machine's state durable, runs its effects, answers the other regions.

INV-FD3  a higher region epoch closes the gate in the same call that learns of it, before anything is awaited
INV-FD4  a promise is answered only after it is durable and the gate is closed (T24)
INV-FD5  a drained region promises only if its last tidemark covers everything that it has acknowledged
An event is in the journal before the state changes, and the state changes before the next effect runs (INV-FA1); only
`record` changes it. A state that changes cancels the effect of the old one; effects may be cancelled anywhere
(INV-FS2).

Construct it, hand it to `PeerServer` and `PeerClient` as their identity, `register` its handlers, `recover`
once, and keep `run` running.
Not here: what a step does (`steps`), what an operator asks for (`failover.operations`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

import msgspec

from geo_replicator.directory import Promise, PromiseVerdict, judge_promise
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
    replay,
    standing_reason,
    unborn,
    why_fenced,
)
from geo_replicator.failover_events import (
    Born,
    DrainBegun,
    DrainRolledBack,
    Event,
    FolderNamed,
    HigherEpochLearned,
    HistoryRefuted,
    PromiseGiven,
    folder_named,
)
from geo_replicator.folder_life import BirthVerdict, Shown, judge_births
from geo_replicator.history import NAMED_MAX, HistoryDifference
from geo_replicator.lineage import BEFORE_ALL, EMPTY_CUT, Cut, TidemarkPoint
from geo_replicator.loss import Tail
from geo_replicator.tidemark import TidemarkError
from idempotency.identity import RegionEpoch
from region_broker.region.failover.journal import FailoverJournal
from region_broker.region.failover.log_surgery import is_acknowledged_work, tail_beyond
from region_broker.region.failover.messages import (
    DRAIN_FAILED,
    DRAIN_OVER,
    AskDrain,
    AskPromise,
    AskStatement,
    AskStatus,
    Drained,
    DrainEnded,
    EndDrain,
    PromiseAnswer,
    SiteStatus,
    StatementAnswer,
)
from region_broker.region.failover.quarantine_store import QuarantineDamaged
from region_broker.region.failover.steps.accepting import (
    held_here,
    lost_to_mirrors,
    state_beyond,
)
from region_broker.region.failover.steps.disputed import (
    refutation,
    refuted_by_lineage,
    shown_here,
)
from region_broker.region.failover.steps.effects import FailoverSteps
from region_broker.region.failover.steps.fenced import learn_lineage
from region_broker.region.failover.steps.outlook import FailoverParts, FailoverSettings, Outlook
from region_broker.region.failover.steps.without_history import seek_history
from region_broker.region.peers.history_messages import (
    AskBeyond,
    AskHeld,
    AskHistory,
    HistoryJudged,
    HistoryPiece,
)
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    UNBORN,
    Hello,
    PeerRefused,
)
from region_broker.region.peers.server import PeerServer, PeerSession, Reply
from region_broker.region.ports import RoundFailed

_log: Final = logging.getLogger("tidemark.failover")


class FailoverDriver:
    """One domain's failover on this node. It is the `PeerIdentity` of the node, too."""

    def __init__(
        self, parts: FailoverParts, journal: FailoverJournal, settings: FailoverSettings
    ) -> None:
        """Join `parts`; nothing is read or run yet."""
        self.parts: Final = parts
        self.settings: Final = settings
        self._journal = journal
        self._state: State | None = None
        self._drained: Cut = EMPTY_CUT
        self._changed = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._learned: asyncio.Queue[Hello] = asyncio.Queue()
        self._disputes: asyncio.Queue[HistoryRefuted] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None
        self.outlook: Final = Outlook(parts, settings)
        self.steps: Final = FailoverSteps(self.outlook, lambda: self.state)
        self.steps.final_point = self._final_point
        self.outlook.lives.spawn = self._spawn_if_running
        parts.peers.identity = self

    @property
    def state(self) -> State:
        """Return the machine's state; `recover` comes first."""
        assert self._state is not None, "recover comes first"
        return self._state

    async def recover(self) -> State:
        """Read the journal, or write its first record from what the folder's identity and the metadata say (T32)."""
        events = self._journal.recover()
        state = replay(events)
        if state is None:
            state = await self._first_state()
        elif not folder_named(events):
            await self._journal.append(FolderNamed(self.parts.folder.identity.folder_id))
        self._state = state
        _log.info("the folder says that region %s is %s", state.region, state.phase.value)
        return state

    async def _first_state(self) -> State:
        region, folder = self.parts.role.region, self.parts.folder.identity
        domain = self.parts.metadata.image.domains[self.parts.domain]
        acts = domain.acting_region == region
        if folder.history is None or (acts and folder.born is None):
            return unborn(region)  # one that was about to join asks again
        first = Born(region, acts, domain.region_epoch, folder.folder_id)
        await self._journal.append(first)
        return born(first)

    def register(self, table: PeerServer) -> None:
        """Answer the other regions' questions through `table`."""
        table.register(AskStatus, self._on_status)
        table.register(AskHistory, self._on_history)
        table.register(AskHeld, self._on_held)
        table.register(AskBeyond, self._on_beyond)
        table.register(AskPromise, self._on_promise)
        table.register(AskDrain, self._on_drain)
        table.register(EndDrain, self._on_end_drain)
        table.register(AskStatement, self._on_statement)

    def hello(self) -> Hello:
        """Return this node's hello (`PeerIdentity`)."""
        image = self.parts.metadata.image
        domain = image.domains[self.parts.domain]
        return Hello(
            cluster_id=image.cluster_id,
            region=self.parts.role.region,
            node_id=self.parts.role.node_id,
            region_epoch=domain.region_epoch,
            acting_region=domain.acting_region,
            lineage=domain.lineage,
            folder=Shown.of(self.parts.folder.identity, aside=bool(self.outlook.lives.aside())),
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
        aside = self.outlook.lives.aside()
        if aside and self.parts.role.acting:
            self.parts.role.close_gate(aside)
        self.outlook.lives.judge(hello)
        self.outlook.heed(hello)
        if hello.lineage and self.state.phase.acts:
            self._refute(refuted_by_lineage(self.outlook, self.state, [hello]))
        if self._is_news(hello):
            region = self.parts.role.region
            reason = why_fenced(region, hello.region_epoch, hello.acting_region)
            self.parts.role.close_gate(f"{reason}; it goes on by itself: it joins whoever acts")
            self._learned.put_nowait(hello)

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

        Raises `IllegalTransition` where the phase does not know the event.
        """
        async with self._write_lock:
            if expected is not None and self._state is not expected:
                return False
            after = fold(self.state, event)
            if not after.may_act:
                self.parts.role.close_gate(standing_reason(after))
            await self._journal.append(event)
            _log.info("%s: %s -> %s", type(event).__name__, self.state.phase, after.phase)
            self._state = after
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            return True

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
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._digest(), name="failover-learn")
                tasks.create_task(self._digest_disputes(), name="failover-disputes")
                while True:
                    await self._run_effect(tasks)
        finally:
            self._tasks = None

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
            await self.record(event, expected=state)

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
                return await learn_lineage(self.outlook, state)

    async def _digest(self) -> None:
        while True:
            hello = await self._learned.get()
            if self._is_news(hello):
                await self.record(HigherEpochLearned(hello.region_epoch, hello.acting_region))

    async def _on_status(
        self, _session: PeerSession, _message: AskStatus, _attachment: memoryview
    ) -> SiteStatus:
        state, claim = self.state, self.outlook.known_claim()
        return SiteStatus(
            region=self.parts.role.region,
            phase=state.phase.value,
            acting=self.parts.role.acting,
            region_epoch=self.parts.metadata.image.domains[self.parts.domain].region_epoch,
            promised_epoch=state.promise.region_epoch,
            promised_candidate=state.promise.candidate,
            highest_epoch_known=state.highest_epoch_known,
            claim_region_epoch=claim.point.region_epoch,
            claim_number=claim.point.number,
        )

    def cut_is_owed(self) -> bool:
        """Return whether this region has recorded that it takes over, and its logs are not cut yet (T20).

        One of them may have stopped as the others were cut, and be readable again after a start: what it holds beyond
        the base is another history's.
        """
        state = self.state
        if state.phase is Phase.ADOPTING and state.entry is not None:
            return self.steps.owes_cuts(state.entry.region_epoch)
        return state.phase is Phase.CUTTING or (
            state.phase.acts and self.steps.owes_cuts(state.region_epoch)
        )

    def doubt(self) -> str:
        """Return what is known against the history here: a dispute, or lost logs (T33, T36); empty where nothing is."""
        state, lost = self.state, bool(self.parts.manifest.lost())
        for refuted in (state.refuted, self.outlook.refuted):
            counts = refuted is not None and refuted.region_epoch == state.region_epoch
            if refuted is not None and counts and not (refuted.lost_here and lost):
                return refuted.reason
        missed = lost_to_mirrors(self.outlook) if lost else ()
        named = ", ".join(missed[:NAMED_MAX])
        return f"{len(missed)} logs are not on its disk any more ({named})" if missed else ""

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
                recorded = await self.record(event, expected=state)

    async def _on_history(
        self, _session: PeerSession, message: AskHistory, _attachment: memoryview
    ) -> HistoryPiece:
        try:
            return await shown_here(self.outlook, message)
        except TidemarkError as error:
            raise PeerRefused("unreadable", str(error)) from error

    async def _on_held(
        self, _session: PeerSession, message: AskHeld, _attachment: memoryview
    ) -> HistoryJudged:
        return await held_here(self.outlook, message)

    async def _on_beyond(
        self, _session: PeerSession, message: AskBeyond, _attachment: memoryview
    ) -> Reply:
        return await state_beyond(self.outlook, message)

    async def _on_promise(
        self, _session: PeerSession, message: AskPromise, _attachment: memoryview
    ) -> PromiseAnswer:
        asked = Promise(message.region_epoch, message.candidate)
        state = self.state
        if state.phase is Phase.UNBORN:
            reason = (
                f"the folder of region {self.parts.role.region} has no history: it promises nothing"
            )
            raise PeerRefused(UNBORN, reason)
        verdict = judge_promise(state.promise, state.region_epoch, asked)
        refusal = ""
        if verdict is PromiseVerdict.GRANTED:
            try:
                verdict = await self._promise(state, asked, planned=message.planned)
            except PeerRefused as refused:
                refusal = refused.reason
        if not refusal and verdict not in {PromiseVerdict.GRANTED, PromiseVerdict.REPEATED}:
            refusal = f"region {self.parts.role.region} {verdict.value}"
        if not refusal:
            await self._copied_its_last()
        # T33: what a region in dispute has published is no history that a failover candidate should go up to.
        disputed = self.state.refuted is not None or self.outlook.is_refuted(state.region_epoch)
        claim = BEFORE_ALL if disputed else self.outlook.known_claim().point
        return PromiseAnswer(
            granted=not refusal,
            reason=refusal,
            claim_region_epoch=claim.region_epoch,
            claim_number=claim.number,
        )

    async def _copied_its_last(self) -> None:
        """Wait until the link has ended: what it reached behind the answer would be cut off by the candidate (T24)."""
        while self.running and self.state.phase is Phase.FENCED and self.parts.role.mirrors:
            await self.parts.clock.sleep_ms(1)

    def promised_to(self) -> str:
        """Return the region that this one stands fenced for, empty where it does not: it may copy what is here (T24)."""
        state = self.state
        own = self.parts.role.region
        fenced = state.phase is Phase.FENCED and state.promise.candidate != own
        return state.promise.candidate if fenced else ""

    async def _promise(self, state: State, asked: Promise, *, planned: bool) -> PromiseVerdict:
        if planned and state.phase is Phase.ACTING:
            raise PeerRefused(DRAIN_OVER, "the drain is over: this region takes writes again")
        if planned and state.phase is Phase.DRAINING:
            await self._seal_drain(state, asked)
        if state.phase is Phase.ACTING:
            # T31: what is acknowledged here is under a tidemark, if this region must act again.
            self.parts.role.close_gate(_about_to_act(asked))
            try:
                await self._final_point()
            except (RoundFailed, TimeoutError) as error:
                _log.warning("no last tidemark before the promise: %s", error)
        event = PromiseGiven(asked.region_epoch, asked.candidate)
        while not await self.record(event, expected=state):
            state = self.state
            verdict = judge_promise(state.promise, state.region_epoch, asked)
            if verdict is not PromiseVerdict.GRANTED:
                return verdict
            if planned and state.phase.acts:
                raise PeerRefused(DRAIN_OVER, "the drain is over: this region takes writes again")
        return PromiseVerdict.GRANTED

    async def _seal_drain(self, state: State, asked: Promise) -> None:
        """Stop every answer, then see that the last tidemark covers all of them (INV-FD5).

        1. A commit passes the gate and is held. 2. The gate closes, the last tidemark is published. 3. The
        commit is decided and answered. 4. The candidate cuts at that tidemark: the commit would be lost.
        """
        await self.parts.role.fence(_about_to_act(asked))
        reason = ""
        try:
            if is_acknowledged_work(await self._tail_beyond(self._drained)):
                reason = "work that had begun before the drain ended behind its last tidemark"
        except RoundFailed as error:
            reason = str(error)
        if self.state.phase is Phase.ACTING:
            # The drain timed out while this region stood still: what stands still must load again.
            await self.record(DrainBegun("", asked.candidate), expected=self.state)
        elif reason and self.state is state:
            await self._end_drain(reason)
            raise PeerRefused(DRAIN_FAILED, f"{reason}: this region takes writes again")

    async def _on_drain(
        self, _session: PeerSession, message: AskDrain, _attachment: memoryview
    ) -> Drained:
        point = await self.drain(message)
        return Drained(region_epoch=point.region_epoch, number=point.number)

    async def drain(self, message: AskDrain) -> TidemarkPoint:
        """Stop taking writes, publish a tidemark over everything acknowledged, and return it.

        Raises `PeerRefused` where this region does not act, or no tidemark came about: it writes on then.
        """
        state = self.state
        if state.phase is Phase.FENCED and state.promise.candidate == message.to_region:
            return self.outlook.known_claim().point
        if state.phase is Phase.ACTING:
            if not self.parts.role.acting:
                raise PeerRefused(NOT_ACTING, self.parts.role.reason_not_acting)
            now_ms = self.parts.clock.monotonic_ms()
            self.steps.drain_deadline_ms = now_ms + message.timeout_ms
            await self.record(DrainBegun(message.operation_id, message.to_region), expected=state)
        if self.state.phase is not Phase.DRAINING:
            why = self.parts.role.reason_not_acting
            raise PeerRefused(
                NOT_ACTING, f"region {self.outlook.region} is {self.state.phase.value}: {why}"
            )
        try:
            point = await self._final_point()
            self._drained = self.outlook.known_claim()
        except (RoundFailed, TimeoutError) as error:
            await self._end_drain(f"no last tidemark: {error}")
            raise PeerRefused(DRAIN_FAILED, f"no last tidemark: {error}") from error
        return point

    async def _final_point(self) -> TidemarkPoint:
        async with asyncio.timeout(self.settings.final_round_timeout_ms / 1000):
            for _ in range(self.settings.final_round_attempts):
                point = await self.parts.role.final_round()
                tail = await self._tail_beyond(self.outlook.known_claim())
                # 1. EndTxn passed the gate. 2. The gate closed, the round was taken. 3. The decision
                # was logged behind it. One more round covers it; nothing new passes the gate.
                if not is_acknowledged_work(tail):
                    return point
        raise RoundFailed("work that had begun before the drain did not end")

    async def _tail_beyond(self, cut: Cut) -> Tail:
        tail = await tail_beyond(self.parts.role.logs(), cut)
        if tail.unreadable:
            raise RoundFailed(
                f"what lies beyond the last tidemark is not known: {'; '.join(tail.unreadable)}"
            )
        return tail

    async def _on_end_drain(
        self, _session: PeerSession, message: EndDrain, _attachment: memoryview
    ) -> DrainEnded:
        await self._end_drain(message.reason)
        return DrainEnded(acting=self.state.phase is Phase.ACTING)

    async def _end_drain(self, reason: str) -> None:
        state = self.state
        if state.phase is Phase.DRAINING:
            await self.record(DrainRolledBack(reason), expected=state)

    async def _on_statement(
        self, _session: PeerSession, message: AskStatement, _attachment: memoryview
    ) -> Reply:
        try:
            found = self.parts.quarantine.statement(message.domain, message.region_epoch)
        except QuarantineDamaged as error:
            raise PeerRefused("unreadable", str(error)) from error
        attached = [] if found is None else [msgspec.json.encode(found)]
        return Reply(StatementAnswer(found=found is not None), attached)


__all__ = ["FailoverDriver", "IllegalTransition"]


def _about_to_act(asked: Promise) -> str:
    return f"region {asked.candidate} is about to act; this one goes on by itself, when that one acts or gave up"
