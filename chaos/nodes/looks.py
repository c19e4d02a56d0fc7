"""How a region of several nodes stands, asked of its nodes as clients ask: who leads the logs, whether all are in sync,
whether leaders are spread.

Not here: whose processes run (`stage`).
"""

from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from chaos.nodes.quorum import Quorum, quorum
from region_broker.workbench.cluster_plan import RegionPlace
from region_broker.workbench.credentials import kafka_login
from region_broker.workbench.node_http import ApiError, request

INTERNAL_TOPICS: Final = frozenset({"__transaction_state", "__consumer_offsets", "__tidemarks"})
_BEHIND_MAX: Final = 2
_CALL_S: Final = 2.0


class RegionLook:
    """One region."""

    def __init__(self, place: RegionPlace) -> None:
        """Nothing is asked."""
        self._place = place
        self._admin: AdminClient | None = None

    def leader(self) -> int | None:
        """Return the node that leads the logs, None while none does; of a region that is not whole, too."""
        return self._leads(everybody=False)

    def quorum(self) -> Quorum | None:
        """Return what the leader of the metadata quorum tells, None where nobody leads."""
        return quorum([node.http for node in self._place.nodes])

    def whole(self) -> bool:
        """Return whether all nodes are in sync, and follow the quorum."""
        if self._leads(everybody=True) is None:
            return False
        found = self.quorum()
        return (
            found is not None
            and len(found.voters) == len(self._place.nodes)
            and found.behind <= _BEHIND_MAX
        )

    def is_spread(self) -> bool:
        """Return whether partitions are led by all nodes, each group by the one that it is meant for (ADR 53); order it where nobody has."""
        for node in self._place.nodes:
            try:
                found = request(node.http, "GET", "/v1/cluster", timeout_s=_CALL_S)["spread"]
                if not found["wanted"]:
                    request(node.http, "POST", "/v1/cluster/spread", {}, timeout_s=_CALL_S)
                elif found["groups"]:
                    return all(each["leader"] == each["preferred"] for each in found["groups"])
            except (ApiError, OSError):
                continue  # another one takes orders
        return False

    def _leads(self, *, everybody: bool) -> int | None:
        """Return who leads the ledgers, while each partition has a leader; with `everybody`, only where all replicas are in sync."""
        if self._admin is None:
            self._admin = AdminClient(
                {"bootstrap.servers": self._place.bootstrap, "log_level": 0, **kafka_login()}
            )
        try:
            told = self._admin.list_topics(timeout=_CALL_S)
        except KafkaException:
            return None
        ledgers = [
            p.leader
            for topic in told.topics.values()
            if topic.topic in INTERNAL_TOPICS
            for p in topic.partitions.values()
        ]
        partitions = [p for topic in told.topics.values() for p in topic.partitions.values()]
        if len(set(ledgers)) != 1 or min(partition.leader for partition in partitions) < 0:
            return None
        count = len(self._place.nodes)
        if everybody and any(len(partition.isrs) != count for partition in partitions):
            return None
        return int(ledgers[0])
