"""What the commands about nodes do to the metadata image, and when they are refused.

INV-MN1  a node is fenced, unfenced or drained in exactly the life that the command names; a life that was replaced never comes back,
         as far as it is remembered
INV-MN2  a new life and another folder begin fenced; another folder is not in sync by what its node id was before: members are in
         sync, not nodes (KIP-853, KIP-903)
INV-MN3  another folder takes a node id only from one that is fenced, and is remembered with it
INV-MN4  while nobody has led yet, at most one node is registered: its folder is the region's history
INV-MN5  a node is not removed while it leads, nor while no other registered member holds all that was committed
INV-MN6  the folder of a node that was removed does not register again, for as long as it is remembered: another folder does
INV-MN7  nor does a folder that does not know the newest start that registered with it: it is an older copy, without what was
         acknowledged since (ADR 46)
INV-MN8  a node that was added is known until it is withdrawn or removed; no two nodes have an id or an address in common, as far as the
         metadata know; one that is heard keeps its addresses
Not here: what a node's code must know (`feature_levels`), who leads (`cluster_leadership`), what is remembered of folders (`cluster_folders`).
"""

from typing import Final, assert_never
from uuid import UUID

import msgspec

from geo_replicator.folder_life import Shown
from region_broker.controller.cluster_commands import (
    AddNode,
    DrainNode,
    FenceNode,
    NodeCommand,
    RegisterNode,
    RemoveNode,
    UnfenceNode,
    WithdrawNode,
)
from region_broker.controller.cluster_folders import is_wound_back, noted, removed_for_good
from region_broker.controller.cluster_image import (
    NODES_MAX,
    REMEMBERED_MAX,
    AddedNode,
    NodeImage,
)
from region_broker.controller.cluster_leadership import without_lost_leader, without_member
from region_broker.controller.feature_levels import NOT_SUPPORTED, objection_to
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused

WOUND_BACK: Final = "folder-wound-back"
"""The code with which an older copy of a folder is refused (INV-MN7)."""


def change_nodes(image: MetadataImage, command: NodeCommand) -> MetadataImage:
    """Return the image after `command`; raises `CommandRefused`."""
    match command:
        case RegisterNode(node=node, starts=starts):
            _judge_removed(image, node)
            _judge_level(image, node)
            registered = _registered(image, node)
            _judge_starts(image, node, starts)
            return noted(_with_node(image, registered), node, starts)
        case FenceNode(node_id=node_id, life=life):
            return _with_node(image, _set(_living(image, node_id, life), fenced=True))
        case UnfenceNode(node_id=node_id, life=life):
            return _with_node(image, _set(_living(image, node_id, life), fenced=False))
        case DrainNode(node_id=node_id, life=life):
            return _with_node(image, _set(_living(image, node_id, life), draining=True))
        case RemoveNode():
            return _removed(image, command)
        case AddNode(node=node):
            return _added(image, node)
        case WithdrawNode(node_id=node_id):
            return _withdrawn(image, node_id)
        case _:
            assert_never(command)


def _set(node: NodeImage, **values: bool) -> NodeImage:
    return msgspec.structs.replace(node, **values)


def _with_node(image: MetadataImage, node: NodeImage) -> MetadataImage:
    nodes = {**image.nodes, node.node_id: node}
    return without_lost_leader(msgspec.structs.replace(image, nodes=nodes))


def _node(image: MetadataImage, node_id: int) -> NodeImage:
    node = image.nodes.get(node_id)
    if node is None:
        raise CommandRefused(
            "unknown-node",
            f"no node {node_id} is registered in this region: start it, it registers itself",
        )
    return node


def _living(image: MetadataImage, node_id: int, life: UUID) -> NodeImage:
    node = _node(image, node_id)
    if node.life != life:  # INV-MN1
        raise CommandRefused(
            "other-life",
            f"node {node_id} was started anew since, as {node.life}: what was to be done to {life} is past. Look again, and"
            " name the present life where it is still wanted",
        )
    return node


def _registered(image: MetadataImage, node: NodeImage) -> NodeImage:
    known = image.nodes.get(node.node_id)
    if known is None:
        _judge_new(image, node)
        return _begun(node, (), ())
    if known.life == node.life and known.incarnation == node.incarnation:  # told twice
        return _begun(
            node, known.former_lives, known.former_incarnations,
            fenced=known.fenced, draining=known.draining,
        )  # fmt: skip
    if node.life in {*known.former_lives, known.life}:
        raise CommandRefused(
            "life-replaced",
            f"node {node.node_id} was started anew since this process began: only the newest process of a node counts. End this"
            " one; if both run, the folder was copied: keep one of them",
        )
    former = known.former_incarnations
    if known.incarnation != node.incarnation:
        _judge_replacement(image, known, node)
        former = (*former, known.incarnation)
    return _begun(node, (*known.former_lives, known.life), former)


def _begun(
    node: NodeImage, lives: tuple[UUID, ...], incarnations: tuple[UUID, ...], *,
    fenced: bool = True, draining: bool = False,
) -> NodeImage:  # fmt: skip
    return msgspec.structs.replace(
        node,
        fenced=fenced,
        draining=draining,
        former_lives=lives[-REMEMBERED_MAX:],
        former_incarnations=incarnations[-REMEMBERED_MAX:],
    )


def _judge_removed(image: MetadataImage, node: NodeImage) -> None:
    if image.has_removed(node.member):  # INV-MN6
        raise CommandRefused(
            "member-removed",
            f"node {node.node_id} was removed from this region with this data folder ({node.incarnation}), so it does not come back"
            " with it. If it is to be part of the region again, move its data_dir away and start it with an empty one: it joins as a"
            " new member, and copies everything",
        )


def _judge_level(image: MetadataImage, node: NodeImage) -> None:
    known = range(node.lowest_level, node.feature_level + 1)
    why = objection_to(known, image.feature_level, who=f"node {node.node_id}")
    if why is not None:  # INV-FL3
        raise CommandRefused(NOT_SUPPORTED, why)


def _judge_starts(image: MetadataImage, node: NodeImage, starts: Shown | None) -> None:
    if is_wound_back(image, node.incarnation, starts):  # INV-MN7
        raise CommandRefused(
            WOUND_BACK,
            f"the data folder of node {node.node_id} ({node.incarnation}) is an older copy: it was started since without what is in"
            " it now, and lacks records and votes that others count on. Give the newest one back, where it is still there. Else move"
            " data_dir away and start the node with an empty one: it joins as a new member, and copies everything. If nobody leads"
            " the logs then, an operator's word lets another node lead (tidemark cluster unclean-elect), which may lose records",
        )


def _judge_new(image: MetadataImage, node: NodeImage) -> None:
    if image.leadership is None and image.nodes:  # INV-MN4
        raise CommandRefused(
            "leadership-not-begun",
            f"node {min(image.nodes)} is the first of this region and does not lead its logs yet: node {node.node_id} is let in when"
            " it does. Start the first one, and try again",
        )
    if len(image.nodes) >= NODES_MAX:
        raise CommandRefused(
            "too-many-nodes",
            f"{NODES_MAX} nodes are registered, which is the most that a region may have: remove one that is gone",
        )
    _judge_folder(image, node)


def _judge_folder(image: MetadataImage, node: NodeImage) -> None:
    for other in image.nodes.values():
        if other.incarnation == node.incarnation and other.node_id != node.node_id:
            raise CommandRefused(
                "incarnation-in-use",
                f"the data folder of node {node.node_id} is that of node {other.node_id}: give each node its own folder; an empty"
                " one joins, and copies all",
            )


def _judge_replacement(image: MetadataImage, known: NodeImage, node: NodeImage) -> None:
    if not known.fenced:  # INV-MN3
        raise CommandRefused(
            "node-id-in-use",
            f"node {node.node_id} runs with another data folder ({known.member}): give the second one a node id of its own, or"
            " stop the first",
        )
    if image.leadership is None:  # INV-MN4
        raise CommandRefused(
            "leadership-not-begun",
            f"nobody has led the logs of this region yet, and only the folder of {known.member} has its history: give that one"
            " back, or remove that node first",
        )
    _judge_folder(image, node)


def _removed(image: MetadataImage, command: RemoveNode) -> MetadataImage:
    node = _node(image, command.node_id)
    if node.incarnation != command.incarnation:
        raise CommandRefused(
            "other-incarnation",
            f"node {node.node_id} is registered with another data folder ({node.member}): look again, and name that one",
        )
    nodes = {key: kept for key, kept in image.nodes.items() if key != node.node_id}
    stripped = _without_added(without_member(image, node.member), node.node_id)  # INV-MN5
    left = without_lost_leader(msgspec.structs.replace(stripped, nodes=nodes))
    return removed_for_good(left, node)


# --- nodes that are added while the region runs (INV-MN8) ---


def _added(image: MetadataImage, node: AddedNode) -> MetadataImage:
    present = image.nodes.get(node.node_id)
    if present is not None and not present.fenced and _addresses_of(present) != node.addresses:
        raise CommandRefused(
            "node-id-in-use",
            f"node {node.node_id} of this region runs, and is met at {', '.join(_addresses_of(present))}: give the new node an id of"
            " its own. If it is that very node and it moves, stop it first",
        )
    _judge_addresses(image, node)
    added = {**image.added_nodes, node.node_id: node}
    if len({*image.nodes, *added}) > NODES_MAX:
        raise CommandRefused(
            "too-many-nodes",
            f"{NODES_MAX} nodes are known, which is the most that a region may have: remove one that is gone",
        )
    return msgspec.structs.replace(image, added_nodes=added)


def _judge_addresses(image: MetadataImage, node: AddedNode) -> None:
    known = {key: _addresses_of(each) for key, each in image.nodes.items()}
    known |= {key: each.addresses for key, each in image.added_nodes.items()}
    for node_id, addresses in sorted(known.items()):
        common = sorted({*addresses} & {*node.addresses})
        if node_id != node.node_id and common:
            raise CommandRefused(
                "address-in-use",
                f"{', '.join(common)} is an address of node {node_id}: give node {node.node_id} addresses of its own",
            )


def _addresses_of(node: NodeImage) -> tuple[str, str, str]:
    return (
        f"{node.kafka_host}:{node.kafka_port}",
        f"{node.peer_host}:{node.peer_port}",
        f"{node.http_host}:{node.http_port}",
    )


def _withdrawn(image: MetadataImage, node_id: int) -> MetadataImage:
    if node_id in image.nodes:
        raise CommandRefused(
            "node-registered",
            f"node {node_id} has joined this region: stop it, and remove it (tidemark cluster node remove {node_id})",
        )
    if node_id not in image.added_nodes:
        raise CommandRefused(
            "unknown-node",
            f"no node {node_id} was added to this region: nothing is to be withdrawn",
        )
    return _without_added(image, node_id)


def _without_added(image: MetadataImage, node_id: int) -> MetadataImage:
    if node_id not in image.added_nodes:
        return image
    added = {key: kept for key, kept in image.added_nodes.items() if key != node_id}
    return msgspec.structs.replace(image, added_nodes=added)
