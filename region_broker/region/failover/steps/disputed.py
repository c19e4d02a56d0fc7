"""History in dispute: a mirror has shown what this region does not hold (T33).

INV-DP1  at a start no write opens before every mirror that answers has said what it has shown, or was asked for it as often
         as one that does not answer
INV-DP2  a dispute ends by an operator's word only: a takeover there, or the loss accepted here
INV-DP5  while a region acts, its writes close in the very call that hears of a refutation, before the journal has it
Nor where this region's own manifest names logs that are gone (T36). A mirror answers for every log that it holds, also
for those that no tidemark covers yet. A region whose epoch another one has followed from another beginning does not act
(T35).

Not here: the judgement (`geo_replicator.history`), what a mirror does by itself (`geo_replicator.link`), what accepting
the loss gives up (`region.failover.steps.accepting`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from geo_replicator.failover import State
from geo_replicator.failover_events import HistoryRefuted
from geo_replicator.history import NAMED_MAX, HistoryDifference, ShownLog, in_pieces
from geo_replicator.lineage import TidemarkPoint, begun_twice
from idempotency.identity import RegionEpoch
from region_broker.region.failover.log_surgery import key_of
from region_broker.region.failover.messages import SiteStatus
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.peers.history_messages import AskHistory, HistoryPiece, LogEvidence
from region_broker.region.peers.protocol import Hello, PeerRefused, PeerUnreachable

_log: Final = logging.getLogger("tidemark.failover")


@dataclass(frozen=True, slots=True)
class ShownElsewhere:
    """What another region says that it has shown, and what of it this one does not hold."""

    point: TidemarkPoint
    shown: Sequence[ShownLog]
    missing: Sequence[HistoryDifference]


def refutation(
    outlook: Outlook, region: str, point: TidemarkPoint, missing: Sequence[HistoryDifference]
) -> HistoryRefuted:
    """Return the event that closes the writes, with what an operator must know."""
    names = {topic.topic_id: topic.name for topic in outlook.parts.metadata.image.topics.values()}
    named = "; ".join(
        f"{names.get(found.key.topic_id, found.key.topic_id.hex)}-{found.key.partition}, shown there up to"
        f" {found.shown_end}: {found.reason}"
        for found in missing[:NAMED_MAX]
    )
    return HistoryRefuted(
        region=region,
        region_epoch=point.region_epoch,
        number=point.number,
        log_count=len(missing),
        reason=f"region {region} has shown {point}, which this region does not hold ({len(missing)} logs: {named})",
    )


def refuted_by_manifest(outlook: Outlook, state: State) -> HistoryRefuted | None:
    """Return what this region's own disk has lost of its logs; None where all that were made are there (T36)."""
    lost = outlook.parts.manifest.lost()
    if not lost:
        return None
    others = outlook.parts.peers.names()
    return HistoryRefuted(
        region=others[0] if others else outlook.region,
        region_epoch=state.region_epoch,
        number=outlook.known_claim().point.number,
        log_count=len(lost),
        lost_here=True,
        reason=(
            f"region {outlook.region} had logs that are not on its disk any more ({len(lost)}:"
            f" {', '.join(lost[:NAMED_MAX])})"
        ),
    )


def refuted_by_lineage(
    outlook: Outlook, state: State, hellos: Iterable[Hello]
) -> HistoryRefuted | None:
    """Return which region has followed another beginning of this region's epoch than the one here."""
    for hello in hellos:
        if begun_twice(outlook.domain.lineage, hello.lineage, state.region_epoch):
            return HistoryRefuted(
                region=hello.region,
                region_epoch=state.region_epoch,
                number=0,
                log_count=0,
                reason=(
                    f"region {outlook.region} has begun region epoch {state.region_epoch} twice: region {hello.region}"
                    " has followed another beginning of it than the one here, so this data folder was wound back to a"
                    " time before"
                ),
            )
    return None


def choices(outlook: Outlook, state: State) -> str:
    """Return why writes are closed, and what an operator may choose."""
    if state.refuted is not None and state.refuted.lost_here:
        return f"{state.reason}. Writes are closed: {ways_to_lost_logs(outlook, state.refuted)}"
    other = state.refuted.region if state.refuted is not None else "the other region"
    return (
        f"{state.reason}. Writes are closed until an operator chooses: tidemark region failover --to"
        f" {other}, which keeps all that was shown there; or tidemark region accept-loss --at"
        f" {outlook.region}, after which {other} puts what it has beyond into quarantine"
    )


def ways_to_lost_logs(outlook: Outlook, refuted: HistoryRefuted) -> str:
    """Return what an operator may choose where this region's own disk has lost logs."""
    count = max(refuted.log_count, len(outlook.parts.manifest.lost()))
    back = f"stop this node and give its whole data folder back, from a copy made before {count} logs went"
    by_name = (
        "or, where no other region answers that holds anything, and they held records of clients only, give them up by"
        f" name: tidemark region accept-loss --at {outlook.region}"
    )
    if refuted.region == outlook.region:
        return f"{back}; {by_name}"
    return (
        f"tidemark region failover --to {refuted.region}, from which this region then copies them again (not where its"
        " tidemark is 0: it holds nothing; and what it has not copied of other logs goes to quarantine here: tidemark region"
        f" status names the tidemarks of both); or {back}; {by_name}"
    )


async def ask_history(outlook: Outlook, region: str) -> ShownElsewhere:
    """Ask a region what it has shown, and compare; raises `PeerRefused`, `PeerUnreachable`."""
    shown: list[ShownLog] = []
    missing: list[HistoryDifference] = []
    after, point = "", TidemarkPoint(RegionEpoch(0), 0)
    while True:
        piece = await outlook.parts.peers.ask(
            region,
            AskHistory(after=after),
            HistoryPiece,
            timeout_ms=outlook.settings.ask_timeout_ms,
        )
        try:
            logs = [evidence.shown() for evidence in piece.logs]
        except ValueError as error:
            raise PeerRefused(
                "malformed", f"region {region} sent a log key that is none"
            ) from error
        point = TidemarkPoint(piece.reached_region_epoch, piece.number)
        shown += logs
        missing += await outlook.parts.tidemarks.differences(logs)
        if not piece.after:
            return ShownElsewhere(point, shown, missing)
        after = piece.after


class Judged(NamedTuple):
    """What the mirrors that answer say of this region's history."""

    refuted: HistoryRefuted | None
    all_told: bool
    """Whether each of them said what it has shown: a lost answer is none (INV-DP1)."""


async def refuted_by_mirrors(
    outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]
) -> Judged:
    """Return what the first mirror says that has shown more than is here, and whether all have said it (INV-DP1)."""
    if outlook.is_refuted(state.region_epoch):
        return Judged(outlook.refuted, all_told=True)
    all_told = True
    for name, status in sorted(statuses.items()):
        if status.claim.region_epoch != state.region_epoch:
            continue
        try:
            found = await ask_history(outlook, name)
        except (PeerRefused, PeerUnreachable) as error:
            _log.warning("region %s does not tell what it has shown: %s", name, error)
            all_told = False
            continue
        if found.missing and found.point.region_epoch == state.region_epoch:
            return Judged(refutation(outlook, name, found.point, found.missing), all_told)
    return Judged(None, all_told)


async def shown_here(outlook: Outlook, message: AskHistory) -> HistoryPiece:
    """Answer what this region has shown, from the log behind `message.after` on, and where every log ends."""
    cut = outlook.parts.tidemarks.shown_cut()
    held = {key_of(log) for log in outlook.parts.role.logs()}
    keys = [key for key in sorted(held | cut.positions.keys()) if key.encode() > message.after]
    piece = next(in_pieces(keys), [])
    shown = await outlook.parts.tidemarks.evidence(cut, piece)
    return HistoryPiece(
        region_epoch=outlook.domain.region_epoch,
        reached_region_epoch=cut.point.region_epoch,
        number=cut.point.number,
        logs=tuple(map(LogEvidence.of, shown)),
        after=piece[-1].encode() if len(piece) < len(keys) else "",
    )
