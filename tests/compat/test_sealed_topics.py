"""A topic whose records are sealed at rest, as unmodified clients write and read it: every codec, idempotent, in transactions."""

from collections.abc import Callable

import pytest

from tests.compat.clients import read_until
from tests.compat.confluent_client import ConfluentClient
from tests.compat.test_client_matrix import CLIENTS, await_topic
from tests.fixtures.secret_scan import noted

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
ADMIN = ConfluentClient()
WORD = noted("for-clients-alone-2d7a")
CODECS = [codec for codec in ADMIN.codecs if all(codec in client.codecs for client in CLIENTS)]
"""What all of them read."""


def test_clients_notice_nothing_of_the_seal(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("sealed")
    ADMIN.create_topic(bootstrap, topic, 1, {"tidemark.encryption": "secret"})
    await_topic(ADMIN, bootstrap, topic, there=True)
    values: list[bytes] = []
    for client in CLIENTS:
        for codec in CODECS:
            part = [f"{WORD} {client.name} {codec} {n} ".encode() * 40 for n in range(5)]
            offsets = client.produce(bootstrap, topic, part, codec=codec, idempotent=True)
            assert offsets == list(range(len(values), len(values) + 5))
            values += part
    for client in CLIENTS:
        writer = client.writer(bootstrap, fresh(f"writer-{client.name}"))
        for ending, word in ((writer.abort, "aborted"), (writer.commit, "committed")):
            writer.begin()
            writer.send(topic, f"{WORD} {word} {client.name}".encode())
            writer.flush()
            ending()
        values.append(f"{WORD} committed {client.name}".encode())
        writer.close()
    for reader in CLIENTS:
        member = reader.member(bootstrap, topic, fresh(f"g-{reader.name}"))
        found = read_until(member, values[-1])
        member.close()
        assert found == values
