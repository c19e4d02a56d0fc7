"""Records of very different sizes in one topic, as unmodified clients read them: answers are gathered from what lies in the logs (INV-WGA1)."""

import random
from collections.abc import Callable

import pytest

from tests.compat.clients import Client, read_until
from tests.compat.confluent_client import ConfluentClient
from tests.compat.test_client_matrix import CLIENTS, await_topic

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
ADMIN = ConfluentClient()
SIZES_BYTES = (1, 1_000, 30_000, 33_000, 200_000, 900_000)
"""On both sides of `LARGE_PART_BYTES`, and more than one answer carries."""


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_INV_WGA1_records_of_any_size_come_as_they_were_written(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    topic, chance = fresh("sizes"), random.Random(7)
    ADMIN.create_topic(bootstrap, topic, 1, {})
    await_topic(ADMIN, bootstrap, topic, there=True)
    values: list[bytes] = []
    for _ in range(4):
        part = [chance.randbytes(size) for size in chance.sample(SIZES_BYTES, len(SIZES_BYTES))]
        ADMIN.produce(bootstrap, topic, part, codec="none", idempotent=True)
        values += part
    member = client.member(bootstrap, topic, fresh(f"g-{client.name}"))
    found = read_until(member, values[-1])
    member.close()
    assert found == values
