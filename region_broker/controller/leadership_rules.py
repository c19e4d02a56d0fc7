"""What each election, and each change of an in-sync set, is judged by: the same for the main group and for data groups.

Not here: what they change (`cluster_leadership`, `spread_leadership`).
"""

from collections.abc import Iterable
from typing import Final

from idempotency.fencing import (
    FIRST_TERM_COUNTER,
    LEADER_COUNTER_MAX,
    leader_counter_of,
    leader_epoch,
    region_epoch_of,
)
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_commands import ChangeGroupInSync, ChangeInSync
from region_broker.controller.cluster_image import NO_LEADERSHIP, Leadership
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.controller.refusals import NOT_ACTING, CommandRefused

KEPT_FOR_MAIN: Final = 1_000
"""So many of a region epoch's leader epochs, the last ones, no data group takes (INV-SPR5)."""


def judge_version(leadership: Leadership | None, expected_version: int) -> None:
    """Raise `CommandRefused` unless the row has that version."""
    present = leadership.version if leadership else NO_LEADERSHIP
    if present != expected_version:
        raise CommandRefused(
            "leadership-changed",
            f"who leads, or who is in sync, has changed meanwhile (version {present}, not {expected_version}): look again",
        )


def judge_leader_epoch(image: MetadataImage, leader_epoch: LeaderEpoch) -> None:
    """Raise `CommandRefused` unless the leader epoch is of the present region epoch, and newer than all (INV-MH1)."""
    domain = image.domains.get(DEFAULT_DOMAIN)
    if domain is None:
        raise CommandRefused(
            "unknown-domain",
            "this region has no domain yet, whose logs could be led: start it with its whole configuration",
        )
    if region_epoch_of(leader_epoch) != domain.region_epoch:  # T19
        raise CommandRefused(
            "other-region-epoch",
            f"leader epoch {leader_epoch} is not of region epoch {domain.region_epoch}, which is the present one: take one of that",
        )
    if leader_epoch <= image.last_leader_epoch:  # INV-MH1
        raise CommandRefused(
            "leader-epoch-taken",
            f"leader epoch {leader_epoch} is not newer than {image.last_leader_epoch}: take the next one",
        )


def judge_eligible(image: MetadataImage, member: Member) -> None:
    """Raise `CommandRefused` unless the member is registered, heard, and not about to stop (KIP-841)."""
    node = image.nodes.get(member.node_id)
    if node is None:
        raise CommandRefused(
            "unknown-node",
            f"no node {member.node_id} is registered in this region: start it, it registers itself",
        )
    if node.incarnation != member.incarnation:
        raise CommandRefused(
            "other-incarnation",
            f"node {member.node_id} is registered with another data folder ({node.member}, not {member}): give the former folder"
            " back, or look again and name the present one",
        )
    if node.fenced:
        raise CommandRefused(
            "node-fenced",
            f"node {member.node_id} is not heard: start it, or mend its network, it is let in by itself",
        )
    if node.draining:
        raise CommandRefused(
            "node-draining",
            f"node {member.node_id} was drained, by tidemark cluster drain or as it stops, and takes nothing on until it is started"
            " anew: restart it, or name another node",
        )


def judge_leads(
    image: MetadataImage, row: Leadership | None, leader: Member, leader_epoch: LeaderEpoch
) -> Leadership:
    """Return the row, which `leader` leads under that leader epoch and the present region epoch; raises `CommandRefused` (INV-MH6)."""
    domain = image.domains.get(DEFAULT_DOMAIN)
    if row is None or (row.leader, row.leader_epoch) != (leader, leader_epoch):
        raise CommandRefused(
            "not-the-leader",
            f"{leader} does not lead under leader epoch {leader_epoch} (any more): it stops leading, and follows whom the metadata name",
        )
    if domain is None or region_epoch_of(leader_epoch) != domain.region_epoch:
        raise CommandRefused(
            "other-region-epoch",
            f"leader epoch {leader_epoch} is of a former region epoch: wait for the election under the present one",
        )
    return row


def judged_in_sync(
    image: MetadataImage, row: Leadership, command: ChangeInSync | ChangeGroupInSync
) -> tuple[Member, ...]:
    """Return the in-sync set, sorted, that the leader of `row` asks for; raises `CommandRefused`."""
    in_sync = tuple(sorted(set(command.in_sync)))
    if command.leader not in in_sync:
        raise CommandRefused(
            "leader-not-in-sync",
            f"the leader {command.leader} is always in sync with itself, so the set is never empty: name it, too",
        )
    for member in in_sync:
        if member not in row.in_sync:
            judge_eligible(image, member)
    return in_sync


def names(members: Iterable[Member]) -> str:
    """Return members as people read them."""
    return ", ".join(str(member) for member in members)


def next_leader_epoch(image: MetadataImage, region_epoch: RegionEpoch) -> LeaderEpoch:
    """Return the leader epoch after all that this region took under `region_epoch`; raises `EpochExhausted`."""
    last = image.last_leader_epoch
    if last >= 0 and region_epoch_of(last) == region_epoch:
        return leader_epoch(region_epoch, leader_counter_of(last) + 1)
    return leader_epoch(region_epoch, FIRST_TERM_COUNTER)


def is_kept_for_main(leader_epoch: LeaderEpoch) -> bool:
    """Return whether no data group takes that leader epoch (INV-SPR5)."""
    return leader_counter_of(leader_epoch) > LEADER_COUNTER_MAX - KEPT_FOR_MAIN


# --- wishes of who leads ---


def led_under(image: MetadataImage, member: Member) -> LeaderEpoch | None:
    """Return under which leader epoch the member leads the region's logs, to be judged by `judge_still_led`; None where nobody is elected.

    Raises `CommandRefused` where another one leads, or nobody does now.
    """
    leadership = image.leadership
    if leadership is None:
        return None
    if leadership.leader != member:
        raise _leads_no_more(leadership.leader_epoch, leadership)
    return leadership.leader_epoch


def judge_still_led(image: MetadataImage, leader_epoch: LeaderEpoch) -> None:
    """Raise `CommandRefused` unless the region's logs are led under that leader epoch (INV-M22)."""
    leadership = image.leadership
    if leadership is None or leadership.leader is None or leadership.leader_epoch != leader_epoch:
        raise _leads_no_more(leader_epoch, leadership)


def _leads_no_more(leader_epoch: LeaderEpoch, present: Leadership | None) -> CommandRefused:
    who = (
        "nobody" if present is None or present.leader is None else f"node {present.leader.node_id}"
    )
    now = "" if present is None else f", and {who} leads under {present.leader_epoch}"
    return CommandRefused(
        NOT_ACTING,
        f"nothing was changed: this node asked for it as the leader of its region's logs under leader epoch {leader_epoch}, which it is not"
        f" (any more){now}. Ask again there",
    )
