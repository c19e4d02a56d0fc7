"""The configuration of one node: a TOML (or .json) file, overlaid by environment variables, checked as a whole.

INV-CF1  a configuration is complete and consistent or is refused: all problems at once, each with the key, what is
        wrong with it, and what would be right; nothing is guessed
A key says beside its type what it may be and why (`config.rules`): checks, texts and the table in
docs/reference/config.md come from there.

`TIDEMARK_<KEY>` (upper case) overlays a top-level key of the file. Every region of the cluster is listed in
`[[regions]]` in every node's file, itself included: ordinals are part of producer ids and never change. A region lists
its nodes in `nodes`; one that has a single node may say what is that node's in its own table.
Not here: what only the machine can tell (folders, ports), which a start and `tidemark broker --check` look at.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_type_hints

import msgspec

from region_broker.config.relations import (
    ANY_NODE,
    PORTS,
    REGION_COUNT_MAX,
    NodeTable,
    RegionTable,
    problems_together,
)
from region_broker.config.rules import (
    AddressByListener,
    BoundAddress,
    FileOrNone,
    Folder,
    FolderOrNone,
    Host,
    HttpsOrFile,
    MappingRules,
    Name,
    NameOrNone,
    Principals,
    Problem,
    ReachableAddress,
    SafeName,
    SomeOf,
    TextOrNone,
    Within,
    checked,
    split,
)
from region_broker.config.tls_relations import ListenerTable
from region_broker.controller.metadata_image import RegionImage
from region_broker.controller.near_words import near, nearest
from region_broker.former_names import CONFIG_KEYS
from region_broker.limits import (
    CATCH_UP_BYTES_PER_S_MAX,
    COMMITTED_OFFSETS_DEFAULT,
    CONNECTION_RATE_DEFAULT,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_DEFAULT,
    GROUP_COUNT_DEFAULT,
    JOURNAL_BYTES_DEFAULT,
    JOURNAL_BYTES_MAX,
    JOURNAL_BYTES_MIN,
    PARTITION_COUNT_MAX,
    PARTITION_PRODUCERS_DEFAULT,
    PRODUCERS_DEFAULT,
    REQUEST_MEMORY_BYTES_DEFAULT,
    REQUEST_MEMORY_BYTES_MIN,
    TRANSACTIONAL_ID_COUNT_DEFAULT,
)

CONNECTION_RATE_MAX: Final = 1_000_000
COUNT_MAX: Final = 10_000_000
INT32_MAX: Final = 2**31 - 1
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
TIB: Final = 1 << 40
SASL_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""What the Kafka port can offer for a login, the first choice of ours first."""
JWT_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519",
)  # fmt: skip
"""What tokens may be signed by: never by what checks them."""
OVERLAY_PREFIX: Final = "TIDEMARK_"
TABLES: Final = frozenset({"regions", "nodes", "listeners"})
"""Keys that hold tables: what stands in those is checked table by table, and no variable overlays it."""
OF_OTHER_COMMANDS: Final = frozenset(
    {
        "TIDEMARK_BOOTSTRAP", "TIDEMARK_CA", "TIDEMARK_CERTIFICATE", "TIDEMARK_CONTEXT", "TIDEMARK_CONTEXTS", "TIDEMARK_HTTP_TOKEN",
        "TIDEMARK_HTTP_TOKEN_FILE", "TIDEMARK_KEY", "TIDEMARK_MECHANISM", "TIDEMARK_NEW_PASSWORD", "TIDEMARK_PASSWORD", "TIDEMARK_PASSWORD_FILE",
        "TIDEMARK_PROTOCOL", "TIDEMARK_URL", "TIDEMARK_USER",
    }
)  # fmt: skip
"""Variables that commands other than `broker` read."""


class ConfigError(Exception):
    """The configuration cannot be used; the text names each key and the way out."""

    def __init__(self, origin: str, problems: Sequence[Problem]) -> None:
        """List all problems of `origin`."""
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{origin}: {count} (docs/reference/config.md lists every key){lines}")
        self.problems = tuple(problems)


class RegionNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of a region: addresses are `host:port` as the others (and clients) reach them.

    `rack`: where it stands: consumers that say the same read here (KIP-392); "" where that is not said. `advertised`: where clients that came
    by a further listener, by its name, meet it; of the node itself its `listeners` say it.
    """

    node_id: Annotated[int, Within(0, INT32_MAX, "Kafka clients know nodes by 31 bits")]
    kafka: ReachableAddress
    peer: ReachableAddress
    http: ReachableAddress
    rack: Annotated[str, NameOrNone()] = ""
    advertised: Annotated[dict[str, str], AddressByListener()] = {}

    @property
    def peer_address(self) -> tuple[str, int]:
        """Where other nodes meet it."""
        return split(self.peer)

    @property
    def http_address(self) -> tuple[str, int]:
        """Where its HTTP port is met."""
        return split(self.http)


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One region, and its nodes in the order of the file: one at least."""

    name: Name
    ordinal: Annotated[
        int,
        Within(0, REGION_COUNT_MAX - 1, "three bits of each producer id and leader epoch hold it"),
    ]
    nodes: list[RegionNode]

    @property
    def peer_addresses(self) -> list[tuple[str, int]]:
        """Where other regions meet its nodes: (host, port) of each."""
        return [node.peer_address for node in self.nodes]

    def image(self) -> RegionImage:
        """Return the region as the metadata keeps it: met at one address, that of its first node."""
        met = self.nodes[0]
        addresses = {key: split(getattr(met, key)) for key in PORTS}
        return RegionImage(
            name=self.name,
            ordinal=self.ordinal,
            node_id=met.node_id,
            kafka_host=addresses["kafka"][0],
            kafka_port=addresses["kafka"][1],
            peer_host=addresses["peer"][0],
            peer_port=addresses["peer"][1],
            http_host=addresses["http"][0],
            http_port=addresses["http"][1],
        )


KafkaProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
OwnProtocol = Literal["PLAINTEXT", "SSL"]
ClientAuth = Literal["none", "requested", "required"]


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A further address of the Kafka port of this node, with a name, and what is spoken there."""

    name: Name
    bind: Annotated[str, BoundAddress()]
    advertised: ReachableAddress
    security_protocol: KafkaProtocol
    tls_client_auth: ClientAuth = "none"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a node is told. Durations in ms, sizes in bytes."""

    region: Name
    cluster_id: Name
    data_dir: Annotated[str, Folder()]
    initial_primary_region: Name
    regions: list[RegionConfig]
    node_id: Annotated[
        int, Within(ANY_NODE, INT32_MAX, f"{ANY_NODE}: the only one of the region")
    ] = ANY_NODE
    listen_host: Annotated[str, Host()] = ""
    encryption_keys_file: Annotated[str, FileOrNone()] = ""
    insecure: bool = False
    http_tokens_file: Annotated[str, FileOrNone()] = ""
    flush_policy: Literal["commit", "interval", "os"] = "commit"
    flush_interval_ms: Annotated[
        int, Within(1, HOUR_MS, "a power loss takes what was acknowledged in that time")
    ] = 1000
    journal_bytes: Annotated[
        int, Within(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX, "written out whole when it is made")
    ] = JOURNAL_BYTES_DEFAULT
    cached_tail_bytes: Annotated[int, Within(0, TIB, "0: the system decides")] = 0
    scrub_bytes_per_second: Annotated[
        int, Within(0, TIB, "0: damage at rest is found when it is read, and never mended")
    ] = 4 << 20
    disk_free_bytes_min: Annotated[int, Within(0, TIB, "0: none need be free")] = 256 << 20
    metrics_names_max: Annotated[int, Within(0, 100_000, "each is several series; 0: none")] = 200
    shard_count: Annotated[
        int, Within(1, 64, "each is two logs, and a position in every tidemark")
    ] = 4
    auto_create_topics: bool = False
    replica_selector: Literal["rack", "leader"] = "rack"
    default_partition_count: Annotated[
        int, Within(1, PARTITION_COUNT_MAX, "no topic may have more")
    ] = 1
    group_initial_rebalance_delay_ms: Annotated[
        int, Within(0, 5 * MINUTE_MS, "members give up a join after five minutes")
    ] = 0
    group_min_session_timeout_ms: Annotated[
        int, Within(1, 30 * MINUTE_MS, "30 minutes are the longest that a member may ask for")
    ] = 6_000
    group_consumer_session_timeout_ms: Annotated[
        int,
        Within(
            2, 30 * MINUTE_MS, "above the heartbeat; a dead member keeps its partitions that long"
        ),
    ] = 45_000
    group_consumer_heartbeat_interval_ms: Annotated[
        int, Within(1, 30 * MINUTE_MS, "below group_consumer_session_timeout_ms")
    ] = 5_000
    group_count_max: Annotated[int, Within(1, COUNT_MAX, "each takes memory")] = GROUP_COUNT_DEFAULT
    committed_offsets_max: Annotated[int, Within(1, COUNT_MAX, "each takes memory")] = (
        COMMITTED_OFFSETS_DEFAULT
    )
    tidemark_interval_ms: Annotated[
        int, Within(1, HOUR_MS, "a takeover goes back to the last tidemark")
    ] = 20
    mirror_whole_wait_ms: Annotated[
        int, Within(-1, DAY_MS, "-1: for ever, 0: no wait, else no less than tidemark_interval_ms")
    ] = 120_000
    transaction_max_timeout_ms: Annotated[
        int,
        Within(
            1,
            INT32_MAX,
            "an open transaction holds back readers that long; Kafka's number has 31 bits",
        ),
    ] = 900_000
    transactional_id_count_max: Annotated[int, Within(1, COUNT_MAX, "each takes memory")] = (
        TRANSACTIONAL_ID_COUNT_DEFAULT
    )
    partition_producers_max: Annotated[int, Within(1, COUNT_MAX, "each takes memory")] = (
        PARTITION_PRODUCERS_DEFAULT
    )
    producers_max: Annotated[int, Within(1, COUNT_MAX, "each takes memory")] = PRODUCERS_DEFAULT
    connection_order_fence: bool = True
    catch_up_sent_bytes_per_s: Annotated[
        int, Within(1, CATCH_UP_BYTES_PER_S_MAX, "of all followers that are not in sync together")
    ] = CATCH_UP_BYTES_PER_S_MAX
    catch_up_taken_bytes_per_s: Annotated[
        int, Within(1, CATCH_UP_BYTES_PER_S_MAX, "while this node is not in sync")
    ] = CATCH_UP_BYTES_PER_S_MAX
    retention_check_interval_ms: Annotated[
        int, Within(1, DAY_MS, "what is due waits that long for its deletion")
    ] = 60_000
    deleted_topic_retention_ms: Annotated[
        int, Within(0, 365 * DAY_MS, "0: removed at once, no deletion can be undone")
    ] = DAY_MS
    request_memory_bytes: Annotated[
        int, Within(REQUEST_MEMORY_BYTES_MIN, TIB, "less does not hold a batch of the usual size")
    ] = REQUEST_MEMORY_BYTES_DEFAULT
    connections_per_address_max: Annotated[
        int, Within(1, CONNECTIONS_MAX, f"all addresses together have {CONNECTIONS_MAX}")
    ] = CONNECTIONS_PER_ADDRESS_DEFAULT
    connection_rate_per_address: Annotated[int, Within(0, CONNECTION_RATE_MAX, "0: any number")] = (
        CONNECTION_RATE_DEFAULT
    )
    sasl_mechanisms: Annotated[str, SomeOf(SASL_MECHANISMS)] = "SCRAM-SHA-256,SCRAM-SHA-512"
    sasl_users_file: Annotated[str, FileOrNone()] = ""
    sasl_max_reauth_ms: Annotated[
        int, Within(0, 30 * DAY_MS, "0: a session lasts as long as what proved it")
    ] = 0
    sasl_token_secret_file: Annotated[str, FileOrNone()] = ""
    sasl_token_lifetime_max_ms: Annotated[
        int, Within(1_000, 365 * DAY_MS, "no renewal makes a delegation token last longer")
    ] = 7 * DAY_MS
    sasl_token_expiry_ms: Annotated[
        int, Within(1_000, 365 * DAY_MS, "a delegation token ends then, unless it is renewed")
    ] = DAY_MS
    sasl_oauth_issuer: Annotated[str, TextOrNone()] = ""
    sasl_oauth_audience: Annotated[str, TextOrNone()] = ""
    sasl_oauth_jwks: Annotated[str, HttpsOrFile()] = ""
    sasl_oauth_jwks_ca: Annotated[str, FileOrNone()] = ""
    sasl_oauth_jwks_refresh_ms: Annotated[
        int, Within(MINUTE_MS, DAY_MS, "a key that was withdrawn counts for that long")
    ] = HOUR_MS
    sasl_oauth_algorithms: Annotated[str, SomeOf(JWT_ALGORITHMS)] = "RS256,PS256,ES256"
    sasl_oauth_principal_claim: Annotated[str, SafeName()] = "sub"
    sasl_oauth_clock_skew_ms: Annotated[
        int, Within(0, 5 * MINUTE_MS, "a token counts that much sooner and longer")
    ] = 30_000
    sasl_failed_delay_ms: Annotated[
        int, Within(0, 10_000, "the answer to a failed login waits that long at least")
    ] = 100
    super_users: Annotated[str, Principals()] = ""
    security_protocol: KafkaProtocol = "PLAINTEXT"
    peer_security_protocol: OwnProtocol = "PLAINTEXT"
    http_security_protocol: OwnProtocol = "PLAINTEXT"
    tls_certificate: Annotated[str, FileOrNone()] = ""
    tls_key: Annotated[str, FileOrNone()] = ""
    tls_ca: Annotated[str, FileOrNone()] = ""
    tls_crl: Annotated[str, FileOrNone()] = ""
    tls_client_auth: ClientAuth = "none"
    tls_principal_mapping_rules: Annotated[str, MappingRules()] = "DEFAULT"
    listeners: tuple[ListenerConfig, ...] = ()
    audit: Literal["auto", "on", "off"] = "auto"
    audit_dir: Annotated[str, FolderOrNone()] = ""
    audit_topic: Annotated[str, NameOrNone()] = "tidemark.audit"
    audit_file_bytes: Annotated[
        int, Within(64 << 10, 1 << 30, "a start reads and writes the last file whole")
    ] = 8 << 20
    audit_bytes_max: Annotated[
        int, Within(1 << 20, TIB, "beyond it refusals and logins are only counted")
    ] = 1 << 30
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str] = os.environ) -> Self:
        """Read `path`, overlay `environment`; raises `ConfigError`."""
        try:
            text = path.read_text(
                encoding="utf-8-sig"
            )  # some editors begin a file with a mark that nobody sees
            raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except FileNotFoundError as error:
            missing = Problem("the file", "is not there", "the path of a configuration")
            raise ConfigError(str(path), [missing]) from error
        except (OSError, ValueError, RecursionError) as error:
            unreadable = Problem(
                "the file", f"is not readable ({error})", "TOML, or JSON in a .json file"
            )
            raise ConfigError(str(path), [unreadable]) from error
        if not isinstance(raw, dict):
            raise ConfigError(str(path), [_no_table("the file")])
        for key in cls.__struct_fields__:
            value = environment.get(overlay_of(key))
            if value is not None and key not in TABLES:
                raw[key] = value
        for former, key in CONFIG_KEYS.items():
            value = environment.get(overlay_of(key), environment.get(overlay_of(former)))
            if value is not None:
                raw.pop(former, None)
                raw[key] = value
        mistaken = [overlay.problem for overlay in unknown_overlays(environment) if overlay.problem]
        return cls.build(raw, str(path), mistaken)

    @classmethod
    def build(cls, raw: Mapping[str, Any], origin: str, found: Sequence[Problem] = ()) -> Self:
        """Check `raw` and return the configuration; raises `ConfigError`, also for what was `found` before."""
        problems = list(found)
        raw = _under_present_keys(raw, problems)
        values = _checked_table("", cls, raw, problems)
        regions = [
            _region_table(path, table, problems)
            for path, table in _tables("regions", raw.get("regions"), problems)
        ]
        listeners = [
            ListenerTable(path, _checked_table(f"{path}.", ListenerConfig, table, problems))
            for path, table in _tables("listeners", raw.get("listeners") or (), problems)
        ]
        problems += problems_together({**values, "listeners": listeners}, regions)
        if problems:
            raise ConfigError(origin, problems)
        return cls(
            **values,
            listeners=tuple(ListenerConfig(**each.values) for each in listeners),
            regions=[_region(region) for region in regions],
        )

    @property
    def own(self) -> RegionConfig:
        """The entry of this node's region."""
        return next(region for region in self.regions if region.name == self.region)

    @property
    def own_node(self) -> RegionNode:
        """What is said of this node."""
        nodes = self.own.nodes
        if self.node_id == ANY_NODE:
            return nodes[0]
        return next(node for node in nodes if node.node_id == self.node_id)

    @property
    def told_listeners(self) -> list[tuple[str, str, str]]:
        """Name, what is spoken, and where clients meet this node, of each listener; that of the `kafka` address is called by what it speaks."""
        first = (self.security_protocol, self.security_protocol, self.own_node.kafka)
        return [
            first,
            *((each.name, each.security_protocol, each.advertised) for each in self.listeners),
        ]

    @property
    def siblings(self) -> list[RegionNode]:
        """The other nodes of this node's region."""
        own = self.own_node
        return [node for node in self.own.nodes if node is not own]

    @property
    def node_ids(self) -> frozenset[int]:
        """The nodes of all regions."""
        return frozenset(node.node_id for region in self.regions for node in region.nodes)

    @property
    def others(self) -> list[RegionConfig]:
        """The entries of all other regions."""
        return [region for region in self.regions if region.name != self.region]


class Overlay(msgspec.Struct, frozen=True):
    """A variable that looks like one of ours and overlays nothing; `problem`, if it was meant to."""

    name: str
    problem: Problem | None


def overlay_of(key: str) -> str:
    """Return the variable that overlays a key."""
    return OVERLAY_PREFIX + key.upper()


def unknown_overlays(environment: Mapping[str, str]) -> list[Overlay]:
    """Return the variables that begin as ours do and are nobody's.

    What is near to a key is a mistake. What is not may be none of ours: Kubernetes sets TIDEMARK_SERVICE_HOST and
    others for a service of that name.
    """
    known = {overlay_of(key): key for key in NodeConfig.__struct_fields__ if key not in TABLES}
    known |= {overlay_of(former): key for former, key in CONFIG_KEYS.items()}
    found = []
    for name in sorted(environment):
        if not name.startswith(OVERLAY_PREFIX) or name in known or name in OF_OTHER_COMMANDS:
            continue
        meant = near(name.removeprefix(OVERLAY_PREFIX), known.values())
        problem: Problem | None = None
        if name in {overlay_of("regions"), overlay_of("listeners")}:
            what = name.removeprefix(OVERLAY_PREFIX).lower()
            problem = Problem(name, "overlays nothing", f"{what} come from the file only")
        elif meant is not None:
            right = f"unset it; did you mean {overlay_of(meant)}?"
            problem = Problem(name, "overlays no key", right)
        found.append(Overlay(name, problem))
    return found


def _under_present_keys(raw: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return `raw` with former keys under their present names (INV-FMN1)."""
    present = dict(raw)
    for former, key in CONFIG_KEYS.items():
        if former in present and key in present:
            problems.append(
                Problem(former, f"is the former name of {key}", "only one of the two: remove it")
            )
        if former in present:
            present.setdefault(key, present.pop(former))
            present.pop(former, None)
    return present


def _checked_table(
    prefix: str, kind: type[msgspec.Struct], raw: Mapping[str, Any], problems: list[Problem]
) -> dict[str, Any]:
    """Return the values that are right by themselves; tell what is unknown, missing or wrong.

    What holds tables is left to who reads those.
    """
    types = get_type_hints(kind, include_extras=True)
    beside = _OF_ITS_NODE if kind is RegionConfig else frozenset()
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in TABLES]
    values: dict[str, Any] = {}
    problems += [
        _unknown(prefix, key, kind) for key in raw if key not in types and key not in beside
    ]
    for field in fields:
        key = prefix + field.name
        if field.name in raw:
            value, problem = checked(key, types[field.name], raw[field.name])
            if problem is None:
                values[field.name] = value
            else:
                problems.append(problem)
        elif field.required:
            problems.append(Problem(key, "is missing", "it has no default"))
        else:
            values[field.name] = _default_of(field)
    return values


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


_OF_ITS_NODE: Final = frozenset(RegionNode.__struct_fields__)
_PLACES: Final[Mapping[type[msgspec.Struct], str]] = {
    NodeConfig: "it is a key of the node: write it above the first [[regions]]",
    RegionConfig: "it is a key of a region: write it below [[regions]]",
    RegionNode: "it is a key of a region's node: write it below [[regions]], or below [[regions.nodes]]",
    ListenerConfig: "it is a key of a listener: write it below [[listeners]]",
}


def _unknown(prefix: str, key: str, kind: type[msgspec.Struct]) -> Problem:
    for other, place in _PLACES.items():
        if other is not kind and key in other.__struct_fields__:
            return Problem(prefix + key, "is unknown", place)
    keys = (*kind.__struct_fields__, *(_OF_ITS_NODE if kind is RegionConfig else ()))
    return Problem(prefix + key, "is unknown", "there is no such key" + nearest(key, keys))


def _region_table(path: str, raw: Mapping[str, Any], problems: list[Problem]) -> RegionTable:
    """Return a region with its nodes: those of its list, or the one whose keys stand in its own table."""
    values = _checked_table(f"{path}.", RegionConfig, raw, problems)
    of_its_node = {key: value for key, value in raw.items() if key in _OF_ITS_NODE}
    if "nodes" not in raw:
        only = _checked_table(f"{path}.", RegionNode, of_its_node, problems)
        return RegionTable(path, values, [NodeTable(path, only)])
    right = "each node has its own, below [[regions.nodes]]"
    problems += [
        Problem(f"{path}.{key}", f"stands beside {path}.nodes", right) for key in of_its_node
    ]
    nodes = [
        NodeTable(of_node, _checked_table(f"{of_node}.", RegionNode, table, problems))
        for of_node, table in _tables(f"{path}.nodes", raw["nodes"], problems)
    ]
    return RegionTable(path, values, nodes)


def _region(table: RegionTable) -> RegionConfig:
    """Return the region of a table in which nothing is wrong."""
    nodes = [RegionNode(**node.values) for node in table.nodes]
    return RegionConfig(**table.values, nodes=nodes)


_ONE_AT_LEAST: Final[Mapping[str, str]] = {
    "regions": "one [[regions]] for every region, this one included",
    "nodes": "one [[regions.nodes]] for every node of the region",
    "listeners": "one [[listeners]] for each further address of the Kafka port, or none",
}


def _tables(
    key: str, tables: object, problems: list[Problem]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of a list that holds one at least, each with where it stands."""
    if tables == ():
        return
    if not isinstance(tables, list) or not tables:
        wrong = "is missing" if tables is None or tables == [] else "is no list of tables"
        problems.append(Problem(key, wrong, _ONE_AT_LEAST[key.rpartition(".")[2]]))
        return
    for at, table in enumerate(tables):
        if isinstance(table, Mapping):
            yield f"{key}[{at}]", table
        else:
            problems.append(_no_table(f"{key}[{at}]"))


def _no_table(key: str) -> Problem:
    return Problem(key, "is no table", "keys and their values")
