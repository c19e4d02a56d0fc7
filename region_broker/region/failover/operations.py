"""What an operator asks for: switch, fail over, and see how it goes and what it costs.

At most one operation runs; a second one is refused with the id of the first. An operation ends only when writes open
here, or when it is certain that they will not by it. Nothing is taken over without the operator's word, unless the old
region was drained (T24). The loss statement is durable before the base is chosen, so before anything is cut.

INV-FOP1  whoever leads next tells an operation as its first node had: what it did, since when, and for how long writes paused; all of
          that is recorded with the takeover
INV-FOP2  a planned switch, also one that a failover tries first, ends where this region has learnt since that another one acts than was
          drained, or may: it follows it, heard of it, or is bound by a promise. Nor does the operator's word, which was given before,
          stand for what acts now

A takeover that a restart, or another node of the region that leads next, finds half-done goes on by itself (`failover.record`);
its operation is shown again under its old id.
Not here: HTTP (`http_api.routes_regions`), the steps (`steps`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from geo_replicator.counted_losses import Losses, Quarantined, count_losses
from geo_replicator.directory import next_region_epoch
from geo_replicator.failover import IllegalTransition, Phase, State
from geo_replicator.failover_events import TakeoverBegun
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.loss import LossStatement
from geo_replicator.quarantine import CutCause, Provenance
from geo_replicator.tidemark import TidemarkError
from idempotency.fencing import EpochExhausted
from idempotency.identity import RegionEpoch
from idempotency.ports import Chance
from region_broker.region.cluster.tail_copies import Elsewhere
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.known_lineage import lineage_of
from region_broker.region.failover.log_surgery import quarantined_tail, there_again
from region_broker.region.failover.messages import (
    AskDrain,
    Drained,
    DrainEnded,
    EndDrain,
    SiteStatus,
)
from region_broker.region.failover.quarantine_store import QuarantineDamaged
from region_broker.region.failover.steps.accepting import (
    kept_from_accepting,
    loss_to_accept,
    may_be_given_up,
)
from region_broker.region.failover.steps.disputed import choices
from region_broker.region.failover.steps.fenced import is_bound
from region_broker.region.peers.protocol import NOT_LEADING, PeerRefused, PeerUnreachable

_log: Final = logging.getLogger("tidemark.failover")
OPERATIONS_KEPT: Final = 100
STEP_CHARS_MAX: Final = 500
"""Of what is recorded of a step."""
_TAKEOVER_PHASES: Final = (Phase.FENCING, Phase.CUTTING, Phase.ADOPTING)


class OperationRefused(Exception):
    """The request cannot be served: `code` is for programs, the text for the operator."""

    def __init__(self, code: str, reason: str) -> None:
        """Keep `code` (kebab-case) beside the text."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


class OperationFailed(Exception):
    """An operation ended without its goal; the text says how things stand now."""


class Operation(msgspec.Struct, kw_only=True):
    """One request of an operator and its progress; times in ms."""

    operation_id: str
    kind: str
    domain: str
    from_region: str
    to_region: str
    status: str = "running"
    phase: str = ""
    steps: list[str] = []
    error: str = ""
    region_epoch: RegionEpoch = RegionEpoch(0)
    started_wall_ms: int = 0
    ended_wall_ms: int = 0
    writes_paused_ms: int = -1
    statement: LossStatement | None = None


class FailoverOperations:
    """Serves operators of one domain at one node."""

    def __init__(self, driver: FailoverDriver, chance: Chance) -> None:
        """Work through `driver`, which must be running."""
        self._driver = driver
        self._parts = driver.parts
        self._settings = driver.settings
        self._chance = chance
        self._operations: dict[str, Operation] = {}
        self._cut_off: list[Operation] = []
        self._losses: dict[Hashable, Losses] = {}
        self.elsewhere: Callable[[], Elsewhere] = Elsewhere
        """Returns what other nodes of the region may have cut off that is not here."""

    @property
    def region(self) -> str:
        """Return this node's region."""
        return self._parts.role.region

    def operation(self, operation_id: str) -> Operation | None:
        """Return an operation, also one that a restart interrupted and that goes on."""
        self._go_on()
        known = self._operations.get(operation_id)
        if known is None and self._driver.running:
            known = self._recorded(operation_id)
        if known is not None and known.status == "running":
            known.phase = self._driver.state.phase.value
        return known

    def _recorded(self, operation_id: str) -> Operation | None:
        """Return an operation that another node, or another life, had begun, as it is recorded (INV-FOP1)."""
        state = self._driver.state
        takeover = state.takeover
        if takeover is not None and takeover.operation_id == operation_id:
            before = list(takewhile(lambda phase: phase is not state.phase, _TAKEOVER_PHASES))
            operation = self._told_by(takeover, before)
            self._watch(operation)
            return operation
        if state.done is None or state.done.takeover.operation_id != operation_id:
            return None
        operation = self._told_by(state.done.takeover, _TAKEOVER_PHASES)
        if state.phase is Phase.ACTING and state.region_epoch == operation.region_epoch:
            self._watch(operation)
        else:  # it has ended, and another one came since
            operation.status, operation.phase = "succeeded", Phase.ACTING.value
            operation.ended_wall_ms = state.done.acted_wall_ms
            operation.writes_paused_ms = _paused_ms(state, operation)
        return operation

    def _told_by(self, takeover: TakeoverBegun, phases: Iterable[Phase]) -> Operation:
        kind = "switch" if takeover.planned else "failover"
        kind = "accept-loss" if takeover.accepts else kind
        operation = self._new(kind, takeover.operation_id, takeover.old_region)
        operation.region_epoch = takeover.region_epoch
        operation.started_wall_ms = takeover.started_wall_ms or operation.started_wall_ms
        operation.steps = [*takeover.steps, *(phase.value for phase in phases)]
        return operation

    def _go_on(self) -> None:
        """Follow again what was cut off as this node began to lead under another leader epoch, as it does in a takeover.

        Of several nodes only; what no takeover was recorded of has ended.
        """
        while self._cut_off and self._driver.running:
            operation = self._cut_off.pop()
            if operation.region_epoch:
                self._watch(operation)
            else:
                self._fail(
                    operation, "failed", "it was cut off before it was recorded; order it again"
                )

    def _watch(self, operation: Operation) -> None:
        work = self._guard(operation, self._follow(operation))
        self._driver.spawn(work, f"operation-{operation.operation_id}")

    async def statement(self) -> LossStatement:
        """Return what a failover to this region would lose at most if it were begun now."""
        self._check_history()
        domain = self._parts.metadata.image.domains[self._parts.domain]
        epoch = await self._would_be_epoch()
        try:
            return await self._driver.steps.state_loss(domain.acting_region, epoch, planned=False)
        except (TidemarkError, QuarantineDamaged, OSError) as error:
            raise OperationRefused("unreadable", f"the loss cannot be stated: {error}") from error

    async def loss_to_accept(self) -> LossStatement:
        """Return what accepting the loss here would give up; raises `OperationRefused`."""
        against = self._refuted_by()
        if why := await kept_from_accepting(self._driver.outlook, against):
            raise OperationRefused("lost-logs", why)
        epoch = await self._would_be_epoch()
        claim = self._driver.outlook.known_claim()
        try:
            stated = await loss_to_accept(self._driver.outlook, against, epoch, claim)
        except (TidemarkError, OSError) as error:
            raise OperationRefused("unreadable", f"the loss cannot be stated: {error}") from error
        base = f"It acts from one more tidemark, which it publishes behind {claim.point} first"
        return msgspec.structs.replace(stated, open_bound=f"{stated.open_bound}. {base}")

    def begin_accept_loss(self, *, confirmed: bool) -> Operation:
        """Begin to act under a new region epoch with what is held here; raises `OperationRefused`."""
        against = self._refuted_by()
        if not confirmed:
            raise OperationRefused(
                "not-confirmed",
                f"accepting the loss gives up what {_given_up(self.region, against)}: read"
                " the loss statement (GET /v1/region/loss-to-accept) and send confirm: true",
            )
        operation = self._begin("accept-loss")
        name = f"operation-{operation.operation_id}"
        work = self._accept_loss(operation, against)
        self._driver.spawn(self._guard(operation, work), name)
        return operation

    def _refuted_by(self) -> str:
        state = self._driver.state
        if state.takeover is not None and state.takeover.accepts:
            raise OperationRefused(
                "busy",
                f"region {self.region} is {state.phase.value}: the loss was accepted, as operation"
                f" {state.takeover.operation_id}, and it goes on with that; see: tidemark region status",
            )
        if state.refuted is None or state.phase not in {Phase.DISPUTED, Phase.FENCED}:
            raise OperationRefused(
                "no-dispute",
                f"region {self.region} is {state.phase.value}: no mirror has shown what it does not"
                " hold, so there is no loss to accept",
            )
        if not state.refuted.lost_here:
            return state.refuted.region
        if not may_be_given_up(self._parts.manifest.lost()):
            raise OperationRefused("lost-logs", choices(self._driver.outlook, state))
        return self.region

    async def _accept_loss(self, operation: Operation, against: str) -> None:
        if why := await kept_from_accepting(self._driver.outlook, against):
            raise OperationFailed(why)
        operation.steps.append(f"giving up what {_given_up(self.region, against)}")
        takeover = TakeoverBegun(
            region_epoch=await self._next_epoch(await self._driver.outlook.statuses()),
            old_region=self.region,
            operation_id=operation.operation_id,
            planned=False,
            forced=True,
            accepts=against,
            gives_up=tuple(self._parts.manifest.lost()) if against == self.region else (),
        )
        await self._take_over(operation, takeover)

    def begin_switch(self) -> Operation:
        """Begin a planned switch to this region; raises `OperationRefused`."""
        operation = self._begin("switch")
        if operation.status == "running":
            name = f"operation-{operation.operation_id}"
            self._driver.spawn(self._guard(operation, self._switch(operation)), name)
        return operation

    def begin_failover(self, *, confirmed: bool, accept_behind: bool = False) -> Operation:
        """Begin an unplanned failover to this region; raises `OperationRefused`.

        `accept_behind`: go on also where another region has reached more, and it cannot be copied from there (T24).
        """
        if not confirmed:
            raise OperationRefused(
                "not-confirmed",
                "a failover may lose what the old region acknowledged and this one never received:"
                " read the loss statement (GET /v1/region/loss-statement) and send confirm: true",
            )
        operation = self._begin("failover")
        if operation.status == "running":
            name = f"operation-{operation.operation_id}"
            self._driver.spawn(
                self._guard(operation, self._failover(operation, accept_behind)), name
            )
        return operation

    def _begin(self, kind: str) -> Operation:
        if not self._driver.running:
            raise OperationRefused(
                "starting",
                f"this node of region {self.region} is starting, or about to stop; try again",
            )
        self._go_on()
        self._check_history()
        state = self._driver.state
        running = next((o for o in self._operations.values() if o.status == "running"), None)
        if running is not None:
            raise OperationRefused(
                "operation-running", f"operation {running.operation_id} is under way; follow it"
            )
        primary_region = self._parts.metadata.image.domains[self._parts.domain].acting_region
        if state.phase is Phase.ACTING and (reason := self._parts.role.reason_not_acting):
            raise OperationRefused(
                "stands-still", f"region {self.region} acted last, and stands still: {reason}"
            )
        operation = self._new(kind, self._chance.uuid().hex, primary_region)
        if state.phase is Phase.ACTING:
            operation.status = "succeeded"
            operation.steps.append(f"region {self.region} acts already")
            operation.region_epoch = state.region_epoch
            operation.ended_wall_ms = operation.started_wall_ms
            return operation
        standing = {Phase.MIRRORING, Phase.FENCED}
        if kind == "accept-loss":
            standing = {Phase.DISPUTED, Phase.FENCED}
        elif state.phase is Phase.DISPUTED:
            del self._operations[operation.operation_id]
            raise OperationRefused("disputed", f"{choices(self._driver.outlook, state)}")
        if state.phase not in standing:
            del self._operations[operation.operation_id]
            raise OperationRefused(
                "busy", f"region {self.region} is {state.phase.value}; try again when it is done"
            )
        return operation

    def _check_history(self) -> None:
        """Refuse for a folder without history (T32): a takeover would act on nothing."""
        if self._driver.state.phase is Phase.UNBORN:
            reason = self._parts.role.reason_not_acting
            raise OperationRefused("unborn", f"region {self.region} cannot take over: {reason}")

    def _new(self, kind: str, operation_id: str, from_region: str) -> Operation:
        while len(self._operations) >= OPERATIONS_KEPT:
            del self._operations[next(iter(self._operations))]
        operation = Operation(
            operation_id=operation_id,
            kind=kind,
            domain=self._parts.domain,
            from_region=from_region,
            to_region=self.region,
            steps=[],
            started_wall_ms=self._parts.clock.wall_ms(),
        )
        self._operations[operation_id] = operation
        return operation

    async def _guard(self, operation: Operation, work: Awaitable[None]) -> None:
        try:
            await work
            operation.status = "succeeded"
        except TimeoutError:
            self._fail(operation, "timed-out", "it did not end in time; ask for its status")
        except (
            OperationFailed, PeerRefused, PeerUnreachable, IllegalTransition, EpochExhausted,
        ) as error:  # fmt: skip
            self._fail(operation, "failed", str(error))
        finally:
            operation.phase = self._driver.state.phase.value
            if operation.status == "running":  # cancelled: whoever leads next goes on with it
                self._cut_off.append(operation)
            else:
                operation.ended_wall_ms = self._parts.clock.wall_ms()

    def _fail(self, operation: Operation, status: str, reason: str) -> None:
        operation.status = status
        operation.error = reason
        _log.warning("%s to %s: %s", operation.kind, operation.to_region, reason)

    async def _switch(self, operation: Operation) -> None:
        paused_at_ms = self._parts.clock.monotonic_ms()
        paused_wall_ms = self._parts.clock.wall_ms()
        takeover = await self._drained_takeover(operation)
        takeover = msgspec.structs.replace(takeover, paused_wall_ms=paused_wall_ms)
        await self._take_over(operation, takeover)
        operation.writes_paused_ms = self._parts.clock.monotonic_ms() - paused_at_ms

    async def _failover(self, operation: Operation, accept_behind: bool) -> None:
        meant = self._driver.state
        statuses = await self._driver.outlook.statuses()
        old = statuses.get(operation.from_region)
        # One that drains may do so for this region, by an earlier order.
        up = old is not None and (old.acting or old.phase == Phase.DRAINING)
        if old is not None and up and self._driver.state.phase is Phase.MIRRORING:
            operation.steps.append(f"region {old.region} is reachable: draining it first")
            try:
                await self._switch(operation)
            except (OperationFailed, PeerRefused, PeerUnreachable, TimeoutError) as error:
                operation.steps.append(f"no planned way ({error}): going on without it")
                await self._driver.until(lambda s: s.phase in {Phase.MIRRORING, Phase.FENCED})
            else:
                return
        epoch = await self._next_epoch(statuses)
        if overtaken := _learnt_since(meant, self._driver.state):
            raise OperationFailed(f"{overtaken}. Order it again, if that region is to be replaced")
        takeover = TakeoverBegun(
            region_epoch=epoch,
            old_region=operation.from_region,
            operation_id=operation.operation_id,
            planned=False,
            forced=True,
            accepts_behind=accept_behind,
        )
        await self._take_over(operation, takeover)

    async def _drained_takeover(self, operation: Operation) -> TakeoverBegun:
        old_region, timeout_ms = operation.from_region, self._settings.switch_timeout_ms
        operation.steps.append(f"draining region {old_region}")
        question = AskDrain(
            operation_id=operation.operation_id, to_region=self.region, timeout_ms=timeout_ms
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                drained = await self._ask_drain(old_region, question)
                final = TidemarkPoint(drained.region_epoch, drained.number)
                operation.steps.append(f"waiting to reach the final {final}")
                while not (self._has_followed_to(final) or self._overtaken(final)):
                    await self._parts.clock.sleep_ms(self._settings.reach_poll_ms)
                epoch = await self._next_epoch(await self._driver.outlook.statuses())
        except (TimeoutError, PeerUnreachable) as error:
            then = await self._give_back(operation)
            why = str(error) or f"{timeout_ms // 1000} s; `tidemark region status` says what keeps region {self.region} behind"  # fmt: skip
            reason = f"region {old_region} was not reached up to its last tidemark in time: {why}"
            raise OperationFailed(f"{reason}. {then}") from error
        except EpochExhausted as error:
            raise OperationFailed(f"{error}. {await self._give_back(operation)}") from error
        overtaken = self._overtaken(final)
        if overtaken or not self._has_followed_to(final):
            why = overtaken or f"the last tidemark of region {old_region} was not reached here"
            raise OperationFailed(f"{why}. {await self._give_back(operation)}")
        return TakeoverBegun(
            region_epoch=epoch,
            old_region=old_region,
            operation_id=operation.operation_id,
            planned=True,
            forced=False,
            final=(final.region_epoch, final.number),
        )

    async def _ask_drain(self, old_region: str, question: AskDrain) -> Drained:
        """Return the answer of whoever leads the region; one that elects, or gathers, is asked again (INV-GTH2). Raises as `ask`."""
        timeout_ms, left = self._settings.switch_timeout_ms, self._settings.promise_attempts
        while True:
            try:
                return await self._parts.peers.ask(
                    old_region, question, Drained, timeout_ms=timeout_ms
                )
            except PeerRefused as refused:
                left -= 1
                if refused.code != NOT_LEADING or not left:
                    raise
            await self._parts.clock.sleep_ms(self._settings.poll_ms)

    def _has_followed_to(self, final: TidemarkPoint) -> bool:
        """Whether all that the final tidemark covers is here: its records, and the changes of topics before it."""
        return (
            self._driver.outlook.known_claim().point >= final
            and self._parts.tidemarks.follows_topics()
        )

    def _overtaken(self, final: TidemarkPoint) -> str:
        """Return why the region that was drained is not the one to take over from any more, empty where it is (INV-FOP2).

        1. A switch waits for the last tidemark of the primary. 2. A failover lets another region act. 3. This one follows it:
        what it reaches is later than that tidemark, and says nothing of what the other one has acknowledged beyond it.
        """
        state = self._driver.state
        if acts := _acts_since(state, final.region_epoch):
            return acts
        # A promise in vain stays recorded where this region mirrors again; that its candidate has given up is known to the process that heard it.
        bound = state.phase is Phase.FENCED and is_bound(
            self._driver.outlook, state, final.region_epoch
        )
        return _promised(state) if bound else ""

    async def _give_back(self, operation: Operation) -> str:
        """Let the old region take writes again, and return what is known of that."""
        message = EndDrain(operation_id=operation.operation_id, reason="the switch was given up")
        try:
            told = await self._parts.peers.ask(
                operation.from_region,
                message,
                DrainEnded,
                timeout_ms=self._settings.ask_timeout_ms,
            )
        except PeerRefused as error:
            _log.warning("the drained region has ended its drain by itself: %s", error)
            return "It has ended its drain by itself; see: tidemark region status"
        except PeerUnreachable as error:
            _log.warning("the drained region ends its drain by itself in time: %s", error)
            return (
                "Nothing was changed here, and it does not answer: if it lives, it takes writes again by itself;"
                f" if it is lost: tidemark region failover --to {operation.to_region}"
            )
        else:
            if not told.acting:
                return "It does not take writes now; see: tidemark region status"
        return "It takes writes again."

    async def _next_epoch(self, statuses: Mapping[str, SiteStatus]) -> RegionEpoch:
        """Return an epoch above all that anybody knows of; raises `EpochExhausted` where there is none (INV-F3)."""
        image = self._parts.metadata.image
        known = [
            self._driver.state.highest_epoch_known,
            image.domains[self._parts.domain].region_epoch,
            *(status.region_epoch for status in statuses.values()),
            *(status.promised_epoch for status in statuses.values()),
            *(status.highest_epoch_known for status in statuses.values()),
        ]
        return next_region_epoch(known, image.regions[self.region].ordinal)

    async def _would_be_epoch(self) -> RegionEpoch:
        """Return under which epoch this region would act by what it knows itself; raises `OperationRefused`."""
        try:
            return await self._next_epoch({})
        except EpochExhausted as error:
            raise OperationRefused("no-region-epoch-left", str(error)) from error

    async def _take_over(self, operation: Operation, takeover: TakeoverBegun) -> None:
        operation.region_epoch = takeover.region_epoch
        operation.steps.append(f"fencing under region epoch {takeover.region_epoch}")
        takeover = msgspec.structs.replace(
            takeover,
            steps=tuple(step[:STEP_CHARS_MAX] for step in operation.steps),
            started_wall_ms=operation.started_wall_ms,
        )
        state = self._driver.state
        higher = state.highest_epoch_known >= takeover.region_epoch
        if higher or not await self._driver.record(takeover, expected=state):
            raise OperationFailed(
                f"region {self.region} learned of a higher region epoch meanwhile, or is taken over"
                f" already: it is {self._driver.state.phase.value}; see: tidemark region status"
            )
        await self._follow(operation)

    async def _follow(self, operation: Operation) -> None:
        state, wanted = self._driver.state, operation.region_epoch
        while not _is_over(state, wanted):
            operation.phase = state.phase.value
            if not operation.steps or operation.steps[-1] != state.phase.value:
                operation.steps.append(state.phase.value)
            state = await self._next_state(state)
        try:
            operation.statement = self._parts.quarantine.statement(self._parts.domain, wanted)
        except QuarantineDamaged as error:
            operation.steps.append(f"the loss statement cannot be shown: {error}")
        if not (state.phase is Phase.ACTING and state.region_epoch == wanted):
            raise OperationFailed(
                f"the takeover was given up: {state.reason}. Region {self.region} is"
                f" {state.phase.value}; see: tidemark region status"
            )
        while not self._parts.role.acting and self._driver.state is state:
            await self._parts.clock.sleep_ms(1)
        operation.steps.append(f"region {self.region} takes writes")
        operation.writes_paused_ms = _paused_ms(state, operation)

    async def _next_state(self, state: State) -> State:
        return await self._driver.until(lambda now: now is not state)

    async def losses(self) -> list[Losses]:
        """Return the losses of every takeover that this region has quarantined tails of.

        A tail that is not what its provenance says is named in its losses; what may be at other nodes, `elsewhere` says. Raises `OperationRefused` where a provenance
        cannot be read.
        """
        try:
            return await self._count_losses()
        except (QuarantineDamaged, OSError) as error:
            raise OperationRefused("quarantine-damaged", str(error)) from error

    async def _count_losses(self) -> list[Losses]:
        found: dict[tuple[str, RegionEpoch, CutCause], list[Provenance]] = {}
        for tail in self._parts.quarantine.tails():
            key = tail.domain, tail.lineage_epoch, self._parts.quarantine.cause_of(tail)
            found.setdefault(key, []).append(tail)
        return [await self._losses_of(*key, found[key]) for key in sorted(found)]

    async def _losses_of(
        self, domain: str, epoch: RegionEpoch, cause: CutCause, tails: Sequence[Provenance]
    ) -> Losses:
        statement = None
        if cause is CutCause.LINEAGE:
            statement = self._parts.quarantine.statement(domain, epoch)
        # Quarantine is immutable: what was counted once stays counted, until more is moved in.
        is_all = not self.elsewhere().may_hold_more
        complete = self._driver.state.phase not in {Phase.CUTTING, Phase.RETURNING}
        names = tuple((tail.key, tail.edition) for tail in tails)
        image = self._parts.metadata.image
        elected_clean = image.leadership is not None and image.leadership.unclean == 0
        lineage = lineage_of(image.domains[domain].lineage)
        passed_over = lineage.was_passed_over(epoch)
        is_held = there_again(lineage, self._parts.role.logs()) if passed_over else None
        key = domain, epoch, cause, statement is not None, complete, is_all, elected_clean, names
        if (
            passed_over or key not in self._losses
        ):  # what is there again changes while this region copies
            quarantined = Quarantined(
                domain=domain,
                lineage_epoch=epoch,
                region=self.region,
                base_region_epoch=tails[0].base_region_epoch,
                base_number=tails[0].base_number,
                tail=await quarantined_tail(
                    self._parts.quarantine, tails, is_held, elected_clean=elected_clean
                ),
                exact=is_all and all(tail.acting_region != self.region for tail in tails),
                complete=complete and is_all and not passed_over,
                cause=cause,
            )
            self._losses[key] = await asyncio.to_thread(count_losses, quarantined, statement)
        return self._losses[key]


def _learnt_since(meant: State, state: State) -> str:
    """Return who acts, or may, that did not when the operator's word was given; empty for nobody (INV-FOP2)."""
    promised = (
        state.promise != meant.promise
        and state.promise.candidate not in {"", state.region}
        and state.promise.region_epoch > _newest_heard(state)  # or it is of a takeover long ago
    )
    return _acts_since(state, _newest_heard(meant)) or (_promised(state) if promised else "")


def _acts_since(state: State, region_epoch: RegionEpoch) -> str:
    """Return who is known to act, or to have acted, under a later region epoch than this one; empty for nobody."""
    newest = _newest_heard(state)
    if newest <= region_epoch:
        return ""
    return f"region {state.acting_region} acts under region epoch {newest} by now"


def _newest_heard(state: State) -> RegionEpoch:
    unseen = (entry.region_epoch for entry in state.unseen)
    return max(state.region_epoch, state.heard_region_epoch, *unseen)


def _promised(state: State) -> str:
    promise = state.promise
    return (
        f"region {promise.candidate} was promised region epoch {promise.region_epoch}, and may act"
    )


def _paused_ms(state: State, operation: Operation) -> int:
    """Return for how long writes paused by the wall clocks of the nodes that began and ended it, -1 where that is not recorded."""
    done = state.done
    if done is None or done.takeover.operation_id != operation.operation_id:
        return -1
    paused_wall_ms = done.takeover.paused_wall_ms
    return max(0, done.acted_wall_ms - paused_wall_ms) if paused_wall_ms else -1


def _is_over(state: State, wanted: RegionEpoch) -> bool:
    if state.phase is Phase.ACTING:
        return True
    return state.takeover is None or state.takeover.region_epoch != wanted


def _given_up(region: str, against: str) -> str:
    if against == region:
        return "the disk of this region has lost"
    return f"region {against} has shown beyond this region"
