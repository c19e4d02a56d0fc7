"""What changes who leads the logs of a region, and when that is refused.

INV-MH1  one leader epoch has one leader: each election takes a new one, greater than all that the region took before (T1, T19)
INV-MH2  the leader is registered, unfenced and in sync
INV-MH3  the in-sync set loses a member only by its leader, which is alive to say so; by an operator's word; and where that node is
         removed. Neither being fenced nor an election drops anybody
INV-MH4  so while nobody leads, each of them holds all that was committed (KIP-966)
INV-MH5  the in-sync set is never empty, and who is not in it leads by an operator's word alone, which is counted
INV-MH7  a region that was one of one node knows how many members have been in sync at once since it has several, from level 2 on
         (`grown_to`): nobody waits for more copies of a record than there have been
INV-MH6  only the leader, under its own leader epoch, says who joins the in-sync set, and it knows what it changes
1. Two members are in sync, and both lose their power. 2. One is back before the other's silence is noticed: a new life, so it is
fenced, and the other one leads, or is elected. 3. The disk of that other one is gone. Were the first out of the in-sync set by then,
nobody could lead, although it holds everything: nothing was committed without it. So a leader drops whom the metadata fence,
drain, or do not have (any more), as its first act; high watermarks go on from there. None of these is elected (KIP-841).
A failover gives the region another region epoch (`RecordLineage`), and leaves all of this as it was: who is in sync still holds
all that was committed, of which the takeover keeps a part. The leader epoch is then of a former region epoch, so its leader changes
nothing any more; an election under the new region epoch comes first, and whoever wins it cuts its logs to the base of the
lineage before it leads (T20). Where nobody was ever elected, `TakeLeaderEpoch` counts leader epochs, as it did before.
"""

from collections.abc import Iterable
from typing import Final, assert_never

import msgspec

from idempotency.fencing import region_epoch_of
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    ElectLeader,
    ElectUnclean,
    LeadershipCommand,
)
from region_broker.controller.cluster_image import NO_LEADERSHIP, Leadership
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.controller.refusals import CommandRefused
from region_broker.controller.region_folder import with_election

GROWS_SINCE_LEVEL: Final = 2
"""The feature level that brought `grown_to`: older nodes would have other metadata (INV-FL1)."""


def change_leadership(image: MetadataImage, command: LeadershipCommand) -> MetadataImage:
    """Return the image after `command`; raises `CommandRefused`."""
    match command:
        case ElectLeader():
            return _elected(image, command)
        case ElectUnclean():
            return _elected_unclean(image, command)
        case ChangeInSync():
            return _in_sync_changed(image, command)
        case _:
            assert_never(command)


# --- what follows from changes of nodes ---


def without_lost_leader(image: MetadataImage) -> MetadataImage:
    """Return the image without its leader, where that one is fenced or gone."""
    leadership = image.leadership
    if leadership is None or leadership.leader is None:
        return image
    leader = image.node_of(leadership.leader)
    if leader is None or leader.fenced:  # INV-MH2
        return _with(image, leadership, leader=None)
    return image


def without_member(image: MetadataImage, member: Member) -> MetadataImage:
    """Return the image with `member` out of the in-sync set, as it is to be removed; raises `CommandRefused`."""
    leadership = image.leadership
    if leadership is None or member not in leadership.in_sync:
        return image
    if leadership.leader == member:
        raise CommandRefused(
            "node-leads",
            f"node {member.node_id} leads the logs of this region: drain or stop it, and remove it when another one leads",
        )
    others = tuple(other for other in leadership.in_sync if other != member)
    if not any(image.node_of(other) for other in others):
        raise CommandRefused(
            "only-in-sync",
            f"no other registered node is known to hold all that was committed, only node {member.node_id}: start it, or let another"
            " one lead by an operator's word (an unclean election), which may lose records",
        )
    return _with(image, leadership, in_sync=others)


def _with(image: MetadataImage, leadership: Leadership, **values: object) -> MetadataImage:
    changed = msgspec.structs.replace(leadership, version=leadership.version + 1, **values)
    return msgspec.structs.replace(image, leadership=changed)


# --- elections ---


def _elected(image: MetadataImage, command: ElectLeader) -> MetadataImage:
    leadership = image.leadership
    _judge_version(leadership, command.expected_version)
    _judge_leader_epoch(image, command.leader_epoch)
    _judge_eligible(image, command.leader)
    in_sync = (command.leader,) if leadership is None else leadership.in_sync
    if command.leader not in in_sync:  # INV-MH5
        raise CommandRefused(
            "not-in-sync",
            f"node {command.leader.node_id} ({command.leader}) may lack records that were acknowledged: wait until one of"
            f" {_names(in_sync)} is back, or let this one lead by an operator's word (an unclean election), which may lose records",
        )
    return _led(image, command, in_sync, unclean=0)  # INV-MH3


def _elected_unclean(image: MetadataImage, command: ElectUnclean) -> MetadataImage:
    leadership = image.leadership
    if leadership is None:
        raise CommandRefused(
            "leadership-not-begun",
            "nobody has led the logs of this region yet: the first node leads them by itself when it runs",
        )
    _judge_version(leadership, command.expected_version)
    _judge_leader_epoch(image, command.leader_epoch)
    _judge_eligible(image, command.leader)
    alive = [
        member
        for member in leadership.in_sync
        if (node := image.node_of(member)) and not node.fenced
    ]
    if alive:
        raise CommandRefused(
            "election-can-be-clean",
            f"{_names(alive)} runs and holds all that was committed: nothing needs to be lost. Let it lead",
        )
    return _led(image, command, (command.leader,), unclean=1)


def _led(
    image: MetadataImage, command: ElectLeader | ElectUnclean, in_sync: tuple[Member, ...], *,
    unclean: int,
) -> MetadataImage:  # fmt: skip
    before = image.leadership
    leadership = Leadership(
        leader=command.leader,
        leader_epoch=command.leader_epoch,
        in_sync=in_sync,
        version=command.expected_version + 1,
        unclean=unclean + (before.unclean if before else 0),
    )
    node = image.node_of(command.leader)
    assert node is not None, "INV-MH2"
    folder = with_election(image.region_folder, node.life, command.leader_epoch)
    return msgspec.structs.replace(
        _grown(image, in_sync, unclean=unclean > 0),
        leadership=leadership,
        last_leader_epoch=command.leader_epoch,
        region_folder=folder,
    )


def _grown(
    image: MetadataImage, in_sync: tuple[Member, ...], *, unclean: bool = False
) -> MetadataImage:
    """Note how many are in sync in a region that was one of one node (INV-MH7).

    An unclean election ends that: whoever led before may have had more.
    """
    was_alone = image.leadership is None and image.last_leader_epoch != NO_LEADER_EPOCH
    if image.feature_level < GROWS_SINCE_LEVEL or not (was_alone or image.grown_to):
        return image
    grown_to = 0 if unclean else max(image.grown_to, len(in_sync))
    return msgspec.structs.replace(image, grown_to=grown_to)


def _judge_version(leadership: Leadership | None, expected_version: int) -> None:
    present = leadership.version if leadership else NO_LEADERSHIP
    if present != expected_version:
        raise CommandRefused(
            "leadership-changed",
            f"who leads, or who is in sync, has changed meanwhile (version {present}, not {expected_version}): look again",
        )


def _judge_leader_epoch(image: MetadataImage, leader_epoch: LeaderEpoch) -> None:
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


def _judge_eligible(image: MetadataImage, member: Member) -> None:
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


# --- the in-sync set ---


def _in_sync_changed(image: MetadataImage, command: ChangeInSync) -> MetadataImage:
    leadership = _led_by(image, command)
    in_sync = tuple(sorted(set(command.in_sync)))
    if command.leader not in in_sync:
        raise CommandRefused(
            "leader-not-in-sync",
            f"the leader {command.leader} is always in sync with itself, so the set is never empty: name it, too",
        )
    for member in in_sync:
        if member not in leadership.in_sync:
            _judge_eligible(image, member)
    return _with(_grown(image, in_sync), leadership, in_sync=in_sync)


def _led_by(image: MetadataImage, command: ChangeInSync) -> Leadership:
    leadership, domain = image.leadership, image.domains.get(DEFAULT_DOMAIN)
    ours = leadership and (leadership.leader, leadership.leader_epoch)
    if leadership is None or ours != (command.leader, command.leader_epoch):  # INV-MH6
        raise CommandRefused(
            "not-the-leader",
            f"{command.leader} does not lead under leader epoch {command.leader_epoch} (any more): it stops leading, and follows"
            " whom the metadata name",
        )
    if domain is None or region_epoch_of(command.leader_epoch) != domain.region_epoch:
        raise CommandRefused(
            "other-region-epoch",
            f"leader epoch {command.leader_epoch} is of a former region epoch: wait for the election under the present one",
        )
    _judge_version(leadership, command.expected_version)
    return leadership


def _names(members: Iterable[Member]) -> str:
    return ", ".join(str(member) for member in members)
