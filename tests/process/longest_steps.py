"""``python -m tests.process.longest_steps``: how long a node's event loop does nothing else for the largest requests of each API.

Of each API, in its newest version, each list that a request has is made as long as one may be, of names that differ, the others
hold one thing: so is each sent to the handlers of a node, by who may do all, by who may do nothing, and to a node that does not lead. What is
printed is the longest step of the loop for each, the longest first: who else asks waits for that (INV-HW2, INV-WG5). Not through a socket; a
machine that is busy with something else shows it.

    python -m tests.process.longest_steps                     # all, the forty longest
    python -m tests.process.longest_steps --only OffsetFetch --count 20000
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import click
from kio.static.constants import EntityType

from region_broker.cli.lean import calm_collector
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.registry import Api
from region_broker.security.access import WILDCARD, Operation, ResourceType
from region_broker.wire.connection import Incoming, Peer
from region_broker.wire.connection_state import ConnectionState
from tests.fixtures.judged_apis import ALICE, Judged, acl, judged_apis
from tests.fixtures.kafka_port import _shapes, frame_of, schema
from tests.fixtures.nodes_seen import SeenRegion

COUNT: Final = 90_000
"""Elements of a list: a request may have 100,000 in all."""
NOT_BEGUN: Final = frozenset({17, 18, 36})
"""Logins and what comes before them: no list is in them."""
_VALUES: Final[Mapping[str, Any]] = {
    "resource_type": 2, "resource_type_filter": 2, "resource_pattern_type": 3, "pattern_type_filter": 3, "permission_type": 3,
    "operation": 3, "mechanism": 1, "iterations": 4096, "producer_id": -1, "producer_epoch": -1, "committed_offset": 0, "replica_id": -1,
    "max_wait": 0, "timeout": 1, "min_bytes": 1, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "session_id": 0, "epoch": -1, "acks": -1,
    "timestamp": -1, "num_partitions": 1, "replication_factor": 1, "count": 3, "validate_only": True, "config_operation": 0, "host": "*",
    "principal": "User:x", "entity_type": "user", "coordinator_epoch": 0, "member_epoch": 0, "member_id": "", "group_instance_id": None,
}  # fmt: skip
"""What a field is called, and what it holds: so that what is asked for is not refused at once."""
_ZEROS: Final[Mapping[str, Any]] = {
    "string": "x", "uuid": UUID(int=1), "bytes": b"", "records": b"", "bool": False, "float64": 1.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `path`: names of fields down to the list that is long."""

    api: Api
    version: int
    path: tuple[str, ...]
    mode: str


@dataclass(slots=True)
class Steps:
    """How long the steps of the loop took, in seconds."""

    longest_s: float = 0.0
    total_s: float = 0.0
    count: int = 0

    def note(self, took_s: float) -> None:
        """Take one step."""
        self.longest_s = max(self.longest_s, took_s)
        self.total_s += took_s
        self.count += 1


def lists_of(entity: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where a kio class has lists, as names of fields from the request down."""
    for each in fields(entity):
        shape = _shapes(entity)[each.name]
        here = (*path, each.name)
        if shape.is_array:
            yield here
        inner = shape.element if shape.is_array else shape.struct
        if isinstance(inner, type) and hasattr(inner, "__dataclass_fields__"):
            yield from lists_of(inner, here)


def filled(entity: Any, long: tuple[str, ...], count: int, at: int = 0) -> dict[str, Any]:
    """Return plain values for a kio class: `count` things in the list that is called `long`, one in the others."""
    found: dict[str, Any] = {}
    for each in fields(entity):
        shape = _shapes(entity)[each.name]
        rest = long[1:] if long[:1] == (each.name,) else ("",)
        if shape.is_array:
            many = range(count) if rest == () else range(at, at + 1)
            element, kind = shape.element, each.metadata.get("kafka_type", "")
            found[each.name] = tuple(
                _value(each.name, kind, number)
                if element is None
                else filled(element, rest, count, number)
                for number in many
            )
        elif hasattr(shape.struct, "__dataclass_fields__"):
            found[each.name] = filled(shape.struct, rest, count, at)
        else:
            found[each.name] = _value(each.name, each.metadata.get("kafka_type", ""), at)
    return found


def _value(name: str, kind: str, at: int) -> Any:
    if kind == "uuid":
        return UUID(int=at + 1)
    if name in _VALUES:
        return _VALUES[name]
    if kind == "string":
        return f"x-{at}"
    return _ZEROS.get(
        kind,
        at
        if name in {"index", "partition", "partitions", "partition_index", "partition_indexes"}
        else 0,
    )


def cases(only: str, *, oldest: bool) -> Iterator[Case]:
    """Yield what is sent; `oldest`: in the oldest version of each API, too."""
    for api in all_apis().by_key.values():
        if only.lower() not in api.name.lower() or api.key in NOT_BEGUN:
            continue
        for version in {api.versions[-1]: None, api.versions[0 if oldest else -1]: None}:
            for path in lists_of(schema(api.key, version, EntityType.request)):
                for mode in ("all", "nothing", "follows"):
                    yield Case(api, version, path, mode)


@asynccontextmanager
async def measured(steps: Steps) -> AsyncIterator[None]:
    """Note each step of the loop within."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.perf_counter()
        run(handle)
        steps.note(time.perf_counter() - began_s)

    with patch.object(asyncio.Handle, "_run", timed):
        yield


async def played(case: Case, count: int, folder: Path) -> tuple[Steps, str]:
    """Send one, and return how long the steps were, and what came of it."""
    values = filled(schema(case.api.key, case.version, EntityType.request), case.path, count)
    frame = memoryview(frame_of(case.api.key, case.version, values))
    steps = Steps()
    async with judged_apis(folder) as judged:
        _prepare(judged, case.mode)
        calm_collector()  # as in a node; what the test has made is looked at in no step
        came = "answered"
        async with measured(steps):
            try:
                async with asyncio.timeout(60):
                    await _asked(judged, case, frame)
            except Exception as error:  # noqa: BLE001 -- what came of it is told
                came = f"{type(error).__name__}: {error}"
        gc.unfreeze()
    return steps, came


async def _asked(judged: Judged, case: Case, frame: memoryview) -> None:
    peer = Peer(1, f"{ALICE.host}:5", state=ConnectionState(identity=ALICE))
    incoming = Incoming(peer, frame, case.api.key, case.version, 1)
    finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)  # what comes is a step of its own
    raw = await (
        finished
        if judged.dispatcher.begin(incoming, finished.set_result)
        else judged.dispatcher.answer(incoming)
    )
    if isinstance(raw, Exception):
        raise raw


def _prepare(judged: Judged, mode: str) -> None:
    everything = [
        acl(kind, Operation.ALL, name="kafka-cluster" if kind is ResourceType.CLUSTER else WILDCARD)
        for kind in ResourceType
        if kind.name not in {"UNKNOWN", "ANY"}
    ]
    judged.give(
        *(
            everything
            if mode != "nothing"
            else [acl(ResourceType.GROUP, Operation.DESCRIBE, name="another")]
        )
    )
    if mode == "follows":
        judged.services.region_nodes, judged.services.leader_wait_s = SeenRegion(2).view, 0.0
        judged.wire.region.node_id = 2


def rows_of(results: Sequence[tuple[Case, Steps, str]]) -> Iterator[str]:
    """Yield a line for each, the longest step first."""
    for case, steps, came in sorted(results, key=lambda each: -each[1].longest_s):
        yield (
            f"{steps.longest_s * 1e3:8.1f} ms  of {steps.total_s * 1e3:9.1f} ms in {steps.count:6} steps  {case.api.name} {case.version}"
            f"  {'.'.join(case.path)}  {case.mode}  {came[:100]}"
        )


async def _all(chosen: Sequence[Case], count: int, results: list[tuple[Case, Steps, str]]) -> None:
    for number, case in enumerate(chosen):
        if number % 20 == 0:
            click.echo(f"{number} of {len(chosen)}", err=True)
        with tempfile.TemporaryDirectory() as folder:
            results.append((case, *await played(case, count, Path(folder))))


@click.command()
@click.option("--only", default="", help="APIs whose name contains it.")
@click.option("--oldest", is_flag=True, help="In the oldest version of each API, too.")
@click.option("--count", default=COUNT, show_default=True, help="Elements of the long list.")
@click.option("--rows", default=40, show_default=True, help="Rows to print.")
def main(only: str, count: int, rows: int, *, oldest: bool) -> None:
    """Print the longest steps of the event loop for the largest requests of each API."""
    chosen = list(cases(only, oldest=oldest))
    results: list[tuple[Case, Steps, str]] = []
    with suppress(KeyboardInterrupt):  # what was played is shown
        asyncio.run(_all(chosen, count, results))
    for _, row in zip(range(rows), rows_of(results), strict=False):
        click.echo(row)


if __name__ == "__main__":
    main()
