"""What leaders of replica groups have to do with each other at one node while leaders are spread, joined together (ADR 53).

Not here: what each part does (`region.cluster`), who leads what (`replication`).
"""

from dataclasses import dataclass

from region_broker.handlers.dispatch.led_apart import DataGroups
from region_broker.handlers.dispatch.services import Services
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.ledgers.marker_ends import MarkerEnds
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.storage import Storage
from region_broker.region.cluster.leader_lines import LeaderLines
from region_broker.region.cluster.marker_sending import MarkerSending, SendingParts
from region_broker.region.cluster.marker_taking import MarkerTaking, TakingParts
from region_broker.region.cluster.txn_answering import AnsweringParts, TransactionsAnswered
from region_broker.region.cluster.txn_asking import TransactionsAsked
from region_broker.region.peers.node_protocol import LEADING
from region_broker.region.transaction_desk import TransactionDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class LedApart:
    """What of this node takes part. `listener_origin`: see `TransactionsAsked`."""

    services: Services
    groups: DataGroups
    markers: PartitionMarkerChannel
    marker_ends: MarkerEnds
    desk: TransactionDesk
    listener_origin: int


class DataLeaders:
    """`lines.run` is the only task; handlers are registered by making this."""

    def __init__(self, cluster: ClusterParts, storage: Storage, parts: LedApart) -> None:
        """Join them; nothing of it does anything while one node leads all logs."""
        metadata, services = storage.metadata, parts.services
        self.lines = LeaderLines(cluster.line)
        asked = TransactionsAsked(lambda: metadata.image, self.lines, parts.listener_origin)
        sending = MarkerSending(
            SendingParts(
                me=cluster.member,
                image=lambda: metadata.image,
                lines=self.lines,
                note=parts.marker_ends.note,
            )
        )
        handlers = cluster.door.handlers_for(LEADING)
        TransactionsAnswered(
            AnsweringParts(
                me=cluster.member,
                image=lambda: metadata.image,
                acts=lambda: services.region.acting,
                clients=services.txn,
                desk=parts.desk,
            )
        ).serve_on(handlers)
        MarkerTaking(
            TakingParts(
                image=lambda: metadata.image,
                partitions=storage.partitions,
                leads_under=parts.groups.leads_under,
                write=parts.markers.write_here,
            )
        ).serve_on(handlers)
        parts.markers.apart = sending
        services.apart, services.txn_elsewhere = parts.groups, asked
        metadata.follow(parts.marker_ends.take_image)
        metadata.follow(asked.take_image)
        metadata.follow(sending.take_image)
