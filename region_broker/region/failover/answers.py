"""What the other regions ask of this one in a failover: how it stands, what it holds, promises, drains, statements.

INV-FD4  a promise is answered only after it is durable and the gate is closed (T24)
INV-FD5  a drained region promises only if its last tidemark covers everything that it has acknowledged
INV-FD6  a region that acted last gives the promise of a drained one only to the candidate that it was drained for, and has acknowledged
         nothing since: while that drain lasts, or fenced for that candidate; and only in the process that has drained it, which knows
         where the last tidemark cuts
INV-FD7  a region is drained for one candidate at a time, for as long as the last order of it says; only that order ends it
INV-FD8  a promise that is durable is answered within a second, whatever keeps a term from ending, and a last tidemark from being durable;
         only the end of a link is waited for without bound: what it reached behind the answer would be cut off (T24)
         1. A change of topics waits for a node that is away. 2. A failover is ordered, and the promise recorded. 3. The term cannot
         end. Without an answer the candidate would go on by the operator's word, and without what this region has published.

Make one for a driver, and `register` it before the peer server starts.
Not here: the machine, and what is learnt from a hello (`driver`); how such questions are asked (`peers`, `steps`).
"""

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from geo_replicator.directory import Promise, PromiseVerdict, judge_promise
from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import DrainBegun, DrainRolledBack, PromiseGiven
from geo_replicator.lineage import BEFORE_ALL, Cut, TidemarkPoint
from geo_replicator.tail import Tail
from geo_replicator.tidemark import TidemarkError
from idempotency.fencing import REGION_EPOCH_MAX
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.gathering import ACTS_AGAIN_MS, DRAINS_AGAIN_MS, LOOK_MS
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
from region_broker.region.failover.record import LeadsNoMore
from region_broker.region.failover.steps.accepting import held_here, state_beyond
from region_broker.region.failover.steps.disputed import shown_here
from region_broker.region.failover.steps.outlook import FailoverSettings
from region_broker.region.peers.history_messages import (
    AskBeyond,
    AskHeld,
    AskHistory,
    HistoryJudged,
    HistoryPiece,
)
from region_broker.region.peers.protocol import (
    NO_SUCH_EPOCH,
    NOT_ACTING,
    UNBORN,
    Hello,
    PeerRefused,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession, Reply
from region_broker.region.ports import RegionLog, RoundFailed

STANDS_MS: Final = 1_000
"""How long a promise waits for a term to end."""
assert FailoverSettings().ask_timeout_ms > STANDS_MS, (
    "or the candidate hears it too late (`FailoverSteps._promise_timeout_ms`)"
)
_log: Final = logging.getLogger("tidemark.failover")


@dataclass(frozen=True, slots=True)
class _Drain:
    """A drain of this process: who asked for it last, as which state it stands, and where the last tidemark cuts, once there is one."""

    asked: AskDrain
    state: State
    cut: Cut | None


class FailoverAnswers:
    """Answers for the region of one driver."""

    def __init__(self, driver: FailoverDriver) -> None:
        """Speak for `driver`; its steps find the last tidemark of a drain here."""
        self._driver = driver
        self._parts = driver.parts
        self._outlook = driver.outlook
        self._drain: _Drain | None = None
        driver.steps.final_point = self._final_point

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

    async def _on_status(
        self, _session: PeerSession, _message: AskStatus, _attachment: memoryview
    ) -> SiteStatus:
        state, claim = self._driver.state, self._outlook.known_claim()
        return SiteStatus(
            region=self._parts.role.region,
            phase=state.phase.value,
            acting=self._parts.role.acting,
            region_epoch=self._parts.metadata.image.domains[self._parts.domain].region_epoch,
            promised_epoch=state.promise.region_epoch,
            promised_candidate=state.promise.candidate,
            highest_epoch_known=state.highest_epoch_known,
            claim_region_epoch=claim.point.region_epoch,
            claim_number=claim.point.number,
        )

    async def _on_history(
        self, _session: PeerSession, message: AskHistory, _attachment: memoryview
    ) -> HistoryPiece:
        try:
            return await shown_here(self._outlook, message)
        except TidemarkError as error:
            raise PeerRefused("unreadable", str(error)) from error

    async def _on_held(
        self, _session: PeerSession, message: AskHeld, _attachment: memoryview
    ) -> HistoryJudged:
        return await held_here(self._outlook, message)

    async def _on_beyond(
        self, _session: PeerSession, message: AskBeyond, _attachment: memoryview
    ) -> Reply:
        return await state_beyond(self._outlook, message)

    async def _on_promise(
        self, session: PeerSession, message: AskPromise, _attachment: memoryview
    ) -> PromiseAnswer:
        if not 0 <= message.region_epoch <= REGION_EPOCH_MAX:  # INV-PHL1: a promise is for good
            text = f"there is no region epoch {message.region_epoch}: {REGION_EPOCH_MAX} is the last one"
            raise PeerRefused(NO_SUCH_EPOCH, text)
        await self._led_alone(ACTS_AGAIN_MS)
        asked = Promise(message.region_epoch, message.candidate)
        state = self._driver.state
        if state.phase is Phase.UNBORN:
            reason = f"the folder of region {self._parts.role.region} has no history: it promises nothing"
            raise PeerRefused(UNBORN, reason)
        verdict = judge_promise(state.promise, state.region_epoch, asked)
        planned = session.hello if message.planned else None
        refusal = "" if planned is None else self._not_drained(state, asked, planned)
        if verdict is PromiseVerdict.GRANTED and not refusal:
            try:
                verdict = await self._promise(state, asked, planned)
            except PeerRefused as refused:
                refusal = refused.reason
        if not refusal and verdict not in {PromiseVerdict.GRANTED, PromiseVerdict.REPEATED}:
            refusal = f"region {self._parts.role.region} {verdict.value}"
        if not refusal:
            await self._until_it_stands()
        # T33: what a region in dispute has published is no history that a failover candidate should go up to.
        disputed = self._driver.state.refuted is not None or self._outlook.is_refuted(
            state.region_epoch
        )
        claim = BEFORE_ALL if disputed else self._outlook.known_claim().point
        return PromiseAnswer(
            granted=not refusal,
            reason=refusal,
            claim_region_epoch=claim.region_epoch,
            claim_number=claim.number,
        )

    async def _led_alone(self, within_ms: int) -> None:
        """Return once one node leads all logs of this region, and it is this one; raises `LeadsNoMore` (INV-GTH2, INV-GTH5).

        The record gathers by itself, but then whoever asks hears nothing but a refusal.
        """

        def serves() -> bool:
            driver = self._driver
            return driver.running and (
                self._parts.role.acting or driver.state.phase is not Phase.ACTING
            )

        if not await self._parts.gathering.until_led_alone(serves, within_ms):
            raise LeadsNoMore

    async def _until_it_stands(self) -> None:
        """Wait until what ran here has ended; of a term that takes longer what is published by then is claimed (INV-FD8)."""
        role, clock = self._parts.role, self._parts.clock
        until_ms = clock.monotonic_ms() + STANDS_MS
        while self._driver.running and self._driver.state.phase is Phase.FENCED:
            ends = role.serving is not None or self._parts.tidemarks.publishes()
            if not role.mirrors and not (ends and clock.monotonic_ms() < until_ms):
                return
            await clock.sleep_ms(1)

    def _not_drained(self, state: State, asked: Promise, hello: Hello) -> str:
        """Return why this region is not drained for a candidate, empty where it is, or did not act last (INV-FD6).

        1. A region is drained for a candidate, which is away when it is to ask for its promise. 2. The drain ends. 3. Another one
        is promised to, acts, and acknowledges. 4. The first one is back, and asks. It would act without asking the other one.

        Nor is one that follows another one by now than the candidate did with its `hello`.
        """
        if state.phase is Phase.ACTING:
            why = "takes writes again"
        elif state.phase is Phase.DRAINING:
            why = self._why_not_yet(state, asked)
        else:
            why = self._why_no_more(state, asked, hello)
        over = f"the drain for region {asked.candidate} is over: region {self._outlook.region}"
        return f"{over} {why}" if why else ""

    def _why_not_yet(self, state: State, asked: Promise) -> str:
        drain = self._drain
        if drain is None or drain.state is not state or drain.cut is None:
            return "has another leader, or was started again"
        candidate = drain.asked.to_region
        return "" if candidate == asked.candidate else f"drains for region {candidate}"

    def _why_no_more(self, state: State, asked: Promise, hello: Hello) -> str:
        domain = self._outlook.domain
        is_mirror = domain.acting_region != self._outlook.region
        if is_mirror or hello.region_epoch > domain.region_epoch:  # which nobody drains here
            promises = domain.region_epoch <= hello.region_epoch
        elif state.phase is Phase.FENCED and state.promise.candidate == asked.candidate:
            promises = not self._outlook.lineage().since(state.region_epoch)
        else:
            promises = False
        return "" if promises else f"is {state.phase.value}: {state.reason}"

    async def _promise(self, state: State, asked: Promise, planned: Hello | None) -> PromiseVerdict:
        event = PromiseGiven(asked.region_epoch, asked.candidate)
        with ExitStack() as kept:
            while True:
                if state.phase.acts:
                    gate = self._driver.steps.gate
                    kept.enter_context(gate.closed(_about_to_act(asked)))
                    if planned is None:
                        await self._publish_before()
                    else:
                        await self._seal_drain(state, asked)
                if await self._driver.record(event, expected=state):
                    return PromiseVerdict.GRANTED
                state = self._driver.state
                verdict = judge_promise(state.promise, state.region_epoch, asked)
                if verdict is not PromiseVerdict.GRANTED:
                    return verdict
                if planned is not None and (refusal := self._not_drained(state, asked, planned)):
                    raise PeerRefused(DRAIN_OVER, refusal)

    async def _publish_before(self) -> None:
        """Put what is acknowledged here under a tidemark, with the gate closed, if this region must act again (T31).

        Nor is one that drains for another candidate done with it: its last tidemark may be under way, or the drain end meanwhile. Nor one
        that loads: what its former process had acknowledged is under none.
        """
        try:
            async with asyncio.timeout(self._driver.settings.final_round_timeout_ms / 1000):
                while self._driver.steps.loads:
                    await self._parts.clock.sleep_ms(LOOK_MS)
                await self._final_point()
        except (RoundFailed, TimeoutError) as error:
            _log.warning("no last tidemark before the promise: %s", error)

    async def _seal_drain(self, state: State, asked: Promise) -> None:
        """Stop every answer, then see that the last tidemark covers all of them (INV-FD5).

        1. A commit passes the gate and is held. 2. The gate closes, the last tidemark is published. 3. The
        commit is decided and answered. 4. The candidate cuts at that tidemark: the commit would be lost.
        """
        drain = self._drain
        assert drain is not None, "INV-FD6"
        assert drain.cut is not None, "INV-FD6"
        await self._parts.role.fence(_about_to_act(asked))
        reason = ""
        try:
            if is_acknowledged_work(await self._tail_beyond(drain.cut)):
                reason = "work that had begun before the drain ended behind its last tidemark"
        except RoundFailed as error:
            reason = str(error)
        if self._driver.state.phase is Phase.ACTING:
            # The drain timed out while this region stood still: what stands still must load again.
            await self._driver.record(DrainBegun("", asked.candidate), expected=self._driver.state)
        elif reason and self._driver.state is state:
            await self._end_drain(state, reason)
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
        await self._led_alone(DRAINS_AGAIN_MS)
        state = self._driver.state
        if state.phase is Phase.FENCED and state.promise.candidate == message.to_region:
            return await self._end_of_fenced()
        drain = await self._begun_drain(message, state)
        try:
            point = await self._final_point()
        except (RoundFailed, TimeoutError) as error:
            why = f"no last tidemark: {str(error) or _what_was_late(self._parts.role.logs())}"
            await self._end_drain(drain.state, why)
            raise PeerRefused(DRAIN_FAILED, why) from error
        if self._driver.state is not drain.state:
            raise PeerRefused(DRAIN_OVER, f"the drain for region {message.to_region} is over")
        self._drain = replace(drain, cut=self._outlook.known_claim())
        return point

    async def _begun_drain(self, message: AskDrain, state: State) -> _Drain:
        """Begin to drain for the region that asks, or go on for it, with the time that it gives now (INV-FD7); raises `PeerRefused`.

        1. A switch to a region that lags. 2. A switch to another one, which would share the first one's time, and its end.
        """
        deadline_ms = self._parts.clock.monotonic_ms() + message.timeout_ms
        if state.phase is Phase.ACTING:
            if not self._parts.role.acting:
                raise PeerRefused(NOT_ACTING, self._parts.role.reason_not_acting)
            self._driver.steps.drain_deadline_ms = deadline_ms
            await self._driver.record(
                DrainBegun(message.operation_id, message.to_region), expected=state
            )
        now, region = self._driver.state, self._outlook.region
        if now.phase is not Phase.DRAINING:
            why = self._parts.role.reason_not_acting
            raise PeerRefused(NOT_ACTING, f"region {region} is {now.phase.value}: {why}")
        before, cut = self._drain, None
        if before is not None and before.state is now:
            if before.asked.to_region != message.to_region:
                raise PeerRefused(DRAIN_FAILED, f"region {region} {_drains_for(before.asked)}")
            cut = before.cut
        self._driver.steps.drain_deadline_ms = deadline_ms
        self._drain = _Drain(message, now, cut)
        return self._drain

    async def _end_of_fenced(self) -> TidemarkPoint:
        """Return the last tidemark of a region that promised already, if it covers all that was answered (INV-FD5).

        1. A failover is ordered, and this region's promise comes without a last tidemark. 2. The candidate gives up. 3. A
        switch to it is ordered. What was answered behind the last tidemark is lost then: that is a failover.
        """
        claim, reason = self._outlook.known_claim(), ""
        try:
            if is_acknowledged_work(await self._tail_beyond(claim)):
                reason = f"work that was acknowledged lies behind {claim.point}"
        except RoundFailed as error:
            reason = str(error)
        if reason:
            raise PeerRefused(DRAIN_FAILED, f"{reason}: only a failover goes on from here")
        return claim.point

    async def _final_point(self) -> TidemarkPoint:
        async with asyncio.timeout(self._driver.settings.final_round_timeout_ms / 1000):
            for _ in range(self._driver.settings.final_round_attempts):
                point = await self._parts.role.final_round()
                tail = await self._tail_beyond(self._outlook.known_claim())
                # 1. EndTxn passed the gate. 2. The gate closed, the round was taken. 3. The decision
                # was logged behind it. One more round covers it; nothing new passes the gate.
                if not is_acknowledged_work(tail):
                    return point
        raise RoundFailed("work that had begun before the drain did not end")

    async def _tail_beyond(self, cut: Cut) -> Tail:
        tail = await tail_beyond(self._parts.role.logs(), cut)
        if tail.unreadable:
            raise RoundFailed(
                f"what lies beyond the last tidemark is not known: {'; '.join(tail.unreadable)}"
            )
        return tail

    async def _on_end_drain(
        self, _session: PeerSession, message: EndDrain, _attachment: memoryview
    ) -> DrainEnded:
        drain, state = self._drain, self._driver.state
        known = drain is not None and drain.state is state
        if drain is None or not known or drain.asked.operation_id == message.operation_id:
            await self._end_drain(state, message.reason)
        return DrainEnded(acting=self._driver.state.phase is Phase.ACTING)

    async def _end_drain(self, state: State, reason: str) -> None:
        if state.phase is Phase.DRAINING:
            await self._driver.record(DrainRolledBack(reason), expected=state)

    async def _on_statement(
        self, _session: PeerSession, message: AskStatement, _attachment: memoryview
    ) -> Reply:
        if message.domain != self._parts.domain:  # it names a folder
            raise PeerRefused("unknown-domain", f"no domain is called {message.domain!r:.80}")
        try:
            found = self._parts.quarantine.statement(message.domain, message.region_epoch)
        except (QuarantineDamaged, OSError) as error:
            raise PeerRefused("unreadable", str(error)) from error
        attached = [] if found is None else [msgspec.json.encode(found)]
        return Reply(StatementAnswer(found=found is not None), attached)


def _drains_for(asked: AskDrain) -> str:
    return (
        f"drains for region {asked.to_region}, operation {asked.operation_id}: order it again, when that has ended, which takes"
        f" {asked.timeout_ms // 1000} s at most"
    )


def _what_was_late(logs: list[RegionLog]) -> str:
    """Return why there was no last tidemark in time: what acks=1 has answered is to be below it, too, and HW may wait for a node (INV-RPL3)."""
    late = [log for log in logs if log.failed is None and log.high_watermark < log.log_end_offset]
    if not late:
        return "it took too long"
    return (
        f"{len(late)} logs ({late[0].tp} first) are not committed to their ends. Bring back the nodes that are not in sync, or lower"
        " min.insync.replicas of these topics"
    )


def _about_to_act(asked: Promise) -> str:
    return f"region {asked.candidate} is about to act; this one goes on by itself, when that one acts or gave up"
