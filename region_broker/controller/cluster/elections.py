"""Who should lead next, as the metadata say: a pure function of an image.

INV-CV1  only who is in sync, registered with that very folder, unfenced and not about to stop is elected; the preferred one first,
         then by node id
INV-CV2  an election is due where nobody leads, where the leader's epoch is of a former region epoch (T19), and where the leader is
         about to stop and another one can lead
INV-CV5  who has said that its disk has lost something that is not mended comes behind all others: it refuses readers what they would
         serve, and no follower can copy that from it. Where nobody else can lead it is elected all the same
INV-CV4  who is still about to open its logs is elected only where nobody else can be: nobody writes meanwhile. It is no condition, as whoever
         holds all that was committed may be the only one. It comes before one that has damage: it will write soon
Not here: elections by an operator's word (`orders`), what an election changes (`cluster_leadership`).
"""

from collections.abc import Container, Set
from typing import Final

from idempotency.fencing import (
    FIRST_TERM_COUNTER,
    leader_counter_of,
    leader_epoch,
    region_epoch_of,
)
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_commands import ElectLeader
from region_broker.controller.cluster_image import NO_LEADERSHIP
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
        in_sync = leadership.in_sync
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


def next_leader_epoch(image: MetadataImage, region_epoch: RegionEpoch) -> LeaderEpoch:
    """Return the leader epoch after all that this region took under `region_epoch`; raises `EpochExhausted`."""
    last = image.last_leader_epoch
    if last >= 0 and region_epoch_of(last) == region_epoch:
        return leader_epoch(region_epoch, leader_counter_of(last) + 1)
    return leader_epoch(region_epoch, FIRST_TERM_COUNTER)
