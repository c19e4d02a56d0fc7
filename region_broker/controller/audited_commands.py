"""What the audit trail is told of each command of the metadata: names, numbers, what changes; never a secret.

INV-AUC1  each kind of command is in `_OF_KIND`, or named in `QUIET` with why it is not recorded; a test compares
INV-AUC2  of users' keys a record has user, mechanism and iterations, of delegation tokens id and owner, of configurations what is set
          and removed, without values whose key sounds like a secret (INV-AUD1)
INV-AUC4  of each kind of rows that access changes by TOLD_ROWS_MAX are made texts of, more than a record has room for, and the rest is counted: of 50,000
          ACLs that one filter removes they took 95 ms in the step that records it
INV-AUC3  a command that is recorded has an outcome there however it ends, also one that a node wishes by itself: where its task is cancelled, or an
          error comes that nobody thought of, it is `unknown`
A command that somebody asked this node for is recorded before (`AuditTrail.intended`), and is not applied where it cannot be; one that
a node wishes by itself is recorded behind: a region must go on taking over, fencing and following with a trail that is full.
Not here: the trail (`security.audit`), who asks (`security.audit.events.acting_as`).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from region_broker.controller.access_commands import ChangeAccess, FollowAccess
from region_broker.controller.cluster_commands import (
    AddNode,
    BearDomain,
    ChangeGroupInSync,
    ChangeInSync,
    DrainNode,
    ElectGroupLeader,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    FinalizeLevel,
    GatherLeaders,
    PreferSpread,
    RegisterNode,
    RemoveNode,
    SpreadLeaders,
    UnfenceNode,
    WithdrawNode,
)
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import (
    Command,
    CopyPartitions,
    CountNodeStart,
    CreateTopic,
    DeleteTopic,
    PutDomain,
    PutRegion,
    RecordLineage,
    RenameTopic,
    ResizeTopic,
    SetNodeConfigs,
    SetTopicConfigs,
    TakeLeaderEpoch,
)
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.controller.region_folder import (
    BeginRegionFolder,
    JoinHistory,
    NoteMet,
    RecordFailover,
)
from region_broker.security.access import AccessChange, Acl
from region_broker.security.audit.events import (
    ITSELF,
    LEFT_OUT,
    AuditEvent,
    Detail,
    Kind,
    Outcome,
    present_actor,
    shown_value,
)
from region_broker.security.audit.trail import (
    AuditTrail,
    AuditUnwritable,
    Recorded,
    told_unless_said,
)

TOLD_ROWS_MAX: Final = 4_000
Told = tuple[str, str, Mapping[str, Detail]]
"""Type and name of what changes, and how."""
Result = TypeVar("Result")

QUIET: Final[Mapping[type, str]] = {
    ChangeInSync: "comes with every stutter of a follower, and changes who may lead, not what is there",
    ChangeGroupInSync: "the same",
    NoteMet: "a note about a handshake",
    CountNodeStart: "the trail has a record of each start",
    RecordFailover: "the failover driver records each step",
    CopyPartitions: "comes before the change that readers see",
    TakeLeaderEpoch: "comes with each beginning of a role",
}
"""Kinds that are not recorded, and why."""


async def audited(
    trail: AuditTrail,
    image: MetadataImage,
    command: Command,
    apply: Callable[[], Awaitable[Result]],
) -> Result:
    """Apply a command, and record that; raises as `apply`, and `MetadataUnwritable` where it cannot be recorded: nothing has changed then."""
    if not trail.is_on or type(command) in QUIET:
        return await apply()
    event = event_of(image, command)
    if event.actor is ITSELF:
        recorded = Recorded(trail, event, 0)  # it answers no intent
    else:
        recorded = await _intended(trail, event)
    with told_unless_said(recorded):  # INV-AUC3
        return await _told(apply, recorded.ended)


async def _intended(trail: AuditTrail, event: AuditEvent) -> Recorded:
    try:
        return await trail.intended(event)
    except AuditUnwritable as error:
        raise MetadataUnwritable(f"nothing has changed: {error}") from error


async def _told(
    apply: Callable[[], Awaitable[Result]], ended: Callable[[Outcome, str], None]
) -> Result:
    """Apply, and say what came of it."""
    try:
        result = await apply()
    except CommandRefused as refused:
        ended(Outcome.REFUSED, refused.code)
        raise
    except MetadataInDoubt as error:
        ended(Outcome.UNKNOWN, str(error))
        raise
    except MetadataUnwritable as error:
        ended(Outcome.FAILED, str(error))
        raise
    ended(Outcome.DONE, "")
    return result


def event_of(image: MetadataImage, command: Command) -> AuditEvent:
    """Return what is recorded of a command before it is applied to `image`."""
    resource_type, resource, details = _OF_KIND[type(command)](image, command)
    return AuditEvent(
        kind=Kind.CHANGE,
        operation=type(command).__name__,
        outcome=Outcome.INTENDED,
        actor=present_actor(),
        resource_type=resource_type,
        resource=resource,
        details=details,
    )


# -- what each kind says ------------------------------------------------------------------------------


def _topic(image: MetadataImage, topic_id: Any) -> tuple[str, str]:
    found = image.topic_by_id(topic_id)
    return "TOPIC", str(topic_id) if found is None else found.name


def _configs(configs: Mapping[str, str], before: Mapping[str, str] | None) -> Mapping[str, Detail]:
    """Return what is set anew, and what is removed; all of it where it is not known what was there."""
    known = before or {}
    news = {key: value for key, value in configs.items() if known.get(key) != value}
    return {
        **{f"set {key}": shown_value(key, str(value)) for key, value in sorted(news.items())},
        **({"removed": gone} if (gone := sorted(known.keys() - configs.keys())) else {}),
    }


def _create_topic(_image: MetadataImage, command: CreateTopic) -> Told:
    topic = command.topic
    details = {
        "topic_id": str(topic.topic_id), "partitions": topic.partition_count, **_configs(topic.configs, None)
    }  # fmt: skip
    return "TOPIC", topic.name, details


def _delete_topic(image: MetadataImage, command: DeleteTopic) -> Told:
    return *_topic(image, command.topic_id), {"topic_id": str(command.topic_id)}


def _set_topic_configs(image: MetadataImage, command: SetTopicConfigs) -> Told:
    found = image.topic_by_id(command.topic_id)
    before = None if found is None else found.configs
    return *_topic(image, command.topic_id), _configs(command.configs, before)


def _set_node_configs(image: MetadataImage, command: SetNodeConfigs) -> Told:
    before = image.node_configs.get(command.node_id, {})
    return "NODE", str(command.node_id), _configs(command.configs, before)


def _resize_topic(image: MetadataImage, command: ResizeTopic) -> Told:
    counts = {"partitions": command.partition_count, "before": command.expected}
    return *_topic(image, command.topic_id), counts


def _rename_topic(image: MetadataImage, command: RenameTopic) -> Told:
    return *_topic(image, command.topic_id), {"name": command.name}


def _put_region(_image: MetadataImage, command: PutRegion) -> Told:
    region = command.region
    return "REGION", region.name, {"peer": f"{region.peer_host}:{region.peer_port}"}


def _put_domain(_image: MetadataImage, command: PutDomain | BearDomain) -> Told:
    domain = command.domain
    return "DOMAIN", domain.name, {
        "acting_region": domain.acting_region, "region_epoch": int(domain.region_epoch)
    }  # fmt: skip


def _record_lineage(_image: MetadataImage, command: RecordLineage) -> Told:
    entry = command.entry
    return "DOMAIN", command.domain, {
        "acting_region": entry.acting_region, "region_epoch": int(entry.region_epoch), "learnt": command.learnt
    }  # fmt: skip


def _access(_image: MetadataImage, command: ChangeAccess) -> Told:
    change = command.change
    told = access_details(change, TOLD_ROWS_MAX)
    rows = sum(len(getattr(change, field)) for field in change.__struct_fields__)
    left_out = rows - sum(map(len, told.values()))
    return "CLUSTER", "access", {**told, LEFT_OUT: left_out} if left_out else told


def access_details(change: AccessChange, rows_max: int | None = None) -> Mapping[str, list[str]]:
    """Return what a change of access is, or the first rows of each kind, without anything that somebody could log in with (INV-AUC2)."""
    change = AccessChange(**{
        field: getattr(change, field)[:rows_max] for field in change.__struct_fields__
    })  # fmt: skip
    found: dict[str, list[str]] = {
        "acls_added": [_acl(acl) for acl in change.acls_added],
        "acls_removed": [_acl(acl) for acl in change.acls_removed],
        "keys_put": [
            f"{row.user} {row.mechanism} iterations={row.iterations}" for row in change.keys_put
        ],
        "keys_removed": [f"{user} {mechanism}" for user, mechanism in change.keys_removed],
        "quotas_put": [f"{_entity(row.entity)} {row.limits}" for row in change.quotas_put],
        "delegations_put": [
            f"{row.token_id} owner={row.owner} requester={row.requester} expires={row.expires_wall_ms}"
            for row in change.tokens_put
        ],
        "delegations_removed": [*change.tokens_removed],
    }
    return {key: rows for key, rows in found.items() if rows}


def _acl(acl: Acl) -> str:
    what = f"{acl.resource_type.name}:{acl.pattern_type.name}:{acl.name}"
    return f"{acl.permission.name} {acl.principal} from {acl.host} {acl.operation.name} on {what}"


def _entity(entity: tuple[tuple[str, str | None], ...]) -> str:
    return ",".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)


def _follow_access(_image: MetadataImage, command: FollowAccess) -> Told:
    access = command.access
    counts = {
        "number": access.number, "acls": len(access.acls), "keys": len(access.keys),
        "quotas": len(access.quotas), "delegations": len(access.tokens),
    }  # fmt: skip
    return "CLUSTER", "access", counts


def _node_by_id(_image: MetadataImage, command: Any) -> Told:
    return "NODE", str(command.node_id), {}


def _register_node(_image: MetadataImage, command: RegisterNode) -> Told:
    return "NODE", str(command.node.node_id), {"incarnation": str(command.node.incarnation)}


def _add_node(_image: MetadataImage, command: AddNode) -> Told:
    return "NODE", str(command.node.node_id), {}


def _elect(_image: MetadataImage, command: ElectLeader | ElectUnclean) -> Told:
    return "NODE", str(command.leader.node_id), {"leader_epoch": int(command.leader_epoch)}


def _elect_group(_image: MetadataImage, command: ElectGroupLeader) -> Told:
    details = {"group": command.group, "leader_epoch": int(command.leader_epoch)}
    return "NODE", str(command.leader.node_id), details


def _level(_image: MetadataImage, command: FinalizeLevel) -> Told:
    return "CLUSTER", "feature-level", {"level": command.level}


def _prefer_spread(_image: MetadataImage, command: PreferSpread) -> Told:
    return "CLUSTER", "spread", {"wanted": command.wanted}


def _spread(_image: MetadataImage, command: SpreadLeaders) -> Told:
    return "CLUSTER", "spread", {"preferred": [str(node_id) for node_id in command.preferred]}


def _of_region(_image: MetadataImage, _command: Any) -> Told:
    return "REGION", "", {}


_OF_KIND: Final[Mapping[type, Callable[[MetadataImage, Any], Told]]] = {
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    SetTopicConfigs: _set_topic_configs,
    SetNodeConfigs: _set_node_configs,
    ResizeTopic: _resize_topic,
    RenameTopic: _rename_topic,
    PutRegion: _put_region,
    PutDomain: _put_domain,
    BearDomain: _put_domain,
    RecordLineage: _record_lineage,
    ChangeAccess: _access,
    FollowAccess: _follow_access,
    RegisterNode: _register_node,
    FenceNode: _node_by_id,
    UnfenceNode: _node_by_id,
    DrainNode: _node_by_id,
    RemoveNode: _node_by_id,
    AddNode: _add_node,
    WithdrawNode: _node_by_id,
    ElectLeader: _elect,
    ElectUnclean: _elect,
    ElectGroupLeader: _elect_group,
    FinalizeLevel: _level,
    PreferSpread: _prefer_spread,
    SpreadLeaders: _spread,
    GatherLeaders: _of_region,
    BeginRegionFolder: _of_region,
    JoinHistory: _of_region,
}
"""What is told of each kind of command that is recorded."""
RECORDED: Final = frozenset(_OF_KIND)
