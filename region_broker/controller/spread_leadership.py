"""What spreads the leaders of a region's partitions over its nodes, and what gathers them again (ADR 53).

INV-SPR1   a spread lives inside one leadership of the main group: it begins under its leader epoch, and each election of a main leader
           ends it, so that one leads all logs again
INV-SPR4   it begins by the word of the main group's leader alone, from level 3 on, of nodes that are heard, stay, and are in sync; the main
           group's row gets another version, so that a change of its in-sync set that is still under way is refused
INV-SPR5   each election of a data group takes a leader epoch of its own, newer than all (INV-MH1), and none of the last ones, which are
           kept for the main group: whoever cannot gather cannot fail over either
INV-SPR6   the leader of the main group never leads a data group
INV-SPR7   only the leader of a data group, under its own leader epoch, says who is in sync there, and it knows what it changes (INV-MH6)
INV-SPR8   while leaders are spread, neither the state of the failover machine nor the lineage changes, nor who acts under which region
           epoch: they are gathered first
INV-SPR9   the list of topics that are spread changes by topics that are made and deleted, and else with the spread itself: a log changes
           its group in no other way. It has neither ledgers nor, when it is made, compacted topics
INV-SPR10  whoever leads the main group stays in sync in every data group: a data leader that would go on without it has the leaders
           gathered by that. So nobody is shown more of a log than what is durable at the main leader (INV-SCU1)
INV-SPR11  a spread that was decided before an event of the failover machine was recorded does not begin behind it
           1. Leaders are to be spread; the command is on its way. 2. The region promises another one that it may act. 3. Data leaders
           would open, and acknowledge what is lost (T24)

Not here: when leaders are spread and gathered (`cluster.spreading`), what the groups have in common (`group_rows`). That this region
acts is known to whoever asks, not to the image.
"""

from typing import Final, assert_never
from uuid import UUID

import msgspec

from idempotency.fencing import EpochExhausted, region_epoch_of
from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_commands import (
    ChangeGroupInSync,
    ElectGroupLeader,
    ElectLeader,
    GatherLeaders,
    PreferSpread,
    SpreadCommand,
    SpreadLeaders,
)
from region_broker.controller.cluster_image import NO_LEADERSHIP, Leadership, Spread
from region_broker.controller.cluster_leadership import change_leadership, grown
from region_broker.controller.feature_levels import allows, refused_as_unknown
from region_broker.controller.group_rows import (
    changed_row,
    in_sync_in_all,
    judge_common,
    with_row,
)
from region_broker.controller.leadership_rules import (
    KEPT_FOR_MAIN,
    is_kept_for_main,
    judge_eligible,
    judge_leader_epoch,
    judge_leads,
    judge_version,
    judged_in_sync,
    names,
    next_leader_epoch,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.raft.entries import Member
from region_broker.controller.refusals import CommandRefused

SPREAD: Final = "leaders-are-spread"
"""The code of what is refused while they are (INV-SPR8)."""
NOT_SPREAD: Final = "leaders-not-spread"
_LEAST_GROUPS: Final = 2
_FIRST_VERSION: Final = 1


def change_spread(image: MetadataImage, command: SpreadCommand) -> MetadataImage:
    """Return the image after `command`; raises `CommandRefused`."""
    if not allows(image.feature_level, command):
        raise refused_as_unknown(image.feature_level, command)
    match command:
        case PreferSpread(wanted=wanted):
            return msgspec.structs.replace(image, spread_wanted=wanted)
        case SpreadLeaders():
            return _spread(image, command)
        case ElectGroupLeader():
            return _group_elected(image, command)
        case ChangeGroupInSync():
            return _group_in_sync_changed(image, command)
        case GatherLeaders():
            return _gathered(image, command)
        case _:
            assert_never(command)


# --- where leaders are spread and gathered ---


def failover_number_of(image: MetadataImage) -> int:
    """Return how many events the failover machine of this region has recorded."""
    return 0 if image.region_folder is None else image.region_folder.failover_number


def _spread(image: MetadataImage, command: SpreadLeaders) -> MetadataImage:
    main = judge_leads(image, image.leadership, command.leader, command.leader_epoch)
    if image.spread is not None:
        raise CommandRefused(
            SPREAD, "the leaders of this region are spread already: gather them first"
        )
    judge_version(main, command.expected_version)
    if command.failover_number != failover_number_of(image):  # INV-SPR11
        raise CommandRefused(
            "failover-moved-on",
            "the failover of this region has moved on since that was decided: leaders are spread where it acts steadily",
        )
    members = _judged_nodes(image, command, main)
    _judge_topics(image, command.topics)
    groups: dict[int, Leadership] = {}
    newest = image.last_leader_epoch
    _judge_kept(LeaderEpoch(newest + len(members) - 1))
    for number, leader in enumerate(members[1:], start=1):
        newest = LeaderEpoch(newest + 1)
        groups[number] = Leadership(
            leader=leader, leader_epoch=newest, in_sync=main.in_sync, version=_FIRST_VERSION
        )
    return msgspec.structs.replace(
        image,
        leadership=changed_row(main),
        last_leader_epoch=newest,
        spread=Spread(groups=groups, preferred=command.preferred, topics=command.topics),
    )


def _judged_nodes(image: MetadataImage, command: SpreadLeaders, main: Leadership) -> list[Member]:
    """Return who is to lead each group, by number (INV-SPR4)."""
    preferred = command.preferred
    is_right = len(preferred) >= _LEAST_GROUPS and len(set(preferred)) == len(preferred)
    if not is_right or preferred[0] != command.leader.node_id:
        raise CommandRefused(
            "preferred-nodes",
            f"the nodes {list(preferred)} cannot lead a group each: name the node that leads, {command.leader.node_id}, and at least one"
            " other, each once",
        )
    members: list[Member] = []
    for node_id in preferred:
        node = image.nodes.get(node_id)
        member = node.member if node is not None else Member(node_id, UUID(int=0))
        judge_eligible(image, member)
        if member not in main.in_sync:
            raise CommandRefused(
                "not-in-sync",
                f"node {node_id} ({member}) may lack records that were acknowledged: wait until it is in sync, or leave it out",
            )
        members.append(member)
    return members


def _judge_topics(image: MetadataImage, topics: tuple[UUID, ...]) -> None:
    if list(topics) != sorted(set(topics)):
        raise CommandRefused("topics-not-sorted", "the topics are to be named in order, each once")
    for topic_id in topics:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            raise CommandRefused("unknown-topic", f"no topic has the id {topic_id}: look again")
        if not may_be_spread(topic):  # INV-SPR9
            raise CommandRefused(
                "topic-not-spread",
                f"topic {topic.name} is a ledger or compacted, and is led with the main group: leave it out",
            )


def _judge_kept(leader_epoch: LeaderEpoch) -> None:
    if is_kept_for_main(leader_epoch):  # INV-SPR5
        raise CommandRefused(
            "leader-epochs-kept",
            f"the last {KEPT_FOR_MAIN} leader epochs of region epoch {region_epoch_of(leader_epoch)} are kept for the leader of all logs:"
            " switch to another region and back, each switch begins anew",
        )


def _gathered(image: MetadataImage, command: GatherLeaders) -> MetadataImage:
    main = image.leadership
    if image.spread is None or main is None:
        raise CommandRefused(NOT_SPREAD, "one node leads all logs of this region already")
    judge_version(main, command.expected_version)
    if main.leader is None:
        raise CommandRefused(
            "nobody-leads",
            "nobody leads the main group: whoever is elected leads all logs, the controller sees to that",
        )
    try:
        newest = next_leader_epoch(image, region_epoch_of(main.leader_epoch))
    except EpochExhausted as error:
        raise CommandRefused("leader-epochs-exhausted", str(error)) from error
    return change_leadership(image, ElectLeader(main.leader, newest, main.version))


# --- a data group ---


def _row_of(image: MetadataImage, group: int) -> Leadership:
    if image.spread is None:
        raise CommandRefused(
            NOT_SPREAD, "one node leads all logs of this region: there is no data group (any more)"
        )
    row = image.spread.groups.get(group)
    if row is None:
        raise CommandRefused(
            "unknown-group", f"there is no data group {group}, only {sorted(image.spread.groups)}"
        )
    return row


def _group_elected(image: MetadataImage, command: ElectGroupLeader) -> MetadataImage:
    row = _row_of(image, command.group)
    judge_version(row, command.expected_version)
    judge_leader_epoch(image, command.leader_epoch)
    _judge_kept(command.leader_epoch)
    judge_eligible(image, command.leader)
    if image.leadership is not None and image.leadership.leader == command.leader:  # INV-SPR6
        raise CommandRefused(
            "leads-the-main-group",
            f"node {command.leader.node_id} leads the main group: name another one, or gather the leaders",
        )
    if command.leader not in row.in_sync:
        raise CommandRefused(
            "not-in-sync",
            f"node {command.leader.node_id} ({command.leader}) may lack records that were acknowledged in data group {command.group}:"
            f" wait until one of {names(row.in_sync)} is back",
        )
    led = changed_row(row, leader=command.leader, leader_epoch=command.leader_epoch)
    return msgspec.structs.replace(
        with_row(image, command.group, led), last_leader_epoch=command.leader_epoch
    )


def _group_in_sync_changed(image: MetadataImage, command: ChangeGroupInSync) -> MetadataImage:
    row = judge_leads(image, _row_of(image, command.group), command.leader, command.leader_epoch)
    judge_version(row, command.expected_version)
    in_sync = judged_in_sync(image, row, command)
    assert image.spread is not None, "there is a row"
    main, main_node = image.leadership, image.spread.preferred[0]
    if any(each.node_id == main_node and each not in in_sync for each in row.in_sync):  # INV-SPR10
        return _gathered(image, GatherLeaders(NO_LEADERSHIP if main is None else main.version))
    changed = with_row(image, command.group, changed_row(row, in_sync=in_sync))
    judge_common(changed, image)
    return grown(changed, in_sync_in_all(changed))


# --- what other commands do to a spread ---


def refuse_while_spread(image: MetadataImage, what: str) -> None:
    """Raise `CommandRefused` while leaders are spread (INV-SPR8); `what`: what is not done then."""
    if image.spread is not None:
        raise CommandRefused(
            SPREAD,
            f"the leaders of this region are spread, and {what} only while one node leads all logs: gather them first, and do it again",
        )


def may_be_spread(topic: TopicImage) -> bool:
    """Return whether a topic's partitions may be led by several nodes (INV-SPR9)."""
    policies = topic.configs.get("cleanup.policy", "").split(",")
    return not topic.internal and "compact" not in {policy.strip() for policy in policies}


def with_topic(image: MetadataImage, topic: TopicImage) -> MetadataImage:
    """Return the image with a topic that was just made in the list of those that are spread, where it belongs there (INV-SPR9)."""
    if image.spread is None or not may_be_spread(topic):
        return image
    return _listing(image, image.spread, tuple(sorted((*image.spread.topics, topic.topic_id))))


def without_topic(image: MetadataImage, topic_id: UUID) -> MetadataImage:
    """Return the image with a topic that was just deleted in no list (INV-SPR9)."""
    if image.spread is None or topic_id not in image.spread.topics:
        return image
    return _listing(
        image, image.spread, tuple(each for each in image.spread.topics if each != topic_id)
    )


def _listing(image: MetadataImage, spread: Spread, topics: tuple[UUID, ...]) -> MetadataImage:
    return msgspec.structs.replace(image, spread=msgspec.structs.replace(spread, topics=topics))
