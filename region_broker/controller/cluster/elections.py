"""Who should lead next, as the metadata say: a pure function of an image.

INV-CV1  only who is in sync (in every group), registered with that very folder, unfenced and not about to stop is elected; the
         preferred one first, then by node id
INV-CV2  an election is due where nobody leads, where the leader's epoch is of a former region epoch (T19), and where the leader is
         about to stop and another one can lead
INV-CV3  the main group's leader is elected first: it leads all logs, so then nothing is due in data groups. Of a data group the preferred
         node is elected, or who of those in sync leads the fewest groups; never the main group's leader (INV-SPR6), nor anybody in place of
         one that leads and goes on
INV-CV5  who has said that its disk has lost something that is not mended comes behind all others: it refuses readers what they would
         serve, and no follower can copy that from it. Where nobody else can lead it is elected all the same
INV-CV4  who is still about to open its logs is elected only where nobody else can be: nobody writes meanwhile. It is no condition, as whoever
         holds all that was committed may be the only one. It comes before one that has damage: it will write soon
Not here: elections by an operator's word (`orders`), what an election changes (`cluster_leadership`).
"""

from collections.abc import Container, Set
from typing import Final

from idempotency.fencing import region_epoch_of
from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import ElectGroupLeader, ElectLeader
from region_broker.controller.cluster_image import NO_LEADERSHIP, Leadership, Spread
from region_broker.controller.group_rows import in_sync_in_all
from region_broker.controller.leadership_rules import is_kept_for_main, next_leader_epoch
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.controller.raft.entries import Member

NOBODY: Final[frozenset[Member]] = frozenset()


def candidates(
    image: MetadataImage,
    preferred_node_id: int | None,
    damaged: Set[Member] = NOBODY,
    opening: Container[int] = (),
) -> list[Member]:
    """Return who may be elected, the best first (INV-CV1, INV-CV4, INV-CV5).

    `damaged`: who has said so. `opening`: who is about to open its logs, by node id.
    """
    leadership = image.leadership
    if leadership is None:
        in_sync = tuple(node.member for node in image.nodes.values())
    else:
        in_sync = in_sync_in_all(image)
    found = [m for m in in_sync if (node := image.node_of(m)) and node.is_eligible]

    def rank(member: Member) -> tuple[bool, bool, bool, Member]:
        node_id = member.node_id
        return member in damaged, node_id in opening, node_id != preferred_node_id, member

    return sorted(found, key=rank)


def due_election(
    image: MetadataImage,
    preferred_node_id: int | None,
    damaged: Set[Member] = NOBODY,
    opening: Container[int] = (),
) -> ElectLeader | None:
    """Return the election that is due (INV-CV2), None where none is, or nobody can be elected.

    Raises:
        EpochExhausted: the region epoch has no leader epoch left: another region has to take over.
    """
    domain = image.domains.get(DEFAULT_DOMAIN)
    able = candidates(image, preferred_node_id, damaged, opening)
    if domain is None or not able:
        return None
    leadership = image.leadership
    if leadership is None or leadership.leader is None:
        return elect(image, domain.region_epoch, able[0])
    if region_epoch_of(leadership.leader_epoch) != domain.region_epoch:
        # Who leads goes on leading, where it can.
        chosen = leadership.leader if leadership.leader in able else able[0]
        return elect(image, domain.region_epoch, chosen)
    leader = image.node_of(leadership.leader)
    assert leader is not None, "INV-MH2"
    return elect(image, domain.region_epoch, able[0]) if leader.draining else None


def elect(image: MetadataImage, region_epoch: RegionEpoch, member: Member) -> ElectLeader:
    """Return the election of `member` under the next leader epoch; raises `EpochExhausted`."""
    version = image.leadership.version if image.leadership else NO_LEADERSHIP
    return ElectLeader(member, next_leader_epoch(image, region_epoch), version)


# --- data groups ---


def group_candidates(image: MetadataImage, group: int) -> list[Member]:
    """Return who may be elected in a data group, the best first (INV-CV3); nobody where there is no such group."""
    spread = image.spread
    if spread is None or group not in spread.groups:
        return []
    row, main = spread.groups[group], image.leadership
    found = [
        member
        for member in row.in_sync
        if (main is None or member != main.leader)
        and (node := image.node_of(member)) is not None
        and node.is_eligible
    ]
    preferred = spread.preferred[group]
    return sorted(
        found, key=lambda one: (one.node_id != preferred, _leads_groups(spread, one), one)
    )


def _leads_groups(spread: Spread, member: Member) -> int:
    return sum(row.leader == member for row in spread.groups.values())


def due_group_election(image: MetadataImage) -> ElectGroupLeader | None:
    """Return the election that is due in a data group, None where none is, or nobody can be elected (INV-CV3).

    Raises:
        EpochExhausted: the region epoch has no leader epoch left.
    """
    if image.spread is None:
        return None
    for group, row in sorted(image.spread.groups.items()):
        able = group_candidates(image, group)
        if able and _is_to_go(image, row):
            due = elect_in(image, group, able[0])
            return None if is_kept_for_main(due.leader_epoch) else due
    return None


def _is_to_go(image: MetadataImage, row: Leadership) -> bool:
    leader = None if row.leader is None else image.node_of(row.leader)
    return leader is None or leader.draining


def elect_in(image: MetadataImage, group: int, member: Member) -> ElectGroupLeader:
    """Return the election of `member` in a data group that there is, under the next leader epoch; raises `EpochExhausted`."""
    assert image.spread is not None, group
    row = image.spread.groups[group]
    newest = next_leader_epoch(image, region_epoch_of(row.leader_epoch))
    return ElectGroupLeader(group, member, newest, row.version)
