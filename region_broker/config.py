"""The configuration of one node: a TOML (or .json) file, overlaid by environment variables, checked as a whole.

INV-CF1  a configuration is complete and consistent or is refused, with the key, what is wrong with it, and
        what would be right; nothing is guessed

`TIDEMARK_<KEY>` (upper case) overlays a top-level key of the file. Every region of the cluster is listed in
`[[regions]]` in every node's file, itself included: ordinals are part of producer ids and never change.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from region_broker.controller.metadata_image import RegionImage
from region_broker.limits import (
    CONNECTION_RATE_DEFAULT,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_DEFAULT,
    GROUP_COUNT_DEFAULT,
    REQUEST_MEMORY_BYTES_DEFAULT,
    REQUEST_MEMORY_BYTES_MIN,
    TRANSACTIONAL_ID_COUNT_DEFAULT,
)

REGION_COUNT_MAX = 8
CONNECTION_RATE_MAX = 1_000_000


class ConfigError(Exception):
    """The configuration cannot be used; the text names the key and the way out."""


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One region: addresses are `host:port` as the others (and clients) reach them."""

    name: str
    ordinal: int
    node_id: int
    kafka: str
    peer: str
    http: str

    def image(self) -> RegionImage:
        """Return the region as the metadata keeps it; raises `ConfigError` on a bad address."""
        addresses = {key: split_address(f"regions.{self.name}.{key}", getattr(self, key))
                     for key in ("kafka", "peer", "http")}  # fmt: skip
        return RegionImage(
            name=self.name,
            ordinal=self.ordinal,
            node_id=self.node_id,
            kafka_host=addresses["kafka"][0],
            kafka_port=addresses["kafka"][1],
            peer_host=addresses["peer"][0],
            peer_port=addresses["peer"][1],
            http_host=addresses["http"][0],
            http_port=addresses["http"][1],
        )


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a node is told. Durations in ms, sizes in bytes."""

    region: str
    cluster_id: str
    data_dir: str
    home_region: str
    regions: list[RegionConfig]
    listen_host: str = ""
    flush_policy: Literal["commit", "interval", "os"] = "commit"
    flush_interval_ms: int = 1000
    cached_tail_bytes: int = 0
    disk_free_bytes_min: int = 256 << 20
    metrics_names_max: int = 200
    shard_count: int = 4
    auto_create_topics: bool = False
    default_partition_count: int = 1
    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_count_max: int = GROUP_COUNT_DEFAULT
    tidemark_interval_ms: int = 20
    mirror_whole_wait_ms: int = 120_000
    transaction_max_timeout_ms: int = 900_000
    transactional_id_count_max: int = TRANSACTIONAL_ID_COUNT_DEFAULT
    connection_order_fence: bool = True
    retention_check_interval_ms: int = 60_000
    request_memory_bytes: int = REQUEST_MEMORY_BYTES_DEFAULT
    connections_per_address_max: int = CONNECTIONS_PER_ADDRESS_DEFAULT
    connection_rate_per_address: int = CONNECTION_RATE_DEFAULT
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str] = os.environ) -> Self:
        """Read `path`, overlay `environment`; raises `ConfigError`."""
        try:
            text = path.read_text(encoding="utf-8")
            raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except FileNotFoundError as error:
            raise ConfigError(f"there is no configuration file {path}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not readable: {error}") from error
        for key in cls.__struct_fields__:
            value = environment.get(f"TIDEMARK_{key.upper()}")
            if value is not None and key != "regions":
                raw[key] = value
        return cls.build(raw, str(path))

    @classmethod
    def build(cls, raw: Mapping[str, Any], origin: str) -> Self:
        """Check `raw` and return the configuration; raises `ConfigError` naming the key."""
        try:
            config = msgspec.convert(raw, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{origin}: {error}. Every key and its default is listed in docs/reference/config.md."
            ) from error
        config._check(origin)
        return config

    def _check(self, origin: str) -> None:
        names = [region.name for region in self.regions]
        problems = [
            *_unique("name", names),
            *_unique("ordinal", [region.ordinal for region in self.regions]),
            *_unique("node_id", [region.node_id for region in self.regions]),
        ]
        problems += [f"{key} = {value!r} is none of the regions {', '.join(names)}"
                     for key, value in (("region", self.region), ("home_region", self.home_region))
                     if value not in names]  # fmt: skip
        problems += [f"regions.{region.name}.ordinal = {region.ordinal} is not in 0..{REGION_COUNT_MAX - 1}"
                     for region in self.regions
                     if not 0 <= region.ordinal < REGION_COUNT_MAX]  # fmt: skip
        if not 1 <= self.shard_count <= 64:
            problems.append(f"shard_count = {self.shard_count} is not in 1..64")
        if self.request_memory_bytes < REQUEST_MEMORY_BYTES_MIN:
            problems.append(
                f"request_memory_bytes = {self.request_memory_bytes} is below {REQUEST_MEMORY_BYTES_MIN}"
            )
        problems += [f"{key} = {value} is below 0"
                     for key, value in (("cached_tail_bytes", self.cached_tail_bytes),
                                        ("disk_free_bytes_min", self.disk_free_bytes_min),
                                        ("metrics_names_max", self.metrics_names_max))
                     if value < 0]  # fmt: skip
        if not 0 <= self.connection_rate_per_address <= CONNECTION_RATE_MAX:
            problems.append(
                f"connection_rate_per_address = {self.connection_rate_per_address} is not in "
                f"0..{CONNECTION_RATE_MAX} (0: any number)"
            )
        if not 1 <= self.connections_per_address_max <= CONNECTIONS_MAX:
            problems.append(
                f"connections_per_address_max = {self.connections_per_address_max} is not in "
                f"1..{CONNECTIONS_MAX}"
            )
        problems += [f"{key} = {value} is below 1"
                     for key, value in (("group_count_max", self.group_count_max),
                                        ("transactional_id_count_max", self.transactional_id_count_max))
                     if value < 1]  # fmt: skip
        if problems:
            raise ConfigError(f"{origin}: " + "; ".join(problems))
        for region in self.regions:
            region.image()

    @property
    def own(self) -> RegionConfig:
        """The entry of this node's region."""
        return next(region for region in self.regions if region.name == self.region)

    @property
    def node_ids(self) -> frozenset[int]:
        """The nodes of all regions."""
        return frozenset(region.node_id for region in self.regions)

    @property
    def others(self) -> list[RegionConfig]:
        """The entries of all other regions."""
        return [region for region in self.regions if region.name != self.region]


def split_address(key: str, address: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port``; raises `ConfigError` naming `key`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{key} = {address!r} is not host:port with a port in 1..65535")
    return host.strip("[]"), int(port)


def _unique(what: str, values: list[Any]) -> list[str]:
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    return [f"regions: {what} {value} is used twice" for value in twice]
