"""A connection that goes to the leader of each partition, as clients do by what Metadata tells them; else it is as the one of `kafka_client`.

Who leads what, the fabric is told (`Fabric.leader_port`); where it does not say, all goes over the one connection.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from typing_extensions import override

from region_broker.ports.network import ByteStream
from tests.simulation.kafka_client import Connection
from tests.simulation.network import SiteNetwork

OF_PARTITIONS: Final = frozenset({2, 21})
"""ListOffsets, DeleteRecords: asked of each leader; Produce and Fetch have methods of their own."""


class RoutedConnection(Connection):
    """See the module's head."""

    def __init__(self, stream: ByteStream, network: SiteNetwork, port: int) -> None:
        """Go on from a connection to `port`."""
        super().__init__(stream)
        self._network, self._port = network, port
        self._to: dict[int, Connection] = {port: Connection(stream)}

    async def _at(self, port: int) -> Connection:
        """Return the connection to a leader."""
        if port not in self._to:
            self._to[port] = Connection(await self._network.connect("127.0.0.1", port))
        return self._to[port]

    def _ports(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        leader_port = self._network.leader_port
        for number in partitions:
            port = None if leader_port is None else leader_port(topic, number, self._port)
            found[port or self._port].append(number)
        return found

    @override
    async def produce(
        self, topic: str, batches: Mapping[int, bytes], *, transactional_id: str | None = None, tv2: bool = False,
    ) -> dict[int, int]:  # fmt: skip
        offsets: dict[int, int] = {}
        for port, numbers in self._ports(topic, batches).items():
            to = await self._at(port)
            here = {number: batches[number] for number in numbers}
            offsets |= await to.produce(topic, here, transactional_id=transactional_id, tv2=tv2)
        return offsets

    @override
    async def fetch_topics(
        self, positions: Mapping[str, Mapping[int, int]], *, committed: bool, wait_ms: int = 0, rack: str = "",
    ) -> Mapping[str, Sequence[Any]]:  # fmt: skip
        asked: dict[int, dict[str, dict[int, int]]] = defaultdict(dict)
        for topic, each in positions.items():
            for port, numbers in self._ports(topic, each).items():
                asked[port][topic] = {number: each[number] for number in numbers}
        rows: dict[str, list[Any]] = defaultdict(list)
        for port, here in asked.items():
            to = await self._at(port)
            answered = await to.fetch_topics(here, committed=committed, wait_ms=wait_ms, rack=rack)
            for topic, found in answered.items():
                rows[topic] += found
        return rows

    @override
    async def ends_of(self, topic: str, numbers: Sequence[int]) -> dict[int, int]:
        ends: dict[int, int] = {}
        for port, here in self._ports(topic, numbers).items():
            ends |= await (await self._at(port)).ends_of(topic, here)
        return ends

    @override
    async def call(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        if key not in OF_PARTITIONS:
            return await super().call(key, version, values)
        topics = []
        for topic in values["topics"]:
            rows = {row["partition_index"]: row for row in topic["partitions"]}
            found = []
            for port, numbers in self._ports(topic["name"], rows).items():
                here = {**topic, "partitions": [rows[number] for number in numbers]}
                to = await self._at(port)
                answer = await to.call(key, version, {**values, "topics": [here]})
                found += [row for each in answer.topics for row in each.partitions]
            topics.append(
                SimpleNamespace(
                    name=topic["name"],
                    partitions=sorted(found, key=lambda row: row.partition_index),
                )
            )
        return SimpleNamespace(topics=topics)

    @override
    def close(self) -> None:
        for connection in self._to.values():
            connection.close()
