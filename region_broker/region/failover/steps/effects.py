"""The effects of the failover machine, one coroutine each: run, run again, end in at most one event.

INV-FS2  a step may be cancelled anywhere and run again, in this process or the next (T18)
INV-FS3  writes open only in `act`, when all else is done, and only if nothing higher was learnt meanwhile (`gate`)
INV-FS4  a quarantine that cannot be written ends no region that cuts its logs: that is said, and tried again; nothing is
         served or copied from before the cut that was not before
INV-FS6  what another region sends as its loss statement ends no return: one that cannot be read, or is of another takeover or domain,
         is not kept
INV-FS8  a planned takeover goes on by the old region's word alone only where no region is at a later region epoch, and only from a tidemark
         of the region epoch that was drained
A step returns the event that ends it, or None when only something from outside can end it. While it acts, a region
makes a handshake with the others: two that act both hear of it as soon as they are connected.

Not here: which step is next (`geo_replicator.failover.next_effect`), journalling (`failover.driver`), standing still
until it is known who acts (`region.failover.steps.fenced`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from geo_replicator.directory import StartVerdict, judge_start
from geo_replicator.failover import Adopt, CutLogs, Phase, State, standing_reason
from geo_replicator.failover_events import (
    Adopted,
    CutChosen,
    DrainRolledBack,
    EntryRecord,
    Event,
    HigherEpochLearned,
    LogsCut,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
)
from geo_replicator.lineage import Cut, LineageEntry, LogKey, TidemarkPoint, lowest_base
from geo_replicator.loss import LossStatement, Takeover, make_statement
from geo_replicator.tidemark import TidemarkError
from idempotency import fencing
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.log.failures import LogError
from region_broker.region.failover.known_lineage import as_entry, lineage_of
from region_broker.region.failover.lineage_cuts import LineageCutParts, LineageCuts
from region_broker.region.failover.log_surgery import (
    CutReason,
    bounds_of,
    cut_logs,
    given_up_tails,
    key_of,
    show_no_more_than,
    stated_tail,
    tell_cut,
    uncut_logs,
    with_tails,
)
from region_broker.region.failover.messages import (
    AskPromise,
    AskStatement,
    PromiseAnswer,
    StatementAnswer,
)
from region_broker.region.failover.quarantine_store import QuarantineDamaged
from region_broker.region.failover.record import until_cancelled
from region_broker.region.failover.steps.accepting import (
    begin_lost_logs_anew,
    kept_from_giving_up,
    loss_to_accept,
    lost_since,
    promised_meanwhile,
)
from region_broker.region.failover.steps.catching_up import (
    behind_text,
    passed_over_text,
    reach_claims,
    unheard_text,
)
from region_broker.region.failover.steps.disputed import (
    choices,
    refuted_by_lineage,
    refuted_by_manifest,
    refuted_by_mirrors,
)
from region_broker.region.failover.steps.gate import Closing, Gate
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.failover.steps.own_terms import OwnTerms
from region_broker.region.failover.steps.recording import record_lineage
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from region_broker.region.ports import RegionLog, RoundFailed, Term

_log: Final = logging.getLogger("tidemark.failover")


class _GivenUp(Exception):
    """A takeover is given up before its base is chosen; the text says why."""


class FailoverSteps:
    """Runs single effects for the driver; `current` tells the machine's state of this moment."""

    def __init__(self, outlook: Outlook, current: Callable[[], State]) -> None:
        """Share `outlook` with the driver."""
        self._outlook = outlook
        self._parts = outlook.parts
        self._settings = outlook.settings
        self._current = current
        self.drain_deadline_ms: int | None = None
        self._finished_cuts_of: RegionEpoch | None = None
        self._own_terms = OwnTerms(outlook)
        self.gate: Final = Gate(outlook, current)
        self.loads = False
        """Whether all that takes writes is being loaded: this region has heard that it may act."""
        self.first_taken = asyncio.Event()
        """The first step since the start was taken, or left for another: a mirror shows what it had shown."""
        self.final_point: Callable[[], Awaitable[TidemarkPoint]] = _no_final_point

    async def mirror(self, state: State) -> None:
        """Follow the primary region."""
        primary_region = state.acting_region or self._outlook.domain.acting_region
        self._parts.manifest.take_note_of_lost()  # a mirror claims no more than its logs hold (T16)
        await self._parts.role.mirror(Term(state.region_epoch, LeaderEpoch(0), primary_region))

    async def act(self, state: State) -> Event | None:
        """Take writes; after a restart only once every region that answers agrees (T27), and none knows another start (T36)."""
        while True:
            stopped = await self._load_and_open(state)
            if stopped is not None:
                return stopped
            await self._handshake_until_aside()
            aside = self._outlook.lives.aside()
            if not aside:  # it was let in while the handshakes ended (INV-FGT2)
                continue
            self.gate.unload()
            self.gate.done(Closing.ASIDE)
            if self._parts.gathering.is_due:  # INV-GTH3
                self._parts.role.close_gate(aside)
                await self._parts.gathering.gather()
                await until_cancelled()
            await self._parts.role.fence(aside)

    async def stand_fenced(self, state: State, learn: Callable[[], Awaitable[Event]]) -> Event:
        """Stand still, and cut what is to be cut late: the candidate that was promised may copy all that is here (INV-LS4).

        Where the quarantine has no room, that is tried again while it learns who acts: nobody copies from here before.
        """
        await self._parts.role.fence(standing_reason(state))
        cuts = partial(self._finish_cuts, state.region_epoch, state)
        if not (failed := await _why_not(cuts)):
            return await learn()
        _log.error(
            "a log that is cut late, and all others, are not copied from here before: %s", failed
        )
        async with asyncio.TaskGroup() as tasks:
            again = tasks.create_task(self._cut_again(cuts), name="late-cuts")
            event = await learn()
            again.cancel()
        return event

    async def _cut_again(self, cuts: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._parts.clock.sleep_ms(self._settings.handshake_interval_ms)
            if not await _why_not(cuts):
                return

    async def _cut_till_done(self, cuts: Callable[[], Awaitable[None]]) -> None:
        """Run `cuts`, and again while the quarantine has no room; say why, with the gate closed (INV-FS4).

        1. A region has confirmed that it may act, and waits for room. 2. It is cut off, and another one takes over. 3. They
        reach each other again: as one that acts, it must hear of that, whoever of both reaches the other (T31).
        """
        if not (failed := await _why_not(cuts)):
            return
        reason = f"this region cannot cut its logs: {failed}; it goes on by itself, when its quarantine can be written"
        self._parts.role.close_gate(reason)
        _log.error("%s", reason)
        async with asyncio.TaskGroup() as tasks:
            handshakes = [
                tasks.create_task(self._handshake_again(region), name=f"handshake-{region}")
                for region in self._parts.peers.names()
            ]
            await self._cut_again(cuts)
            for handshake in handshakes:
                handshake.cancel()

    async def _load_and_open(self, state: State) -> Event | None:
        role = self._parts.role
        heard = self._outlook.hellos.values()
        lost = refuted_by_manifest(self._outlook, state) or refuted_by_lineage(
            self._outlook, state, heard
        )
        if lost is not None:
            return lost
        serving = role.serving
        if serving is None or role.mirrors or serving.region_epoch != state.region_epoch:
            stopped = await self._confirm(state)
            if stopped is not None:
                return stopped
            self.loads = True
            try:
                if not await self._load(state):
                    return None
            finally:
                self.loads = False
        self.gate.loaded(state)
        return None

    async def _load(self, state: State) -> bool:
        """Load all that takes writes; False where this region has no leader epoch left (INV-F3)."""
        try:
            term = await self._own_terms.take(state.region_epoch)
        except fencing.EpochExhausted as error:
            self._parts.role.close_gate(f"{error} (tidemark region failover --to another region)")
            return False
        await self._cut_till_done(partial(self._finish_cuts, state.region_epoch, state))
        base = self._base_of(state.region_epoch)
        loading = "this region loads its ledgers; it goes on by itself"
        await self._parts.role.act(term, adopts=False, base=base, reason=loading)
        return True

    async def await_operator(self, state: State) -> Event | None:
        """Acknowledge nothing more, also nothing that is under way, until an operator has chosen (T33)."""
        what_to_do = choices(self._outlook, state)
        await self._parts.role.fence(what_to_do)
        _log.error("%s", what_to_do)
        await self._handshake_for_ever()
        return None

    async def _handshake_until_aside(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            handshake = tasks.create_task(self._handshake_for_ever(), name="handshakes")
            await self._outlook.lives.until_aside()
            handshake.cancel()

    async def _handshake_for_ever(self) -> None:
        """Let the other regions know, and hear, under which region epoch they stand (T31).

        1. This region is cut off and goes on acting. 2. Another one takes over. 3. The regions reach each
        other again: neither mirrors the other, so without a handshake both would act for ever.
        """
        async with asyncio.TaskGroup() as tasks:
            for region in self._parts.peers.names():
                tasks.create_task(self._handshake_again(region), name=f"handshake-{region}")
            await self._parts.clock.sleep_ms(self._settings.readers_ahead_ms)
            self._parts.role.readers_are_back()

    async def _handshake_again(self, region: str) -> None:
        # Each for itself: one that is silent does not delay the handshakes of the others.
        while True:
            await self._parts.clock.sleep_ms(self._settings.handshake_interval_ms)
            timeout_ms = self._settings.ask_timeout_ms
            await self._parts.peers.handshake_with(region, timeout_ms=timeout_ms)

    def _base_of(self, region_epoch: RegionEpoch) -> dict[LogKey, int]:
        for entry in self._outlook.domain.lineage:
            if entry.region_epoch == region_epoch:
                return dict(as_entry(entry).positions)
        return {}

    async def _finish_cuts(self, region_epoch: RegionEpoch, state: State) -> None:
        """Cut the logs that had stopped when this region took over, and can be read again (INV-LS4)."""
        for record, late in self._uncut(region_epoch):
            await self._cut_for(record, lowest_base((record.entry(),)), state, late)
        self._finished_cuts_of = region_epoch

    def owes_cuts(self, region_epoch: RegionEpoch) -> bool:
        """Return whether logs that are to be cut late still hold what another region may not copy (INV-LS4)."""
        return self._finished_cuts_of != region_epoch and any(
            late for _, late in self._uncut(region_epoch)
        )

    def _uncut(self, region_epoch: RegionEpoch) -> Iterator[tuple[EntryRecord, list[RegionLog]]]:
        older_than = fencing.leader_epoch(region_epoch, 0)
        for known in self._outlook.domain.lineage:
            if (known.region_epoch, known.acting_region) == (region_epoch, self._outlook.region):
                record = EntryRecord(**msgspec.structs.asdict(known))
                cut = lowest_base((record.entry(),))
                yield record, uncut_logs(self._parts.role.logs(), cut, older_than)

    async def _confirm(self, state: State) -> Event | None:
        role, settings = self._parts.role, self._settings
        await role.stand_still(
            "this region asks the others whether it may still act; it goes on by itself, when it has heard or waited"
        )
        attempt = 0
        while attempt < settings.confirm_attempts and self._parts.peers.names():
            statuses = await self._outlook.statuses()
            unsure, aside = self._outlook.lives.unsure(), self._outlook.lives.aside()
            if unsure or aside:
                role.close_gate(aside or f"{unsure}. This one goes on by itself, when it is let in")
                pause_ms = settings.confirm_pause_ms if aside else settings.ask_again_ms
                await self._parts.clock.sleep_ms(pause_ms)
                continue
            reports = [
                replace(status.report(), abandoned_epoch=self._outlook.abandoned_epoch(name))
                for name, status in statuses.items()
            ]
            decision = judge_start(state.region_epoch, reports)
            if decision.verdict is StartVerdict.FOLLOW:
                ahead = max(reports, key=lambda report: report.region_epoch)
                return HigherEpochLearned(ahead.region_epoch, decision.leader)
            if decision.verdict is StartVerdict.ACT:
                judged = await refuted_by_mirrors(self._outlook, state, statuses)
                if judged.refuted is not None:
                    return judged.refuted
                if judged.all_told and len(reports) == len(self._parts.peers.names()):
                    return None
                attempt += 1
            else:
                role.close_gate(decision.reason)
            await self._parts.clock.sleep_ms(settings.confirm_pause_ms)
        return None

    async def collect_promises(self, takeover: TakeoverBegun) -> Event:
        """Ask for promises, reach the greatest claim, stop copying, state the loss, and choose the base (T24, T25)."""
        try:
            answers = await self._promised(takeover)
            cut = await self._held(takeover)
            statement = await self._statement_of(takeover, cut, answers)
        except (_GivenUp, TidemarkError) as error:
            return TakeoverAbandoned(str(error))
        self._parts.quarantine.keep_statement(statement)
        # T16: the base is what the logs hold, and the statement says what went. From here on nothing is missing; of what
        # was given up by name, once there is no way back (`cut`).
        if not takeover.gives_up:
            self._parts.manifest.take_note_of_lost()
        positions = dict(cut.positions)
        for log in self._parts.role.logs():
            positions.setdefault(key_of(log), log.kept_from)
        entry = LineageEntry(
            region_epoch=takeover.region_epoch,
            acting_region=self._outlook.region,
            base=cut.point,
            positions=positions,
            decided_wall_ms=self._parts.clock.wall_ms(),
        )
        return CutChosen(EntryRecord.of(entry))

    async def _promised(self, takeover: TakeoverBegun) -> Mapping[str, PromiseAnswer]:
        """Return the promises that were given, with all copied that they claim; raises `_GivenUp`."""
        if kept := await kept_from_giving_up(self._outlook, takeover):
            raise _GivenUp(kept)
        answers = await self._ask_promises(takeover)
        if isinstance(answers, str):
            raise _GivenUp(answers)
        if held := await promised_meanwhile(self._outlook, takeover, answers.keys()):
            raise _GivenUp(held)
        refusal = await reach_claims(self._outlook, self._current(), takeover, answers)
        if refusal is not None:
            raise _GivenUp(refusal)
        return answers

    async def _held(self, takeover: TakeoverBegun) -> Cut:
        """Stop copying, and return the cut that this region may act from; raises `_GivenUp`, `TidemarkError`."""
        try:
            if takeover.accepts == self._outlook.region:
                begin_lost_logs_anew(self._outlook)
        except LogError as error:
            raise _GivenUp(str(error)) from error
        if takeover.accepts:
            await self._close_history()
        await self._parts.role.stand_still(
            f"region {self._outlook.region} is taking over; it goes on by itself"
        )
        cut = self._outlook.claim()
        if why := _not_drained_for(takeover, cut.point, self._current().region_epoch):
            raise _GivenUp(why)
        if acts := self._outlook.lineage().since(self._current().region_epoch):
            if takeover.planned:  # and what it has acknowledged nobody has given up (INV-FS8)
                raise _GivenUp(f"region {acts[-1].acting_region} has acted since")
            # Another one has acted since, from a base below or at this one: what was ordered here behind it is void (T14).
            self._parts.tidemarks.starts.take_back(cut.point)
        return cut

    async def _statement_of(
        self, takeover: TakeoverBegun, cut: Cut, answers: Mapping[str, PromiseAnswer]
    ) -> LossStatement:
        if takeover.accepts:
            return await loss_to_accept(self._outlook, takeover.accepts, takeover.region_epoch, cut)
        stated = await self.state_loss(
            takeover.old_region, takeover.region_epoch, planned=takeover.planned
        )
        said = [
            behind_text(self._outlook, cut.point, answers),
            unheard_text(self._outlook, cut.point, takeover, answers),
        ]
        return _with_bound(stated, "; ".join(filter(None, said)))

    async def _close_history(self) -> None:
        """Publish what was acknowledged here and is under no tidemark yet, with the gate closed (T33).

        Where that fails the last tidemark counts; what lies beyond it goes to quarantine like any tail.
        """
        region_epoch = self._current().region_epoch
        term = await self._own_terms.take(region_epoch)
        # A log that had stopped may be readable since a start: what is lost of it must come under no tidemark.
        await self._cut_till_done(partial(self._finish_cuts, region_epoch, self._current()))
        await self._parts.role.act(
            term,
            adopts=False,
            base=self._base_of(region_epoch),
            reason="this region closes its history with a last tidemark; it goes on by itself",
        )
        try:
            await self.final_point()
        except (RoundFailed, TimeoutError) as error:
            _log.warning("no last tidemark before the loss is accepted: %s", error)

    async def _ask_promises(self, takeover: TakeoverBegun) -> Mapping[str, PromiseAnswer] | str:
        """Return the promises that were given, or why the takeover must be given up."""
        attempts = self._settings.promise_attempts
        message = AskPromise(
            domain=self._parts.domain,
            region_epoch=takeover.region_epoch,
            candidate=self._outlook.region,
            planned=takeover.planned,
        )
        missing: dict[str, str] = {}
        for asked in range(1, attempts + 1):
            answers, silent = await self._ask_for_promise(message)
            if aside := self._outlook.lives.aside():
                return aside
            refused = [answer.reason for answer in answers.values() if not answer.granted]
            if refused:
                return "; ".join(refused)
            missing = dict(silent)
            if not missing:
                return answers
            if word := await self._word_without(takeover, asked, missing):
                if beyond := await self._beyond(takeover):  # INV-FS8
                    return passed_over_text(self._outlook, beyond)
                for name, why in missing.items():
                    _log.warning("no promise of region %s (%s): %s stands", name, why, word)
                return answers
            await self._parts.clock.sleep_ms(self._settings.poll_ms)
        return "; ".join(f"no promise of region {name}: {why}" for name, why in missing.items())

    async def _word_without(
        self, takeover: TakeoverBegun, asked: int, missing: Mapping[str, str]
    ) -> str:
        """Return whose word stands for the promises that are missing, after so many times; empty where they are asked for again."""
        if takeover.planned and takeover.old_region not in missing:
            return "the word of the drained region"  # others learn from the lineage
        if takeover.forced and not await self._may_answer(asked, missing):
            return "the operator's word"
        return ""

    async def _beyond(self, takeover: TakeoverBegun) -> Sequence[str]:
        """Return who is up at a later region epoch than this region has followed, and is not given up by the operator's word.

        1. This region promises an epoch to a candidate, which is lost. 2. Another region acts under a lower one, and
        acknowledges. 3. An operator lets this one take over: the other one refuses its question, as one from the past, and what
        it has acknowledged would be cut off as if it were silent (T24). The same where the old region was drained for this one, and
        the other one was let act without asking it.
        """
        if takeover.accepts or takeover.accepts_behind:
            return ()
        return await self._parts.peers.further_on(timeout_ms=self._settings.ask_timeout_ms)

    async def _may_answer(self, asked: int, missing: Mapping[str, str]) -> bool:
        """Return whether to ask again, after so many times: also a region that elects, or gathers, who speaks for it (INV-GTH2)."""
        if asked < self._settings.promise_attempts and self._parts.peers.between_leaders(missing):
            return True
        return asked == 1 and await self._answer_lost(missing)

    async def _answer_lost(self, missing: Mapping[str, str]) -> bool:
        """Return whether a region that gave no promise is up: the operator's word stands for the silent, not for a lost answer."""
        timeout_ms = self._settings.ask_timeout_ms
        return not missing.keys().isdisjoint(
            await self._parts.peers.handshake_with_all(timeout_ms=timeout_ms)
        )

    async def _ask_for_promise(
        self, message: AskPromise
    ) -> tuple[Mapping[str, PromiseAnswer], Mapping[str, str]]:
        while True:
            answered = await self._parts.peers.ask_all(
                message, PromiseAnswer, timeout_ms=self._promise_timeout_ms()
            )
            if not self._outlook.lives.unsure() or self._outlook.lives.aside():
                return answered
            await self._parts.clock.sleep_ms(self._settings.ask_again_ms)

    def _promise_timeout_ms(self) -> int:
        # A region that acts publishes a last tidemark before it promises.
        return self._settings.ask_timeout_ms + self._settings.final_round_timeout_ms

    async def state_loss(
        self, old_region: str, region_epoch: RegionEpoch, *, planned: bool
    ) -> LossStatement:
        """Return what acting now would lose at most."""
        parts = self._parts
        cut = self._outlook.claim()
        logs = parts.role.logs()
        takeover = Takeover(
            domain=parts.domain,
            from_region=old_region,
            to_region=self._outlook.region,
            region_epoch=region_epoch,
            planned=planned,
            last_heard_ms=parts.tidemarks.last_heard_ms(),
        )
        unreadable: list[str] = []
        given_up = given_up_tails(
            parts.quarantine, cut, self._outlook.region, self._current().region_epoch, unreadable
        )
        tail = await stated_tail(logs, cut, parts.quarantine, given_up)
        tail.unreadable += unreadable
        statement = await asyncio.to_thread(  # INV-LO10
            make_statement,
            takeover,
            cut,
            with_tails(bounds_of(logs, cut), given_up),
            tail,
            now_wall_ms=parts.clock.wall_ms(),
            topic_changes=parts.tidemarks.waiting_topic_changes(),
        )
        return _with_bound(statement, parts.tidemarks.lost_here())

    async def cut(self, state: State, effect: CutLogs) -> Event | None:
        """Record the lineage here and at every reachable region, then cut every log to the base."""
        parts = self._parts
        if state.phase is Phase.CUTTING:
            if await self._lacks_more(state):
                return None
            parts.manifest.take_note_of_lost()
        await parts.role.stand_still(
            "this region cuts its logs to a tidemark; it goes on by itself, when each other region has answered or was"
            " waited for"
        )
        # T31: what lags behind the base goes on from where it is, and claims no more than it holds.
        reached = self._reached_of(effect.cut)
        for log in parts.role.logs():
            log.become_mirror()
        if state.phase is Phase.RETURNING:
            show_no_more_than(parts.role.logs(), effect.cut)
        for record in effect.entries:
            await record_lineage(self._outlook, record, learnt=state.phase is Phase.RETURNING)
        if state.phase is Phase.CUTTING:
            # T25: stored at every reachable region; the handshake carries the lineage.
            await parts.peers.handshake_with_all(timeout_ms=self._settings.ask_timeout_ms)
        await self._cut_till_done(partial(self._cut_all, state, effect))
        if state.phase is Phase.RETURNING:
            parts.tidemarks.starts.take_back(effect.cut.point)
        else:
            await parts.tidemarks.starts.keep(effect.cut.point)
        await parts.tidemarks.cut_to(reached)
        if state.phase is Phase.CUTTING:
            return LogsCut(effect.lineage_epoch)
        return Returned(effect.lineage_epoch)

    async def _cut_all(self, state: State, effect: CutLogs) -> None:
        if state.phase is Phase.RETURNING:
            await self._fetch_statements(effect.entries)
        for record, cut in effect.by_entry():
            await self._cut_for(record, cut, state, self._parts.role.logs())
        if self._parts.metadata.image.leadership is not None:
            await self._cut_what_is_void()

    async def _cut_what_is_void(self) -> None:
        """Cut off what other nodes of this region have: nobody is served before (INV-RLD6).

        1. A region copies what was written under a takeover that is passed over later. 2. It lies below the base of the takeover that
        is cut for here. 3. Its followers cut it by the lineage (INV-LNC1), and would wait for this node for ever.
        """
        parts = self._parts
        cuts = LineageCuts(
            LineageCutParts(
                region=self._outlook.region,
                domain=parts.domain,
                logs=parts.role.logs,
                lineage=lambda: lineage_of(self._outlook.domain.lineage),
                quarantine=parts.quarantine,
                clock=parts.clock,
            )
        )
        await cuts.once()

    def _reached_of(self, base: Cut) -> Cut:
        try:
            held = self._outlook.claim()
        except TidemarkError as error:
            _log.warning(
                "what this region holds of tidemark %s is not known: %s", base.point, error
            )
            return base
        return base if held.point >= base.point else held

    async def _cut_for(
        self, record: EntryRecord, cut: Cut, state: State, logs: Iterable[RegionLog]
    ) -> None:
        parts = self._parts
        reason = CutReason(
            domain=parts.domain,
            lineage_epoch=record.region_epoch,
            region=self._outlook.region,
            region_epoch=state.region_epoch,
            acting_region=record.acting_region,
            now_wall_ms=parts.clock.wall_ms(),
        )
        for tail in await cut_logs(logs, cut, reason, parts.quarantine):
            tell_cut(tail)

    async def _fetch_statements(self, entries: tuple[EntryRecord, ...]) -> None:
        for record in entries:
            try:
                known = self._parts.quarantine.statement(self._parts.domain, record.region_epoch)
            except QuarantineDamaged as error:  # it is never written over; `losses` says so, too
                _log.error("a loss statement is kept, and damaged: %s", error)
                continue
            if known is not None or record.acting_region == self._outlook.region:
                continue
            try:
                answer, attached = await self._parts.peers.ask_attached(
                    record.acting_region,
                    AskStatement(domain=self._parts.domain, region_epoch=record.region_epoch),
                    StatementAnswer,
                    timeout_ms=self._settings.ask_timeout_ms,
                )
            except (PeerRefused, PeerUnreachable) as error:
                _log.warning("loss statement of %s not fetched: %s", record.acting_region, error)
                continue
            if answer.found:
                self._keep_fetched(record, attached)

    def _keep_fetched(self, record: EntryRecord, attached: bytes) -> None:
        """Keep a statement that another region sent, if it is that of `record`: where it is kept, it says itself (INV-FS6)."""
        try:
            statement = msgspec.json.decode(attached, type=LossStatement)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning(
                "the loss statement of %s cannot be read, and is not kept: %s: the losses of region epoch %s are listed"
                " here, and held against no statement", record.acting_region, error, record.region_epoch,
            )  # fmt: skip
            return
        if _is_of(statement, self._parts.domain, record):
            self._parts.quarantine.keep_statement(statement)

    async def adopt(self, effect: Adopt) -> Event | None:
        """Make the cut this region's own, up to the first tidemark (T21)."""
        if await self._lacks_more(self._current()):
            return None
        term = await self._own_terms.take(effect.entry.region_epoch)
        await self._cut_till_done(
            partial(self._finish_cuts, effect.entry.region_epoch, self._current())
        )
        base = dict(effect.entry.entry().positions)
        drained = _drained_by(self._current().takeover, effect.entry)
        await self._parts.role.act(
            term,
            adopts=True,
            base=base,
            reason="this region adopts the cut it took over at; it goes on by itself",
            drained=drained,
        )
        return Adopted(effect.entry.region_epoch, self._parts.clock.wall_ms())

    async def _lacks_more(self, state: State) -> bool:
        """Say what a start in the middle of a takeover has found gone; nothing is begun that would take it for empty (T36)."""
        further = lost_since(self._outlook, state.takeover)
        if further:
            await self._parts.role.fence(
                f"{further}: stop this node and give its whole data folder back, or let another region act: tidemark region"
                " failover --to another one"
            )
        return bool(further)

    async def roll_back_drain(self) -> Event:
        """Wait for the promise until the deadline, then write again; at once after a restart."""
        if self.drain_deadline_ms is None:
            return DrainRolledBack("this node was restarted while it was drained")
        while (left_ms := self.drain_deadline_ms - self._parts.clock.monotonic_ms()) > 0:
            await self._parts.clock.sleep_ms(
                left_ms
            )  # which another order of the same region puts off
        return DrainRolledBack("nobody took over in time")


def _is_of(statement: LossStatement, domain: str, record: EntryRecord) -> bool:
    told = statement.domain, statement.region_epoch, statement.base
    return told == (domain, record.region_epoch, record.entry().base)


def _drained_by(takeover: TakeoverBegun | None, entry: EntryRecord) -> RegionEpoch | None:
    """Return the region epoch that a planned switch ended, whose last tidemark covers all that was answered (INV-FD5).

    None for any other takeover: what lay behind the cut is not known then (T22).
    """
    if takeover is None or not takeover.planned or takeover.final is None:
        return None
    epoch, number = takeover.final
    is_its_end = entry.base_region_epoch == epoch and entry.base_number >= number
    return epoch if is_its_end else None


def _not_drained_for(
    takeover: TakeoverBegun, reached: TidemarkPoint, region_epoch: RegionEpoch
) -> str:
    """Return why the last tidemark of a drained region does not cover what was acknowledged; empty where it does, or none was (INV-FS8).

    1. A switch is recorded, and its node dies. 2. Another region acts, and this one, once more, or another one of its region epochs is
    reached here: points compare by the region epoch first, so each of those is beyond that tidemark.
    """
    if takeover.final is None:
        return ""
    final = TidemarkPoint(*takeover.final)
    if reached < final:
        return f"only {reached} was reached, not the final {final}"
    if {reached.region_epoch, region_epoch} != {final.region_epoch}:
        return f"{reached} was reached under region epoch {region_epoch}, and that is not from the final {final}"
    return ""


async def _why_not(cuts: Callable[[], Awaitable[None]]) -> str:
    """Run `cuts`; return why the quarantine took not all of it, empty where it did."""
    try:
        await cuts()
    except OSError as error:
        return str(error) or repr(error)  # never empty: that would say that all is cut
    return ""


def _with_bound(statement: LossStatement, more: str) -> LossStatement:
    if not more:
        return statement
    return msgspec.structs.replace(statement, open_bound=f"{statement.open_bound}. And: {more}")


async def _no_final_point() -> TidemarkPoint:
    raise RoundFailed("nobody publishes tidemarks here")
