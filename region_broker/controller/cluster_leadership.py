"""What changes who leads the logs of a region, and when that is refused.

INV-MH1  one leader epoch has one leader: each election takes a new one, greater than all that the region took before (T1, T19)
INV-MH2  the leader is registered, unfenced and in sync
INV-MH3  the in-sync set loses a member only by its leader, which is alive to say so; by an operator's word; and where that node is
         removed. Neither being fenced nor an election drops anybody, but where leaders were spread whom the leader of another
         group has dropped (INV-SPR2)
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

from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from idempotency.identity import NO_LEADER_EPOCH
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    ElectLeader,
    ElectUnclean,
    LeadershipCommand,
)
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership
from region_broker.controller.group_rows import (
    changed_row,
    groups_of,
    in_sync_in_all,
    judge_common,
    where_not,
    with_row,
)
from region_broker.controller.leadership_rules import (
    judge_eligible,
    judge_leader_epoch,
    judge_leads,
    judge_version,
    judged_in_sync,
    names,
)
from region_broker.controller.metadata_image import MetadataImage
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
    """Return the image without those leaders that are fenced or gone: of the main group, and of data groups."""
    for group, row in sorted(groups_of(image).items()):
        leader = None if row.leader is None else image.node_of(row.leader)
        if row.leader is not None and (leader is None or leader.fenced):  # INV-MH2
            image = with_row(image, group, changed_row(row, leader=None))
    return image


def without_member(image: MetadataImage, member: Member) -> MetadataImage:
    """Return the image with `member` out of each in-sync set, as it is to be removed; raises `CommandRefused`."""
    held = {group: row for group, row in groups_of(image).items() if member in row.in_sync}
    led = sorted(group for group, row in held.items() if row.leader == member)
    if led:
        raise CommandRefused(
            "node-leads",
            f"node {member.node_id} leads {_led_as_read(led)} of this region: drain or stop it, and remove it when another one leads",
        )
    others = tuple(other for other in in_sync_in_all(image) if other != member)
    if held and not any(image.node_of(other) for other in others):
        raise CommandRefused(
            "only-in-sync",
            f"no other registered node is known to hold all that was committed, only node {member.node_id}: start it, or let another"
            " one lead by an operator's word (an unclean election), which may lose records",
        )
    for group, row in held.items():
        in_sync = tuple(other for other in row.in_sync if other != member)
        image = with_row(image, group, changed_row(row, in_sync=in_sync))
    return image


def _led_as_read(groups: Sequence[int]) -> str:
    return "the logs" if MAIN_GROUP in groups else "logs"


def _with(image: MetadataImage, leadership: Leadership, **values: object) -> MetadataImage:
    return with_row(image, MAIN_GROUP, changed_row(leadership, **values))


# --- elections ---


def _elected(image: MetadataImage, command: ElectLeader) -> MetadataImage:
    leadership = image.leadership
    judge_version(leadership, command.expected_version)
    judge_leader_epoch(image, command.leader_epoch)
    judge_eligible(image, command.leader)
    in_sync = (command.leader,) if leadership is None else in_sync_in_all(image)  # INV-SPR2
    if command.leader not in in_sync:  # INV-MH5
        raise CommandRefused(
            "not-in-sync",
            f"node {command.leader.node_id} ({command.leader}) may lack records that were acknowledged{where_not(image, command.leader)}:"
            f" {_way_out(image, in_sync)}",
        )
    return _led(image, command, in_sync, unclean=0)  # INV-MH3


def _way_out(image: MetadataImage, in_sync: Sequence[Member]) -> str:
    """Return what to do instead of having a node lead that is not in sync: an operator's word is for when nobody in sync runs."""
    alive = _alive(image, in_sync)
    if alive:
        return f"wait until it is in sync (tidemark cluster status), or let one lead that is: {names(alive)}"
    return (
        f"wait until one of {names(in_sync)} is back, or let this one lead by an operator's word (an unclean election), which may"
        " lose records"
    )


def _alive(image: MetadataImage, members: Sequence[Member]) -> list[Member]:
    return [each for each in members if (node := image.node_of(each)) and not node.fenced]


def _elected_unclean(image: MetadataImage, command: ElectUnclean) -> MetadataImage:
    leadership = image.leadership
    if leadership is None:
        raise CommandRefused(
            "leadership-not-begun",
            "nobody has led the logs of this region yet: the first node leads them by itself when it runs",
        )
    judge_version(leadership, command.expected_version)
    judge_leader_epoch(image, command.leader_epoch)
    judge_eligible(image, command.leader)
    alive = _alive(image, in_sync_in_all(image))
    if alive:
        raise CommandRefused(
            "election-can-be-clean",
            f"{names(alive)} runs and holds all that was committed: nothing needs to be lost. Let it lead",
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
        grown(image, in_sync, unclean=unclean > 0),
        leadership=leadership,
        spread=None,  # INV-SPR1
        last_leader_epoch=command.leader_epoch,
        region_folder=folder,
    )


def grown(
    image: MetadataImage, in_sync: tuple[Member, ...], *, unclean: bool = False
) -> MetadataImage:
    """Note how many are in sync in a region that was one of one node, in every group (INV-MH7).

    An unclean election ends that: whoever led before may have had more.
    """
    was_alone = image.leadership is None and image.last_leader_epoch != NO_LEADER_EPOCH
    if image.feature_level < GROWS_SINCE_LEVEL or not (was_alone or image.grown_to):
        return image
    grown_to = 0 if unclean else max(image.grown_to, len(in_sync))
    return msgspec.structs.replace(image, grown_to=grown_to)


# --- the in-sync set ---


def _in_sync_changed(image: MetadataImage, command: ChangeInSync) -> MetadataImage:
    leadership = _led_by(image, command)
    in_sync = judged_in_sync(image, leadership, command)
    changed = _with(image, leadership, in_sync=in_sync)
    judge_common(changed, image)
    return grown(changed, in_sync_in_all(changed))


def _led_by(image: MetadataImage, command: ChangeInSync) -> Leadership:
    leadership = judge_leads(image, image.leadership, command.leader, command.leader_epoch)
    judge_version(leadership, command.expected_version)
    return leadership
