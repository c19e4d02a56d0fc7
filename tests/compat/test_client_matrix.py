"""confluent-kafka, aiokafka and kafka-python, unmodified, against a broker and against a mirror's broker.

Each test runs with each client and each broker; what is expected is what Kafka does (the clients' own
documentation), never what our broker was seen to do.
"""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.compat.aiokafka_client import AiokafkaClient
from tests.compat.clients import POLLS_MAX, Client, Found, Member, read_until, repeated
from tests.compat.confluent_client import ConfluentClient
from tests.compat.kafka_python_client import KafkaPythonClient
from tests.compat.places import TESTED_PLACES

pytestmark = pytest.mark.process
CLIENTS: list[Client] = [ConfluentClient(), AiokafkaClient(), KafkaPythonClient()]
Fresh = Callable[[str], str]


@pytest.fixture(params=CLIENTS, ids=[client.name for client in CLIENTS])
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


def topic_of(client: Client, bootstrap: str, fresh: Fresh, partition_count: int = 1) -> str:
    """Create a topic of this test and wait until the broker names it."""
    topic = fresh("orders")
    client.create_topic(bootstrap, topic, partition_count, {})
    await_topic(client, bootstrap, topic, there=True)
    return topic


def await_topic(client: Client, bootstrap: str, topic: str, *, there: bool) -> None:
    for _ in range(POLLS_MAX):
        if (topic in client.topics(bootstrap)) is there:
            return
    pytest.fail(f"{topic} is {'not ' if there else 'still '}there")


def _pairs() -> Iterator[tuple[str, Client, str]]:
    """Yield each client with each of its codecs at the first place; at every other one each codec with one client, and each client."""
    codecs = sorted({codec for client in CLIENTS for codec in client.codecs})
    yield from ((TESTED_PLACES[0], client, codec) for client in CLIENTS for codec in client.codecs)
    for turn, place in enumerate(TESTED_PLACES[1:]):
        for number, codec in enumerate(codecs, turn):
            able = [client for client in CLIENTS if codec in client.codecs]
            yield place, able[number % len(able)], codec


@pytest.mark.parametrize(
    ("bootstrap", "client", "codec"),
    list(_pairs()),
    indirect=["bootstrap"],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_what_is_written_with_a_codec_is_read_back_by_every_client(
    client: Client, codec: str, bootstrap: str, fresh: Fresh
) -> None:
    topic = topic_of(client, bootstrap, fresh)
    values = [b"%d " % number * 50 for number in range(120)]
    offsets = client.produce(bootstrap, topic, values, codec=codec)
    assert offsets == list(range(120))
    readers = [reader for reader in CLIENTS if codec in reader.codecs]
    for reader in readers:
        member = reader.member(bootstrap, topic, fresh(f"g-{reader.name}"))
        assert read_until(member, values[-1]) == values
        member.close()


def test_an_idempotent_producer_writes_each_record_once_and_in_order(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    topic = topic_of(client, bootstrap, fresh)
    values = [b"%d" % number for number in range(500)]
    assert client.produce(bootstrap, topic, values, idempotent=True) == list(range(500))
    member = client.member(bootstrap, topic, fresh("g"))
    assert read_until(member, values[-1]) == values
    member.close()


def test_two_members_share_and_one_that_leaves_hands_over_at_the_committed_offset(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    topic, group = topic_of(client, bootstrap, fresh, 4), fresh("g")
    first = client.member(bootstrap, topic, group)
    second = client.member(bootstrap, topic, group)
    assert poll([first, second], shares=[2, 2]) == []
    client.produce(bootstrap, topic, [b"a%d" % n for n in range(40)], partitions=4)
    seen = poll([first, second], shares=[2, 2], records=40)
    first.commit()
    second.commit()
    second.close()
    poll([first], shares=[4])
    client.produce(bootstrap, topic, [b"b%d" % n for n in range(40)], partitions=4)
    seen += poll([first], shares=[4], records=40)
    assert sorted(seen) == [
        Found(partition, offset, b"%c%d" % (b"ab"[offset // 10], partition + 4 * (offset % 10)))
        for partition in range(4)
        for offset in range(20)
    ]
    first.close()


def poll(members: list[Member], *, shares: list[int], records: int = 0) -> list[Found]:
    """Poll until the partitions are held as said and `records` were given; return what was given."""
    seen: list[Found] = []
    held: list[int] = []
    for _ in range(POLLS_MAX):
        for member in members:
            seen += member.poll()
        held = sorted(len(member.assignment()) for member in members)
        if len(seen) >= records and held == shares:
            return seen
    pytest.fail(f"shares {held}, {len(seen)} records")


def test_read_committed_sees_commits_and_read_uncommitted_sees_all(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    topic = topic_of(client, bootstrap, fresh)
    writer = client.writer(bootstrap, fresh("t"))
    for number in range(8):
        writer.begin()
        writer.send(topic, b"%d first" % number)
        writer.send(topic, b"%d second" % number)
        writer.flush()
        if number % 3 == 1:
            writer.abort()
        else:
            writer.commit()
    writer.begin()
    writer.send(topic, b"end")
    writer.commit()
    writer.close()
    committed = client.member(bootstrap, topic, fresh("committed"))
    kept = [number for number in range(8) if number % 3 != 1]
    assert read_until(committed, b"end") == halves(kept)
    committed.close()
    uncommitted = client.member(bootstrap, topic, fresh("uncommitted"), committed=False)
    assert read_until(uncommitted, b"end") == halves(list(range(8)))
    uncommitted.close()


def halves(numbers: list[int]) -> list[bytes]:
    pairs = [b"%d " % number + half for number in numbers for half in (b"first", b"second")]
    return [*pairs, b"end"]


def test_a_new_instance_of_a_transactional_id_aborts_what_the_old_one_left_open(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    topic, name = topic_of(client, bootstrap, fresh), fresh("t")
    old = client.writer(bootstrap, name)
    old.begin()
    old.send(topic, b"left open")
    old.flush()
    new = client.writer(bootstrap, name)
    new.begin()
    new.send(topic, b"end")
    new.commit()
    new.close()
    old.close()
    member = client.member(bootstrap, topic, fresh("g"))
    assert read_until(member, b"end") == [b"end"]
    member.close()


def test_consume_process_produce_repeats_what_was_aborted_and_nothing_else(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    source = topic_of(client, bootstrap, fresh)
    target, group = source + "-copy", fresh("g")
    client.create_topic(bootstrap, target, 1, {})
    await_topic(client, bootstrap, target, there=True)
    values = [b"%d" % number for number in range(30)]
    client.produce(bootstrap, source, values)
    writer = client.writer(bootstrap, fresh("t"))
    copied = 0
    for attempt in range(POLLS_MAX):
        member = client.member(bootstrap, source, group)
        given = some(member)
        assert [found.offset for found in given] == list(range(copied, copied + len(given)))
        writer.begin()
        for found in given:
            writer.send(target, found.value)
        writer.send_offset(member, source, given[-1].offset + 1)
        if attempt % 2:
            writer.commit()
            copied += len(given)
        else:
            writer.abort()
        member.close()
        if copied == len(values):
            break
    writer.close()
    reader = client.member(bootstrap, target, fresh("reader"))
    assert read_until(reader, values[-1]) == values
    reader.close()


def some(member: Member) -> list[Found]:
    """Return the next up to ten records."""
    for _ in range(POLLS_MAX):
        found = member.poll()
        if found:
            return found[:10]
    pytest.fail("no record came")


def test_topics_are_created_listed_described_and_deleted(
    client: Client, bootstrap: str, fresh: Fresh
) -> None:
    topic = fresh("made")
    client.create_topic(bootstrap, topic, 3, {"retention.ms": "1234567"})
    await_topic(client, bootstrap, topic, there=True)
    repeated(lambda: client.partition_count(bootstrap, topic), 3)  # another node may be asked
    wanted = {"retention.ms": "1234567", "cleanup.policy": "delete"}
    repeated(
        lambda: configs_of(client, bootstrap, topic).items() & wanted.items(), set(wanted.items())
    )
    client.delete_topic(bootstrap, topic)
    await_topic(client, bootstrap, topic, there=False)


def configs_of(client: Client, bootstrap: str, topic: str) -> dict[str, str]:
    """Return a topic's configs; none where the node that was asked does not know it yet: the other two libraries say so themselves."""
    try:
        return client.configs(bootstrap, topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return {}
