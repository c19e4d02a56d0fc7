"""A folder whose place another one took is told so, on grounds, and ends: it would wait beside a region that is in order.

INV-FRP1  only a voter that hears who leads the quorum says so, of a folder that its metadata know under that node id: another folder is
          registered there, or was, and was removed; and only while no replica group counts the replaced one as in sync, nor the quorum as a
          member: what nobody else may hold is not sent away. A node that was added again is let in with any folder that was not removed itself
INV-FRP2  it is believed only from a voter of the same cluster and region, one of the nodes that this folder knows, with at least the history
          that it has itself, and of another folder than its own; and from whoever leads the quorum, where this folder knows that node: a
          follower may not have heard yet that the folder was let in again. Any other word changes nothing

Pure. Not here: what the metadata remember (`controller.cluster_folders`), the handshake (`standing`), how the node ends (`node.cluster_node`).
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from idempotency.identity import Member
from region_broker.controller.cluster_folders import successor_of
from region_broker.controller.group_rows import groups_of
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Membership
from region_broker.region.peers.replacement import Replacement

_SAID_MAX: Final = 64


class Own(NamedTuple):
    """Who this node is: it says so, or is told."""

    member: Member
    cluster_id: str
    region: str


def replacement_of(
    asked: Member, image: MetadataImage, membership: Membership, leader: Member | None, own: Own
) -> Replacement | None:
    """Return on which grounds this node says that another folder took the place of `asked`; None where it does not (INV-FRP1).

    `leader`: who leads the quorum, as this node hears.
    """
    if leader is None or own.member not in membership.voters:
        return None
    if asked in membership.voters or asked in membership.learners:
        return None
    found = successor_of(image, asked)
    if found is None:
        return None
    return Replacement(
        cluster_id=own.cluster_id,
        region=own.region,
        node_id=own.member.node_id,
        incarnation=own.member.incarnation,
        leader_id=leader.node_id,
        metadata_version=image.version,
        successor=found.incarnation,
        is_removed=found.is_removed,
        unclean=_unclean(image),
    )


def disbelief(
    told: Replacement | None, image: MetadataImage, own: Own, known_ids: Collection[int]
) -> str:
    """Return why this node, whose folder has `image`, does not go by that word; empty where it does (INV-FRP2).

    `known_ids`: the nodes of its region that it knows.
    """
    if told is None:
        return "it names no grounds"
    if (told.cluster_id, told.region) != (own.cluster_id, own.region):
        return (
            f"it is of cluster {told.cluster_id[:_SAID_MAX]!r}, region {told.region[:_SAID_MAX]!r}"
        )
    if told.node_id not in known_ids or told.incarnation == own.member.incarnation:
        return f"node {told.node_id} is no other node of this region, as far as this one knows"
    if told.successor == own.member.incarnation:
        return "it names this very folder"
    if told.metadata_version < image.version:
        return f"it knows less of the region than this node: version {told.metadata_version} of the metadata, {image.version} are here"
    if told.leader_id != told.node_id and told.leader_id in known_ids:
        return f"node {told.leader_id} leads the quorum, and is the one to say so"
    return ""


def farewell(told: Replacement, image: MetadataImage, own: Own, folder: str) -> str:
    """Return what an operator is to know where `folder`, which has `image`, was replaced, and its node ends because of it."""
    node_id = own.member.node_id
    what = (
        f"was folder {told.successor} later, and was removed"
        if told.is_removed
        else f"is folder {told.successor} now"
    )
    stop = (
        "" if told.is_removed else f"stop the other one, tidemark cluster node remove {node_id}, "
    )
    return (
        f"node {told.node_id} of region {own.region} refuses this folder ({folder}, {own.member.incarnation}), as another one took"
        f" the place of it: node {node_id} of this region {what}. This one takes part in nothing any more. {_may_hold(told, image, own)} Do not"
        " run tidemark init: the region is there. If nothing of it is wanted, remove the folder. For one node more, start an empty folder under"
        " an id that is not taken (tidemark cluster node add). To give this folder back in place of the other:"
        f" {stop}tidemark cluster node add {node_id}, and start it again (docs/runbooks/node_lost.md)"
    )


def _may_hold(told: Replacement, image: MetadataImage, own: Own) -> str:
    """Say what may be in the folder alone, as far as the metadata tell."""
    if told.unclean > _unclean(image):
        return (
            "It may hold acknowledged records that nobody else has: since its last start an operator let a node lead that was not in sync."
            " Keep it."
        )
    led = any(row.leader == own.member for row in groups_of(image).values())
    alone = "; it led when it was last up to date, so some may be there" if led else ""
    return (
        "What all in sync had acknowledged (acks=all) is with the region; only records that were not, or with acks=1 alone, may be"
        f" nowhere else{alone}."
    )


def _unclean(image: MetadataImage) -> int:
    return sum(row.unclean for row in groups_of(image).values())
