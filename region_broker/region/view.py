"""A region as its operators see it: what HTTP and the CLI are told, and the orders they give.

Everything returned is plain JSON: no object of ours leaves here. It is read from memory; only losses, loss statements
and deletions read the disk.

INV-RVW1  a node that does not speak for its region tells what is recorded and what it holds itself; tidemark, lag and link are not
          known there, and it waits for nothing: who leads tells them once for the region

Not here: routes and status codes (`http_api`), orders' execution (`failover.operations`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from geo_replicator.failover import Phase, State
from idempotency.identity import TIDEMARK_LEDGER, TopicPartition
from region_broker.log.recovery.kept_deletions import KeptDeletions
from region_broker.region.cluster.cluster_view import ClusterView
from region_broker.region.cluster.region_places import RegionPlaces
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.operations import FailoverOperations, OperationRefused
from region_broker.region.ports import RegionLog
from region_broker.wire.cooperative_yield import CooperativeYield


@dataclass(frozen=True, slots=True, kw_only=True)
class AmongNodes:
    """What a node is among those of its region. `view`: None where it is alone; `why_silent`: why it does not speak for the region,
    empty where it does."""

    places: RegionPlaces
    view: Callable[[], ClusterView | None] = lambda: None
    why_silent: Callable[[], str] = lambda: ""


class RegionService:
    """Implements what `http_api` needs of a region."""

    def __init__(
        self,
        driver: FailoverDriver,
        operations: FailoverOperations,
        kept: KeptDeletions,
        disk_refusal: Callable[[], str | None],
        damage: Callable[[], str | None] = lambda: None,
        among: AmongNodes | None = None,
    ) -> None:
        """Speak for the region of `driver`; `disk_refusal` says why its disk takes no records of clients, `damage` what
        of its logs is damaged and not mended, `among` what this node is among those of its region.
        """
        metadata = driver.parts.metadata
        places = RegionPlaces(operations.region, lambda: metadata.image)
        self._among = among or AmongNodes(places=places)
        self._disk_refusal = disk_refusal
        self._damage = damage
        self._driver = driver
        self._kept = kept
        self._operations = operations

    @property
    def region(self) -> str:
        """Return this node's region."""
        return self._operations.region

    @property
    def domain(self) -> str:
        """Return the domain that this service speaks for."""
        return self._driver.parts.domain

    @property
    def refusal(self) -> type[OperationRefused]:
        """Return the exception of refused orders, which has `code` and `reason`."""
        return OperationRefused

    def not_ready(self) -> str | None:
        """Return why this region serves neither writes nor mirrored reads, None if it does."""
        parts = self._driver.parts
        if failed := self._failed():
            return "; ".join(failed.values())
        mirrors = self._driver.state.phase is Phase.MIRRORING and not self._among.why_silent()
        if parts.role.acting or mirrors or self._follows():
            return None
        return parts.role.reason_not_acting

    def _follows(self) -> bool:
        """Return whether this node follows the one that leads its region (INV-CVW2)."""
        among_nodes = self._among.view()
        return among_nodes is not None and among_nodes.follows

    def _failed(self) -> dict[TopicPartition, str]:
        failed = self._driver.parts.role.logs(failed_only=True)[:FAILED_NAMED_MAX]
        return {log.tp: f"{log.tp}: {log.failed}" for log in failed}

    def _refuses_writes(self) -> str:
        """Say which writes of clients are refused and why; tidemarks that stop refuse none."""
        stopped = [why for tp, why in self._failed().items() if tp.topic != TIDEMARK_LEDGER]
        return "; ".join(filter(None, (*stopped, self._disk_refusal())))

    def remark(self) -> str:
        """Return what is wrong elsewhere although this region is ready: the primary does not answer its mirror."""
        among_nodes = self._among.view()
        own = "" if among_nodes is None else among_nodes.remark()
        return "; ".join(filter(None, (self._driver.parts.role.silence, own)))

    def http_address(self, region: str) -> str | None:
        """Return the HTTP base URL of `region`, None if there is no such region."""
        return self._among.places.http_of(region)

    def not_leading(self) -> tuple[str, str | None] | None:
        """Return why this node takes no orders of its region, and the HTTP base URL of who does, where one leads; None: it does."""
        if not (why := self._among.why_silent()):
            return None
        return why, self._among.places.leader_http(but=self._driver.parts.role.node_id)

    def describe_in_brief(self) -> Mapping[str, object]:
        """Return what a client must know: whether this region acts, and where the others are met. No log is looked at (INV-HND5)."""
        parts = self._driver.parts
        domain, role = parts.metadata.image.domains[parts.domain], parts.role
        return {
            "region": self.region,
            "acting": role.acting,
            "region_epoch": domain.region_epoch,
            "reason_not_acting": "" if role.acting else self._stands(),
            "peers": self._among.places.rows(domain.acting_region),
        }

    def _stands(self) -> str:
        phase = self._driver.state.phase.value
        return f"its phase is {phase}; who may describe the cluster is told more"

    async def topics(self) -> Sequence[Mapping[str, object]]:
        """Return where each log of each topic begins and ends; gives way in between."""
        return await _topics(self._driver.parts.role.logs())

    def describe(self) -> Mapping[str, object]:
        """Return role, epochs, tidemark, lag and peers; of the logs only those that have stopped."""
        parts, state = self._driver.parts, self._driver.state
        image = parts.metadata.image
        domain = image.domains[parts.domain]
        leadership = image.leadership
        return {
            "region": self.region,
            "domain": parts.domain,
            "cluster_id": image.cluster_id,
            "node_id": parts.role.node_id,
            "kafka": f"{parts.role.kafka_host}:{parts.role.kafka_port}",
            "role": "follower" if self._among.why_silent() else _role_of(state.phase),
            "leader_epoch": None if leadership is None else leadership.leader_epoch,
            "phase": state.phase.value,
            "acting": parts.role.acting,
            "reason_not_acting": parts.role.reason_not_acting,
            "refuses_writes": self._refuses_writes(),
            "damage": self._damage() or "",
            "history": msgspec.to_builtins(parts.folder.identity.history),
            "primary_region": domain.acting_region,
            "region_epoch": domain.region_epoch,
            "shard_count": domain.shard_count,
            "promised": {
                "region_epoch": state.promise.region_epoch,
                "region": state.promise.candidate,
            },
            **(_NOT_KNOWN_HERE if self._among.why_silent() else self._heard()),
            "diverged_records": parts.quarantine.diverged_records,
            "peers": self._among.places.rows(domain.acting_region),
            "lineage": [
                {
                    "region_epoch": entry.region_epoch,
                    "acting_region": entry.acting_region,
                    "base_region_epoch": entry.base_region_epoch,
                    "base_number": entry.base_number,
                    "decided_wall_ms": entry.decided_wall_ms,
                }
                for entry in domain.lineage
            ],
        }

    def _heard(self) -> Mapping[str, object]:
        """Return what only who speaks for the region knows: its tidemark, and what the others say."""
        parts, outlook = self._driver.parts, self._driver.outlook
        lag, aside = dict(parts.tidemarks.lag()), outlook.lives.aside()
        waits_for = _waits_for(self._driver.state, lag, outlook.nobody_acts)
        return {
            "tidemark": self._tidemark(),
            "waits_for": "other_start" if aside else waits_for,
            "stands_aside": aside,
            "runs_twice": self._driver.runs_twice(),
            "lag": lag,
            "link": {
                "running": parts.role.mirrors,
                "last_heard_ms": parts.tidemarks.last_heard_ms(),
                "state": lag.get("state") if parts.role.mirrors else None,
                "age_ms": lag.get("link_age_ms") if parts.role.mirrors else None,
            },
        }

    def _tidemark(self) -> Mapping[str, int]:
        claim = self._driver.outlook.known_claim()
        published = claim.published_wall_ms
        now_ms = self._driver.parts.clock.wall_ms()
        return {
            "region_epoch": claim.point.region_epoch,
            "number": claim.point.number,
            "published_wall_ms": published,
            "age_ms": max(0, now_ms - published) if published else -1,
        }

    async def loss_statement(self) -> Mapping[str, object]:
        """Return what a failover to this region would lose at most."""
        return _plain(await self._operations.statement())

    def begin_failover(self, *, confirmed: bool, accept_behind: bool) -> Mapping[str, object]:
        """Begin a failover to this region; raises `OperationRefused`."""
        return _plain(
            self._operations.begin_failover(confirmed=confirmed, accept_behind=accept_behind)
        )

    async def loss_to_accept(self) -> Mapping[str, object]:
        """Return what accepting the loss here would give up; raises `OperationRefused`."""
        return _plain(await self._operations.loss_to_accept())

    def begin_accept_loss(self, *, confirmed: bool) -> Mapping[str, object]:
        """Begin to act with what is held here, in a dispute; raises `OperationRefused`."""
        return _plain(self._operations.begin_accept_loss(confirmed=confirmed))

    def begin_switch(self) -> Mapping[str, object]:
        """Begin a planned switch to this region; raises `OperationRefused`."""
        return _plain(self._operations.begin_switch())

    def operation(self, operation_id: str) -> Mapping[str, object] | None:
        """Return an operation and its progress, None if this node knows none of that id."""
        operation = self._operations.operation(operation_id)
        return None if operation is None else _plain(operation)

    async def deleted_topics(self) -> Sequence[Mapping[str, object]]:
        """Return which deletions are kept here, and until when by the wall clock, if the node keeps running."""
        kept = await asyncio.to_thread(self._kept.listed)
        now_ms = self._driver.parts.clock.wall_ms()
        return [
            {
                **_plain(each.note),
                "folder": each.folder,
                "size_bytes": each.size_bytes,
                "left_ms": each.left_ms,
                "kept_until_wall_ms": now_ms + each.left_ms,
            }
            for each in kept
        ]

    async def losses(self) -> Sequence[Mapping[str, Any]]:
        """Return what each takeover lost, as far as this region's quarantine knows."""
        return [_plain(losses) for losses in await self._operations.losses()]

    def losses_elsewhere(self) -> Mapping[str, Any]:
        """Return which nodes of the region may have cut off what `losses` does not name."""
        elsewhere = self._operations.elsewhere()
        outstanding = [each._asdict() for each in elsewhere.outstanding]
        return {"outstanding": outstanding, "may_hold_more": elsewhere.may_hold_more}


FAILED_NAMED_MAX: Final = 10
_NOT_KNOWN_HERE: Final[Mapping[str, object]] = {
    "tidemark": {"region_epoch": None, "number": None, "published_wall_ms": None, "age_ms": -1},
    "waits_for": "",
    "stands_aside": "",
    "runs_twice": {},
    "lag": {},
    "link": {"running": False, "last_heard_ms": -1, "state": None, "age_ms": None},
}
"""INV-RVW1"""


def _plain(value: msgspec.Struct) -> Mapping[str, Any]:
    plain: Mapping[str, Any] = msgspec.to_builtins(value)
    return plain


def _role_of(phase: Phase) -> str:
    if phase.acts:
        return "acting"
    if phase is Phase.UNBORN:
        return "no history"
    if phase is Phase.DISPUTED:
        return "disputed"
    return "mirror" if phase is Phase.MIRRORING else "changing"


def _waits_for(state: State, lag: Mapping[str, object], nobody_acts: bool) -> str:
    """Return what only an operator, or another region, can end, from a fixed set; empty where nothing is."""
    if state.phase is Phase.UNBORN:
        return "history"
    if state.phase is Phase.DISPUTED:
        lost_here = state.refuted is not None and state.refuted.lost_here
        return "lost_logs" if lost_here else "dispute"
    if nobody_acts:
        return "nobody_acts"
    return "home_without_shown" if lag.get("refused_history") else ""


async def _topics(logs: Sequence[RegionLog]) -> list[dict[str, object]]:
    rows: dict[tuple[str, str], list[dict[str, object]]] = {}
    yielding = CooperativeYield()
    for log in logs:
        await yielding.row()
        rows.setdefault((str(log.tp.topic), str(log.topic_id)), []).append(
            {
                "partition": log.tp.partition,
                "log_start_offset": log.log_start_offset,
                "log_end_offset": log.log_end_offset,
                "failed": log.failed,
            }
        )
    return [
        {"topic": topic, "topic_id": topic_id, "partitions": partitions}
        for (topic, topic_id), partitions in sorted(rows.items())
    ]
