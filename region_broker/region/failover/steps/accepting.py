"""What accepting a loss gives up: what other regions hold beyond this one (T33 b), or logs that its disk has lost (T36).

INV-AL1  the statement names all that the mirror holds beyond this region, as it says itself: what it has shown, and what
         it had copied behind that, which this region's lost life had acknowledged, too
INV-AL2  where both histories part is found by bytes, not by lengths or leader epochs: a region that was wound back writes
         other records under the same numbers
INV-AL3  what cannot be named is told: a region that does not answer, a log that cannot be read
A lost log goes on, empty, where the newest tidemark ends it: no offset that a tidemark covers is given to another
record. Only where no other region answers that may hold it, and where it held records of clients: what a ledger said
cannot be done without. A region that answers may hold a lost log unless it says that it has shown nothing at all, and
has no records of it: a failover to a region that was emptied would give up all that is here. The order means the logs
that were lost when it was given, and holds while no region that may hold them answers: a restart in the middle that
finds more gone, or such a region up again, gives up nothing. A region that speaks to this one answers, also where this
one cannot reach it.

Not here: who is in dispute, and why (`region.failover.steps.disputed`), where the mirror cuts (`log_surgery`, `geo_replicator.link`).
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from geo_replicator.failover_events import TakeoverBegun
from geo_replicator.history import NAMED_MAX, HistoryDifference, ShownLog, beyond_shown
from geo_replicator.known_lives import SILENT_MS
from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint
from geo_replicator.link.comparing import shared_ends
from geo_replicator.loss import (
    LogBound,
    LossStatement,
    Takeover,
    make_statement,
    troubles,
)
from geo_replicator.ports import LinkFailed
from geo_replicator.tail import Tail
from geo_replicator.tidemark import TidemarkError
from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import INTERNAL_TOPICS
from region_broker.log.failures import LogError
from region_broker.region.failover.log_surgery import bounds_of, key_of, tail_beyond
from region_broker.region.failover.steps.disputed import ask_history
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.peers.history_messages import (
    AskBeyond,
    AskHeld,
    BeyondStated,
    HistoryJudged,
    LogDifference,
    LogEvidence,
)
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from region_broker.region.peers.sessions import Reply
from region_broker.region.ports import RegionLog

_UNNAMED: Final = (PeerRefused, PeerUnreachable, LinkFailed)


def may_be_given_up(lost: Sequence[str]) -> bool:
    """Return whether these lost logs may be given up by name: what a ledger said cannot be done without."""
    topics = {name.rpartition("-")[0] for name in lost}
    return bool(topics) and not topics & set(INTERNAL_TOPICS)


async def kept_from_accepting(outlook: Outlook, against: str) -> str:
    """Return why the loss is not accepted now; empty where it may be: lost logs only where nobody may hold them."""
    if against != outlook.region:
        return ""
    settings, clock = outlook.settings, outlook.parts.clock
    began_ms = clock.monotonic_ms()
    holding_nothing: set[str] = set()
    for _ in range(settings.confirm_attempts):  # one answer that is lost is no silence
        for other in await outlook.parts.peers.answering(timeout_ms=settings.ask_timeout_ms):
            if not await _holds_nothing(outlook, other):
                return _held_elsewhere(other)
            holding_nothing.add(other)
        if outlook.parts.peers.names():
            await clock.sleep_ms(settings.confirm_pause_ms)
    return await _heard_though_not_reached(outlook, began_ms, holding_nothing)


async def _heard_though_not_reached(outlook: Outlook, began_ms: int, but: Collection[str]) -> str:
    """Return why nothing is given up where a region that cannot be reached from here speaks to this one.

    Whoever spoke lately is listened to until it was silent for `SILENT_MS`: its link comes again before that if it lives.
    """
    clock = outlook.parts.clock
    while True:
        heard = {name: at for name, at in outlook.heard_ms.items() if name not in but}
        for name in sorted(heard):
            if heard[name] >= began_ms:
                return _held_elsewhere(name)
        if clock.monotonic_ms() - max(heard.values(), default=-SILENT_MS) >= SILENT_MS:
            return ""
        await clock.sleep_ms(outlook.settings.confirm_pause_ms)


async def _holds_nothing(outlook: Outlook, region: str) -> bool:
    """Return whether a region says that it has shown nothing, and has no record of what is lost here."""
    try:
        found = await ask_history(outlook, region)
    except (PeerRefused, PeerUnreachable):
        return False
    lost = {key_of(log) for log in _logs_lost(outlook)}
    return found.point == BEFORE_ALL and not any(
        log.cut_offset > 0 or (log.key in lost and log.end_offset > 0) for log in found.shown
    )


async def kept_from_giving_up(outlook: Outlook, takeover: TakeoverBegun) -> str:
    """Return why a takeover gives up no logs now, also after a restart in the middle of it; empty to go on.

    1. The order is durable, and the node dies. 2. A region that may hold the log is up again, or a second log is gone at the
    next start: the order meant neither.
    """
    if takeover.accepts != outlook.region:
        return ""
    further = lost_since(outlook, takeover)
    if further:
        return f"nothing is given up: {further}"
    return await kept_from_accepting(outlook, takeover.accepts)


def lost_since(outlook: Outlook, takeover: TakeoverBegun | None) -> str:
    """Return what this region has lost beyond what the operator gave up in this takeover; empty for nothing."""
    named = () if takeover is None else takeover.gives_up
    further = [name for name in outlook.parts.manifest.lost() if name not in named]
    if not further:
        return ""
    return (
        f"region {outlook.region} has lost more logs since it began to take over ({len(further)}:"
        f" {_named(further)})"
    )


async def promised_meanwhile(
    outlook: Outlook, takeover: TakeoverBegun, promised: Collection[str]
) -> str:
    """Return why no logs are given up once regions have promised: one that was silent answers now."""
    if takeover.accepts == outlook.region:
        for other in sorted(promised):
            if not await _holds_nothing(outlook, other):
                return _held_elsewhere(other)
    return ""


def _held_elsewhere(other: str) -> str:
    return (
        f"nothing is given up: region {other} answers, and may hold what is lost here: tidemark region failover --to"
        f" {other}. Where it holds less than this region, stop its node first, and give the order again"
    )


def begin_lost_logs_anew(outlook: Outlook) -> None:
    """Let the lost logs go on, empty, behind what the newest tidemark covers; again after a crash. Raises TidemarkError."""
    for log, offset in _lost_logs(outlook):
        log.start_at(offset)


def _logs_lost(outlook: Outlook) -> list[RegionLog]:
    lost = set(outlook.parts.manifest.lost())
    return [log for log in outlook.parts.role.logs() if str(log.tp) in lost]


def lost_to_mirrors(outlook: Outlook) -> Sequence[str]:
    """Return the logs that are lost here, empty where no tidemark covers a record of any: then no mirror has shown one.

    What cannot be told counts as covered: `__tidemarks` may be among what is lost.
    """
    lost = outlook.parts.manifest.lost()
    if not lost:
        return lost
    try:
        newest = outlook.parts.tidemarks.newest_cut()
    except TidemarkError:
        return lost
    logs = _logs_lost(outlook)
    uncovered = [log for log in logs if newest.position_of(key_of(log)) == 0]
    return [] if newest.point != BEFORE_ALL and len(uncovered) == len(lost) else lost


def _lost_logs(outlook: Outlook) -> list[tuple[RegionLog, int]]:
    newest = outlook.parts.tidemarks.newest_cut()
    return [(log, newest.position_of(key_of(log))) for log in _logs_lost(outlook)]


async def _lost_stated(outlook: Outlook, takeover: Takeover, claim: Cut) -> LossStatement:
    named = _named(f"{log.tp} (it goes on at {offset})" for log, offset in _lost_logs(outlook))
    stated = make_statement(takeover, claim, [], Tail(), now_wall_ms=outlook.parts.clock.wall_ms())
    said = f"all records of {named}: they are not on this disk any more, nor what was acknowledged behind the last tidemark"
    answers = await outlook.parts.peers.answering(timeout_ms=outlook.settings.ask_timeout_ms)
    if answers:
        said += f". Region {', '.join(answers)} answers, and holds nothing of them"
    silent = [name for name in outlook.parts.peers.names() if name not in answers]
    if silent:
        said += (
            f". Region {', '.join(silent)} does not answer. What it holds of them goes with the next tidemark that it"
            " reaches: save it first, if it is still there (tidemark log export)"
        )
    return msgspec.structs.replace(stated, open_bound=said, accepted=True)


async def loss_to_accept(
    outlook: Outlook, against: str, region_epoch: RegionEpoch, claim: Cut
) -> LossStatement:
    """Return what region `against` holds beyond this one, as it says itself (INV-AL1), and who else does.

    Against the region itself: what its own disk has lost.
    """
    takeover = Takeover(
        domain=outlook.parts.domain,
        from_region=against,
        to_region=outlook.region,
        region_epoch=region_epoch,
        planned=False,
        last_heard_ms=0,
    )
    if against == outlook.region:
        return await _lost_stated(outlook, takeover, claim)
    try:
        stated = await _stated_by(outlook, takeover)
        said = [
            (
                f"what region {against} holds beyond this region: all of it that can be read is named here, and goes to"
                " quarantine there"
            ),
            *_never_shown(stated),
            *_unreadable(stated),
            *_not_compared(outlook, against),
        ]
    except _UNNAMED as error:
        stated = make_statement(
            takeover, claim, [], Tail(), now_wall_ms=outlook.parts.clock.wall_ms()
        )
        said = [
            (
                f"everything that region {against} holds beyond this region, which cannot be named now:"
                f" {error}. It goes to quarantine there, and is then listed by: tidemark region losses"
            )
        ]
    for other in outlook.parts.peers.names():
        if other != against:
            said += await _also_held(outlook, takeover, other)
    return msgspec.structs.replace(
        stated,
        tidemark_region_epoch=claim.point.region_epoch,
        tidemark_number=claim.point.number,
        open_bound="; ".join(said),
        accepted=True,
    )


def _never_shown(stated: LossStatement) -> list[str]:
    """Return what of a mirror's tail no tidemark had confirmed to its readers."""
    held = [
        (bound, max(bound.cut, bound.shown_end))
        for bound in stated.bounds
        if bound.topic not in INTERNAL_TOPICS and bound.copied_end > max(bound.cut, bound.shown_end)
    ]
    if not held:
        return []
    named = _named(f"{_place(bound)} from {start} to {bound.copied_end}" for bound, start in held)
    return [
        f"of it, region {stated.from_region} has copied what it has not shown to its readers yet: {named}"
    ]


def _not_compared(outlook: Outlook, against: str) -> list[str]:
    """Return which logs cannot be read here: by its length alone such a log may seem to hold what it does not."""
    stopped = [log for log in outlook.parts.role.logs() if log.failed is not None]
    if not stopped:
        return []
    named = _named(f"{log.tp} ({log.failed})" for log in stopped)
    return [
        (
            f"what cannot be read in this region is not compared, so what region {against} holds below its end may be"
            f" lost, too, and is not named: {named}"
        )
    ]


async def _also_held(outlook: Outlook, takeover: Takeover, other: str) -> list[str]:
    """Return what a further region holds beyond this one; its tail goes to quarantine there, too."""
    listed = (
        f"It goes to quarantine there, and is then listed by: tidemark region losses at {other}"
    )
    try:
        stated = await _stated_by(outlook, replace(takeover, from_region=other))
    except _UNNAMED as error:
        return [
            f"what region {other} holds beyond this region cannot be named now: {error}. {listed}"
        ]
    held = [
        f"{_place(bound)} from {bound.cut} to {bound.copied_end}"
        for bound in stated.bounds
        if bound.topic not in INTERNAL_TOPICS and bound.copied_end > bound.cut
    ]
    commits = stated.transaction_count
    if not held and not commits:
        return _unreadable(stated)
    return [
        f"region {other} holds beyond this region, too: {commits} committed transactions, {_named(held)}. {listed}",
        *_unreadable(stated),
    ]


def _unreadable(stated: LossStatement) -> list[str]:
    return [stated.open_bound] if stated.open_bound else []


def _named(held: Iterable[str]) -> str:
    places = list(held)
    more = len(places) - NAMED_MAX
    return ", ".join(places[:NAMED_MAX]) + (f" and {more} logs more" if more > 0 else "")


def _place(bound: LogBound) -> str:
    return f"{bound.topic}-{bound.partition}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A region that is asked which of these logs it holds (`link.comparing.OtherRegion`)."""

    outlook: Outlook
    region: str

    async def show_history(
        self, _point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        """Return what it does not hold; raises `PeerRefused`, `PeerUnreachable`."""
        judged = await self.outlook.parts.peers.ask(
            self.region,
            AskHeld(logs=tuple(map(LogEvidence.of, shown))),
            HistoryJudged,
            timeout_ms=self.outlook.settings.ask_timeout_ms,
        )
        try:
            found = [each.difference() for each in judged.differences]
        except ValueError as error:
            raise PeerRefused(
                "malformed", f"region {self.region} sent a log key that is none"
            ) from error
        if wrong := beyond_shown(found, shown):
            raise PeerRefused("malformed", f"region {self.region} {wrong}")  # INV-HPR1
        return found


async def _parting(outlook: Outlook, region: str) -> dict[LogKey, int]:
    """Return where each log that `region` holds goes on beyond what is held here (INV-AL2)."""
    shown = {log.key: log for log in (await ask_history(outlook, region)).shown}
    there = {key: log.end_offset for key, log in shown.items()}
    here = {key_of(log): log for log in outlook.parts.role.logs() if key_of(log) in there}
    ends = {key: log.high_watermark for key, log in here.items()}
    readable = {key: end for key, end in ends.items() if here[key].failed is None}
    shared = await shared_ends(_Asked(outlook, region), outlook.parts.tidemarks, readable)
    deleted = outlook.parts.metadata.image.may_have_deleted
    return {
        key: shared.get(key, min(end, ends.get(key, 0)))
        for key, end in there.items()
        if key in here or not deleted(key.topic_id, shown[key].written_under)
    }


async def _stated_by(outlook: Outlook, takeover: Takeover) -> LossStatement:
    positions = await _parting(outlook, takeover.from_region)
    _, attached = await outlook.parts.peers.ask_attached(
        takeover.from_region,
        AskBeyond(
            domain=takeover.domain,
            region_epoch=takeover.region_epoch,
            for_region=takeover.to_region,
            positions={key.encode(): end for key, end in positions.items()},
        ),
        BeyondStated,
        timeout_ms=outlook.settings.final_round_timeout_ms,
    )
    try:
        return msgspec.json.decode(attached, type=LossStatement)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerRefused("malformed", f"the statement is not readable: {error}") from error


async def held_here(outlook: Outlook, message: AskHeld) -> HistoryJudged:
    """Answer which of these logs this region does not hold so far."""
    try:
        logs = [evidence.shown() for evidence in message.logs]
    except ValueError as error:
        raise PeerRefused("malformed", f"a log key is none: {error}") from error
    found = await outlook.parts.tidemarks.differences(logs)
    return HistoryJudged(differences=tuple(map(LogDifference.of, found)))


async def state_beyond(outlook: Outlook, message: AskBeyond) -> Reply:
    """Answer what this region holds at and beyond the positions, as a loss statement; `open_bound`: what is unreadable."""
    parts = outlook.parts
    try:
        positions = {LogKey.decode(key): end for key, end in message.positions.items()}
    except ValueError as error:
        raise PeerRefused("malformed", f"a log key is none: {error}") from error
    logs = [log for log in parts.role.logs() if key_of(log) in positions]
    cut = Cut(BEFORE_ALL, positions)
    try:
        tail = await tail_beyond(logs, cut)
        shown = parts.tidemarks.shown_cut()
    except (LogError, TidemarkError) as error:
        raise PeerRefused("log-failed", f"what lies beyond cannot be read: {error}") from error
    takeover = Takeover(
        domain=message.domain,
        from_region=outlook.region,
        to_region=message.for_region,
        region_epoch=message.region_epoch,
        planned=False,
        last_heard_ms=0,
    )
    bounds = [
        msgspec.structs.replace(bound, shown_end=shown.position_of(key_of(log)))
        for log, bound in zip(logs, bounds_of(logs, cut), strict=True)
    ]
    stated = await asyncio.to_thread(  # INV-LO10
        make_statement, takeover, cut, bounds, tail, now_wall_ms=parts.clock.wall_ms()
    )
    unreadable = "; ".join([*troubles(bounds), *tail.unreadable])
    stated = msgspec.structs.replace(stated, open_bound=unreadable)
    return Reply(BeyondStated(), [msgspec.json.encode(stated)])
