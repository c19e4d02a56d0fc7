"""What a mirror's session makes of answers that come in another order than they were asked for."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from region_broker.region.mirror.mirror_access import MirrorAccess
from region_broker.region.mirror.region_link import PeerPrimarySession, Taking
from region_broker.region.peers.client import PeerClient
from region_broker.region.peers.protocol import FetchedLogs, TopicRegistry
from region_broker.security.access import Access
from tests.fixtures.linked_regions import REGION_EPOCH, PlayedMetadata, first_image


class PlayedClient:
    """Answers of a primary, each when the test says so."""

    def __init__(self) -> None:
        self.fetches: list[asyncio.Future[Any]] = []
        self.registry = TopicRegistry(metadata_version=0, topics=())

    def begin(self, _message: object, _answer_type: object) -> asyncio.Future[Any]:
        self.fetches.append(asyncio.get_running_loop().create_future())
        return self.fetches[-1]

    async def call(self, _message: object, _answer_type: object) -> TopicRegistry:
        return self.registry


def fetched(access: Access) -> tuple[FetchedLogs, memoryview]:
    told = FetchedLogs(metadata_version=1, sent_wall_ms=0, partitions=(), access=access)
    return told, memoryview(b"")


@pytest.mark.parametrize("access_epoch", [-1, 8], ids=["an older primary", "told"])
async def test_INV_SAC6_an_answer_that_is_older_than_the_registry_takes_no_access_back(
    access_epoch: int,
) -> None:
    """Two fetches are under way: the registry is asked for behind the first, and the second was answered before."""
    client, metadata = PlayedClient(), PlayedMetadata(first_image())
    taking = Taking(MirrorAccess(metadata).take)
    session = PeerPrimarySession(cast("PeerClient", client), REGION_EPOCH, taking)
    first, second = session.fetch({}, ()), session.fetch({}, ())
    client.fetches[0].set_result(fetched(Access(number=1)))
    client.fetches[1].set_result(fetched(Access(number=2)))
    client.registry = registry = TopicRegistry(
        metadata_version=3, topics=(), access=Access(number=3), access_epoch=access_epoch
    )
    seen = []
    for step in (first, session.registry(), second, session.registry()):
        _ = await step
        seen.append(metadata.image.access.number)
    assert seen == [1, 3, 3, 3]
    client.registry = msgspec.structs.replace(registry, access=Access(number=4))
    _ = await session.registry()
    assert metadata.image.access.number == 4
