"""The SQLite tables behind the metadata image, and the diff that keeps them equal to it.

One row per thing, JSON only where a value is a map that is read and written whole. Alembic owns the
schema (`migrations/`); `SCHEMA_REVISION` is the revision this code reads and writes.

INV-MDT1  a change costs what it changes: of a thing that is the very same object in both images no row is made, however many there are
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    inspect,
    select,
)

from region_broker.controller.cluster_image import (
    AddedNode,
    FolderImage,
    Leadership,
    NodeImage,
    Spread,
)
from region_broker.controller.metadata_image import (
    DEFAULT_DOMAIN,
    DeletedTopic,
    DomainImage,
    MetadataImage,
    RegionImage,
    TopicImage,
)
from region_broker.controller.raft.entries import LogIndex, Member, Term
from region_broker.controller.region_folder import RegionFolder
from region_broker.security.access import (
    NO_ACCESS,
    Access,
    Acl,
    DelegationToken,
    Quota,
    ScramKeys,
    in_order,
)

SCHEMA_REVISION: Final = "0008"

_Rows = dict[Any, dict[str, Any]]
"""Rows by their primary key."""

metadata = MetaData()

counters = Table(
    "counters",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
cluster = Table("cluster", metadata, Column("cluster_id", String, primary_key=True))
topics = Table(
    "topics",
    metadata,
    Column("name", String, primary_key=True),
    Column("topic_id", String, nullable=False, unique=True),
    Column("partition_count", Integer, nullable=False),
    Column("domain", String, nullable=False),
    Column("internal", Integer, nullable=False),
    Column("configs", LargeBinary, nullable=False),
    Column("copied_count", Integer, nullable=False, server_default="0"),
)
regions = Table(
    "regions",
    metadata,
    Column("name", String, primary_key=True),
    Column("ordinal", Integer, nullable=False, unique=True),
    Column("node_id", Integer, nullable=False),
    Column("endpoints", LargeBinary, nullable=False),
)
domains = Table(
    "domains",
    metadata,
    Column("name", String, primary_key=True),
    Column("acting_region", String, nullable=False),
    Column("region_epoch", Integer, nullable=False),
    Column("shard_count", Integer, nullable=False),
    Column("lineage", LargeBinary, nullable=False),
    Column("birth", LargeBinary),
)

deleted_topics = Table(
    "deleted_topics",
    metadata,
    Column("topic_id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("partition_count", Integer, nullable=False),
    Column("domain", String, nullable=False),
    Column("configs", LargeBinary, nullable=False),
    Column("metadata_version", BigInteger, nullable=False),
    Column("deleted_wall_ms", BigInteger, nullable=False),
)

node_configs = Table(
    "node_configs",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("configs", LargeBinary, nullable=False),
)

quorum_position = Table(
    "quorum_position",
    metadata,
    Column("incarnation", String, primary_key=True),
    Column("node_id", Integer, nullable=False),
    Column("applied_index", BigInteger, nullable=False),
    Column("applied_term", BigInteger, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", String, nullable=False, unique=True),
    Column("life", String, nullable=False),
    Column("endpoints", LargeBinary, nullable=False),
    Column("rack", String, nullable=False),
    Column("feature_level", Integer, nullable=False),
    Column("fenced", Integer, nullable=False),
    Column("draining", Integer, nullable=False),
    Column("former", LargeBinary, nullable=False),
)

folders = Table(
    "folders",
    metadata,
    Column("incarnation", String, primary_key=True),
    Column("node_id", Integer, nullable=False),
    Column("since_version", BigInteger, nullable=False),
    Column("removed", Integer, nullable=False),
    Column("last_start", LargeBinary, nullable=False),
)

leadership = Table(
    "leadership",
    metadata,
    Column("led", String, primary_key=True),
    Column("leader", LargeBinary, nullable=False),
    Column("leader_epoch", BigInteger, nullable=False),
    Column("in_sync", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("unclean", BigInteger, nullable=False),
)

_BEHIND_A_RAISE: Final = MetaData()
"""Tables of later feature levels than the first one: made when something is in them, so that an older release can be gone back to until
its level is raised (ADR 52)."""
added_nodes = Table(
    "added_nodes",
    _BEHIND_A_RAISE,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("node", LargeBinary, nullable=False),
)

access_rows = Table(
    "access_rows",
    MetaData(),
    Column("name", String, primary_key=True),
    Column("row", LargeBinary, nullable=False),
)
"""Users' keys, ACLs, quotas and tokens, a row each: made at feature level 4, when something is in them (ADR 52)."""

region_folder = Table(
    "region_folder",
    metadata,
    Column("folder_id", String, primary_key=True),
    Column("identity", LargeBinary, nullable=False),
    Column("failover_number", BigInteger, nullable=False),
    Column("failover", LargeBinary, nullable=False),
)

# Made when leaders are spread for the first time, at feature level 3: until that is finalized a node can go back to a version that
# knows revision 0008, with its folder as it is (ADR 52).
spread = Table(
    "spread",
    MetaData(),
    Column("domain", String, primary_key=True),
    Column("preferred", LargeBinary, nullable=False),
    Column("groups", LargeBinary, nullable=False),
    Column("topics", LargeBinary, nullable=False),
)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """An entry of a member's log of the quorum: what a stored image is the image after."""

    member: Member
    index: LogIndex
    term: Term


_KEY: Final = "key_of_row"
_TABLES: Final = (*metadata.sorted_tables, added_nodes, access_rows, spread)
_INSERTS: Final = {table: insert(table) for table in _TABLES}
_DELETES: Final = {
    table: delete(table).where(next(iter(table.primary_key.columns)) == bindparam(_KEY))
    for table in _TABLES
}
"""Made once: to put a statement together costs more than to carry it out."""
_FORGET_POSITION: Final = delete(quorum_position)
_COUNTERS: Final = (
    "version", "node_start_count", "last_leader_epoch", "deletions_unknown_to", "feature_level",
    "grown_to",
)  # fmt: skip
_ENDPOINTS: Final = (
    "kafka_host", "kafka_port", "peer_host", "peer_port", "http_host", "http_port",
)  # fmt: skip
_IDENTITY: Final = ("born", "joined", "chain", "met")
_SPREAD: Final = ("preferred", "groups", "topics")
_FORMER: Final = ("former_lives", "former_incarnations", "lowest_level")
"""What of a node stands in the column `former`: an older version reads past what it does not know there."""
_ALL_LOGS: Final = "all logs"
"""What the one leader of a region leads: the one row of `leadership`."""


def read_image(connection: Connection) -> MetadataImage | None:
    """Return the stored image, or None in a store that was never initialised."""
    cluster_id = connection.execute(select(cluster.c.cluster_id)).scalar()
    if cluster_id is None:
        return None
    counts = {row.name: row.value for row in connection.execute(select(counters))}
    return MetadataImage(
        cluster_id=cluster_id,
        topics={row["name"]: _topic(row) for row in _rows(connection, topics)},
        regions={row["name"]: _region(row) for row in _rows(connection, regions)},
        domains={row["name"]: _domain(row) for row in _rows(connection, domains)},
        deleted=_deleted_topics(connection),
        nodes={row["node_id"]: _node(row) for row in _rows(connection, nodes)},
        folders=_folders(connection),
        leadership=_leadership(connection),
        node_configs=_node_configs(connection),
        added_nodes=_added_nodes(connection),
        region_folder=_region_folder(connection),
        spread=_spread(connection),
        access=_access(connection),
        spread_wanted=bool(counts.get("spread_wanted", False)),
        **{name: counts[name] for name in _COUNTERS if name in counts},  # an older folder has fewer
    )


def read_position(connection: Connection) -> LogPosition | None:
    """Return after which entry the stored image is; None in a store that no log was applied to yet."""
    row = connection.execute(select(quorum_position)).one_or_none()
    if row is None:
        return None
    member = Member(row.node_id, UUID(row.incarnation))
    return LogPosition(member, LogIndex(row.applied_index), Term(row.applied_term))


def write_position(connection: Connection, position: LogPosition) -> None:
    """Write after which entry the stored image is; the caller holds the transaction that writes the image, too."""
    connection.execute(_FORGET_POSITION)
    connection.execute(
        _INSERTS[quorum_position],
        {
            "incarnation": position.member.incarnation.hex,
            "node_id": position.member.node_id,
            "applied_index": position.index,
            "applied_term": position.term,
        },
    )


def _rows(connection: Connection, table: Table) -> list[dict[str, Any]]:
    return [
        {str(column): value for column, value in row._mapping.items()}
        for row in connection.execute(select(table))
    ]


def write_difference(connection: Connection, old: MetadataImage | None, new: MetadataImage) -> None:
    """Write what changed from `old` to `new`; the caller holds the transaction."""
    if old is None:
        connection.execute(insert(cluster).values(cluster_id=new.cluster_id))
    for name in _COUNTERS:
        if old is None or getattr(old, name) != getattr(new, name):
            _count(connection, name, getattr(new, name))
    if (old is not None and old.spread_wanted) != new.spread_wanted:
        _count(connection, "spread_wanted", int(new.spread_wanted))
    for table, kind, rows_of in _KINDS:
        before = {} if old is None else getattr(old, kind)
        _write_changed(connection, table, before, getattr(new, kind), rows_of)
    if old is None or old.leadership is not new.leadership:
        _write_rows(connection, leadership, _leadership_rows(old), _leadership_rows(new))
    _write_changed(
        connection,
        node_configs,
        old.node_configs if old else {},
        new.node_configs,
        _node_config_rows,
    )
    _write_what_came_later(connection, old, new)
    if old is None or old.region_folder is not new.region_folder:
        _write_rows(connection, region_folder, _region_folder_rows(old), _region_folder_rows(new))
    _write_changed(
        connection, deleted_topics, old.deleted if old else {}, new.deleted, _deleted_rows
    )


def _count(connection: Connection, name: str, value: int) -> None:
    connection.execute(_DELETES[counters], {_KEY: name})
    connection.execute(_INSERTS[counters], {"name": name, "value": value})


def _write_what_came_later(
    connection: Connection, old: MetadataImage | None, new: MetadataImage
) -> None:
    """Write what later feature levels than the first one brought; its tables are made when something is in them (ADR 52)."""
    if (old.added_nodes if old else {}) != new.added_nodes:
        added_nodes.create(connection, checkfirst=True)
        before_nodes = old.added_nodes if old else {}
        _write_changed(connection, added_nodes, before_nodes, new.added_nodes, _added_rows)
    if old is None or old.spread is not new.spread:
        if new.spread is not None:
            spread.create(connection, checkfirst=True)
        _write_rows(connection, spread, _spread_rows(old), _spread_rows(new))
    before = NO_ACCESS if old is None else old.access
    if before is not new.access and before != new.access:
        access_rows.create(connection, checkfirst=True)
        same = _same_rows(before, new.access)
        rows_before, rows = _access_rows(before, same), _access_rows(new.access, same)
        _write_rows(connection, access_rows, rows_before, rows)


def _write_changed(
    connection: Connection,
    table: Table,
    before: Mapping[Any, Any],
    after: Mapping[Any, Any],
    rows_of: Callable[[Mapping[Any, Any]], _Rows],
) -> None:
    """Write the rows of what is another object in `after`, or in one of both only (INV-MDT1)."""
    if before is after:
        return
    same = {key for key, thing in after.items() if before.get(key) is thing}
    was, now = (
        {key: thing for key, thing in things.items() if key not in same}
        for things in (before, after)
    )
    _write_rows(connection, table, rows_of(was), rows_of(now))


def _write_rows(connection: Connection, table: Table, before: _Rows, after: _Rows) -> None:
    changed = list(_changed_names(before, after))
    for name in changed:
        connection.execute(_DELETES[table], {_KEY: name})
    for name in changed:  # after all that goes: a topic that is renamed keeps its id
        if name in after:
            connection.execute(_INSERTS[table], after[name])


def _topic_rows(found: Mapping[str, TopicImage]) -> _Rows:
    return {name: _topic_row(topic) for name, topic in found.items()}


def _region_rows(found: Mapping[str, RegionImage]) -> _Rows:
    return {name: _region_row(region) for name, region in found.items()}


def _domain_rows(found: Mapping[str, DomainImage]) -> _Rows:
    return {name: _domain_row(domain) for name, domain in found.items()}


def _node_config_rows(found: Mapping[int, Mapping[str, str]]) -> _Rows:
    return {
        node_id: {"node_id": node_id, "configs": msgspec.json.encode(configs)}
        for node_id, configs in found.items()
    }


def _node_configs(connection: Connection) -> dict[int, dict[str, str]]:
    return {
        row["node_id"]: msgspec.json.decode(row["configs"], type=dict[str, str])
        for row in _rows(connection, node_configs)
    }


def _added_rows(found: Mapping[int, AddedNode]) -> _Rows:
    return {
        node_id: {"node_id": node_id, "node": msgspec.json.encode(node)}
        for node_id, node in found.items()
    }


def _added_nodes(connection: Connection) -> dict[int, AddedNode]:
    if not inspect(connection).has_table(added_nodes.name):
        return {}
    return {
        row["node_id"]: msgspec.json.decode(row["node"], type=AddedNode)
        for row in _rows(connection, added_nodes)
    }


def _deleted_rows(found: Mapping[UUID, DeletedTopic]) -> _Rows:
    return {str(key): _deleted_row(each) for key, each in found.items()}


def _node_rows(found: Mapping[int, NodeImage]) -> _Rows:
    return {node_id: _node_row(node) for node_id, node in found.items()}


def _folder_rows(found: Mapping[UUID, FolderImage]) -> _Rows:
    return {key.hex: _folder_row(key, folder) for key, folder in found.items()}


def _leadership_rows(image: MetadataImage | None) -> _Rows:
    found = image.leadership if image else None
    return {} if found is None else {_ALL_LOGS: _leadership_row(found)}


def _region_folder_rows(image: MetadataImage | None) -> _Rows:
    found = image.region_folder if image else None
    if found is None:
        return {}
    identity = {key: getattr(found, key) for key in _IDENTITY}
    return {
        found.folder_id: {
            "folder_id": found.folder_id,
            "identity": msgspec.json.encode(identity),
            "failover_number": found.failover_number,
            "failover": found.failover,
        }
    }


def _spread_rows(image: MetadataImage | None) -> _Rows:
    found = image.spread if image else None
    if found is None:
        return {}
    values = {key: msgspec.json.encode(getattr(found, key)) for key in _SPREAD}
    return {DEFAULT_DOMAIN: {"domain": DEFAULT_DOMAIN, **values}}


def _spread(connection: Connection) -> Spread | None:
    if not inspect(connection).has_table(spread.name):
        return None
    for row in _rows(connection, spread):
        values = {key: msgspec.json.decode(row[key]) for key in _SPREAD}
        return msgspec.convert(values, Spread, strict=False)
    return None


_ACCESS: Final = ("acls", "keys", "quotas", "tokens")


def _same_rows(before: Access, access: Access) -> frozenset[int]:
    """Return the `id` of each row that is in both, as the very same object: most are, and need no look."""
    return frozenset[int]().union(
        *({*map(id, getattr(before, kind))} & {*map(id, getattr(access, kind))} for kind in _ACCESS)
    )


def _access_rows(access: Access, without: frozenset[int]) -> _Rows:
    if access == NO_ACCESS:
        return {}
    rows: _Rows = {"number": {"name": "number", "row": msgspec.json.encode(access.number)}}
    for kind in _ACCESS:
        for row in getattr(access, kind):
            if id(row) in without:
                continue
            encoded = msgspec.json.encode(row)
            name = f"{kind} {_access_name(row)}"
            rows[name] = {"name": name, "row": encoded}
    return rows


def _access_name(row: Acl | ScramKeys | Quota | DelegationToken) -> str:
    """Return what tells a row from others of its kind (INV-SAC3)."""
    key: object = row
    match row:
        case Acl():
            pass
        case ScramKeys(user=user, mechanism=mechanism):
            key = (user, mechanism)
        case Quota(entity=entity):
            key = entity
        case DelegationToken(token_id=token_id):
            key = token_id
    return msgspec.json.encode(key).decode()


def _access(connection: Connection) -> Access:
    if not inspect(connection).has_table(access_rows.name):
        return NO_ACCESS
    found: dict[str, Any] = {kind: [] for kind in _ACCESS}
    number = 0
    for row in _rows(connection, access_rows):
        kind, _, _ = row["name"].partition(" ")
        if kind == "number":
            number = msgspec.json.decode(row["row"], type=int)
        else:
            found[kind].append(msgspec.json.decode(row["row"]))
    rows = msgspec.convert(
        {**found, "number": number}, Access, strict=False, builtin_types=(bytes,)
    )
    return in_order(rows)


def _region_folder(connection: Connection) -> RegionFolder | None:
    for row in _rows(connection, region_folder):
        return msgspec.convert({**row, **msgspec.json.decode(row["identity"])}, RegionFolder)
    return None


def _changed_names(before: _Rows, after: _Rows) -> Iterator[Any]:
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield name


def _topic_row(topic: TopicImage) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partition_count": topic.partition_count,
        "domain": topic.domain,
        "internal": int(topic.internal),
        "configs": msgspec.json.encode(topic.configs),
        "copied_count": topic.copied_count,
    }


def _topic(row: Mapping[str, Any]) -> TopicImage:
    configs = msgspec.json.decode(row["configs"], type=dict[str, str])
    return msgspec.convert(
        {**row, "configs": configs, "internal": bool(row["internal"])}, TopicImage
    )


def _deleted_row(deleted: DeletedTopic) -> dict[str, Any]:
    row = _topic_row(deleted.topic)
    del (
        row["internal"],
        row["copied_count"],
    )  # a ledger is never deleted, and nobody copies what is gone
    return {
        **row,
        "metadata_version": deleted.metadata_version,
        "deleted_wall_ms": deleted.deleted_wall_ms,
    }


def _deleted_topics(connection: Connection) -> dict[UUID, DeletedTopic]:
    rows = sorted(_rows(connection, deleted_topics), key=lambda row: row["metadata_version"])
    return {UUID(row["topic_id"]): _deleted(row) for row in rows}


def _deleted(row: dict[str, Any]) -> DeletedTopic:
    version, wall_ms = row.pop("metadata_version"), row.pop("deleted_wall_ms")
    topic = _topic({**row, "internal": 0})
    return DeletedTopic(topic=topic, metadata_version=version, deleted_wall_ms=wall_ms)


def _region_row(region: RegionImage) -> dict[str, Any]:
    endpoints = {key: getattr(region, key) for key in _ENDPOINTS}
    return {
        "name": region.name,
        "ordinal": region.ordinal,
        "node_id": region.node_id,
        "endpoints": msgspec.json.encode(endpoints),
    }


def _region(row: Mapping[str, Any]) -> RegionImage:
    endpoints = msgspec.json.decode(row["endpoints"], type=dict[str, Any])
    identity = {key: row[key] for key in ("name", "ordinal", "node_id")}
    return msgspec.convert({**identity, **endpoints}, RegionImage)


def _domain_row(domain: DomainImage) -> dict[str, Any]:
    return {
        "name": domain.name,
        "acting_region": domain.acting_region,
        "region_epoch": domain.region_epoch,
        "shard_count": domain.shard_count,
        "lineage": msgspec.json.encode(domain.lineage),
        "birth": None if domain.birth is None else msgspec.json.encode(domain.birth),
    }


def _domain(row: Mapping[str, Any]) -> DomainImage:
    lineage, birth = msgspec.json.decode(row["lineage"]), row["birth"]
    birth = None if birth is None else msgspec.json.decode(birth)
    return msgspec.convert({**row, "lineage": lineage, "birth": birth}, DomainImage)


def _node_row(node: NodeImage) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "incarnation": node.incarnation.hex,
        "life": node.life.hex,
        "endpoints": msgspec.json.encode({key: getattr(node, key) for key in _ENDPOINTS}),
        "rack": node.rack,
        "feature_level": node.feature_level,
        "fenced": int(node.fenced),
        "draining": int(node.draining),
        "former": msgspec.json.encode({key: getattr(node, key) for key in _FORMER}),
    }


def _node(row: Mapping[str, Any]) -> NodeImage:
    flags = {key: bool(row[key]) for key in ("fenced", "draining")}
    endpoints, former = msgspec.json.decode(row["endpoints"]), msgspec.json.decode(row["former"])
    return msgspec.convert({**row, **flags, **endpoints, **former}, NodeImage)


def _folder_row(incarnation: UUID, folder: FolderImage) -> dict[str, Any]:
    return {
        "incarnation": incarnation.hex,
        "node_id": folder.node_id,
        "since_version": folder.since_version,
        "removed": int(folder.removed),
        "last_start": msgspec.json.encode(folder.last_start),
    }


def _folders(connection: Connection) -> dict[UUID, FolderImage]:
    return {UUID(row["incarnation"]): _folder(row) for row in _rows(connection, folders)}


def _folder(row: Mapping[str, Any]) -> FolderImage:
    last_start = msgspec.json.decode(row["last_start"])
    return msgspec.convert(
        {**row, "removed": bool(row["removed"]), "last_start": last_start}, FolderImage
    )


def _leadership_row(found: Leadership) -> dict[str, Any]:
    return {
        "led": _ALL_LOGS,
        "leader": msgspec.json.encode(found.leader),
        "leader_epoch": found.leader_epoch,
        "in_sync": msgspec.json.encode(found.in_sync),
        "version": found.version,
        "unclean": found.unclean,
    }


def _leadership(connection: Connection) -> Leadership | None:
    for row in _rows(connection, leadership):
        decoded = {key: msgspec.json.decode(row[key]) for key in ("leader", "in_sync")}
        return msgspec.convert({**row, **decoded}, Leadership)
    return None


_KINDS: Final = (
    (topics, "topics", _topic_rows),
    (regions, "regions", _region_rows),
    (domains, "domains", _domain_rows),
    (nodes, "nodes", _node_rows),
    (folders, "folders", _folder_rows),
)
"""Of what there are many: its table, its name in an image, and how its rows are made."""
