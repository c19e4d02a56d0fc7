"""Client quotas in force: from the metadata to the Kafka port, in the very step in which they change; and their figures.

INV-CQT1  while no client has a quota there is nothing to ask: `Services.quotas` is None, and requests are not charged
INV-CQT2  what an entity owes outlives a change of quotas, which are in force at once
Not here: what a quota means (`security.quotas`), who may change one (`handlers.admin.alter_client_quotas`).
"""

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from idempotency.ports import Clock
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.handlers.dispatch.services import Services
from region_broker.handlers.dispatch.throttling import arrived
from region_broker.security.access import Access
from region_broker.security.quotas.throttles import WAIT_MS_MAX, Throttles
from region_broker.wire.connection import Incoming
from region_broker.wire.server import KafkaServer


class ClientQuotas(Collector):
    """Follows the metadata (`take`), and offers the node's figures of quotas."""

    def __init__(self, services: Services, kafka: KafkaServer, clock: Clock) -> None:
        """Limit nobody yet."""
        self._services = services
        self._kafka = kafka
        self._seen: Access | None = None
        self.throttles = Throttles(lambda: clock.monotonic_ms() / 1_000)

    def take(self, image: MetadataImage) -> None:
        """Go by the quotas of this image from now on (INV-CQT1)."""
        access = image.access
        if self._seen is not None and self._seen.quotas is access.quotas:
            return
        self._seen = access
        throttles = self.throttles
        throttles.take(access.quotas_by_entity)
        limits = throttles.limits
        self._services.quotas = throttles if limits.has_clients else None
        self._kafka.limit_by(
            limits.of_address if limits.has_addresses else None,
            self._arrived if limits.has_clients else None,
        )

    def _arrived(self, incoming: Incoming) -> None:
        arrived(self.throttles, asyncio.get_running_loop().time(), incoming)

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Return the figures of now; labels are the kinds of limits, never who has them."""
        throttles = self.throttles
        waited = CounterMetricFamily(
            "tidemark_throttled_ms", "For how long clients were told to be quiet", labels=["quota"]
        )
        waits = CounterMetricFamily(
            "tidemark_throttled_requests", "Requests whose client was told so", labels=["quota"]
        )
        owing = GaugeMetricFamily(
            "tidemark_quota_entities_over", "Entities beyond their quota now", labels=["quota"]
        )
        counts = throttles.owing()
        for key in WAIT_MS_MAX:
            waited.add_metric([key.value], throttles.waited_ms[key])
            waits.add_metric([key.value], throttles.waits[key])
            owing.add_metric([key.value], counts[key])
        yield from (waited, waits, owing)


def limit_clients(services: Services, kafka: KafkaServer, metadata: MetadataStore) -> None:
    """Have quotas follow the metadata from now on, and their figures be offered."""
    quotas = ClientQuotas(services, kafka, services.clock)
    services.metrics.registry.register(quotas)
    metadata.follow(quotas.take)
