"""Series per topic and per group: what they count, and that there are never too many."""

from prometheus_client import CollectorRegistry, generate_latest

from idempotency.identity import NO_LEADER_EPOCH, TopicName, TopicPartition
from region_broker.groups.offsets import CommittedOffset, Places
from region_broker.node.name_series import OTHERS, NameCollector, Named
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.node_logs import batch, fixture


def rendered(collector: NameCollector) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def committed(topic: str, offset: int) -> Places:
    return {TopicPartition(TopicName(topic), 0): CommittedOffset(offset, NO_LEADER_EPOCH, "", 0, 0)}


def test_a_topic_s_records_and_bytes_are_counted() -> None:
    primary = fixture()
    primary.partition.writer.append(batch(3))
    primary.sync()
    found = primary.partition.reader.fetch(0, 1 << 20, Isolation.READ_UNCOMMITTED)
    name = primary.partition.tp.topic
    lines = rendered(NameCollector(primary.table, tuple, names_max=5))
    assert f'tidemark_topic_records_total{{topic="{name}"}} 3.0' in lines
    size = float(len(batch(3)))
    assert f'tidemark_topic_written_bytes_total{{topic="{name}"}} {size}' in lines
    assert f'tidemark_topic_read_bytes_total{{topic="{name}"}} {float(len(found.data))}' in lines
    assert f'tidemark_topic_log_bytes{{topic="{name}"}} {size}' in lines


def test_a_group_s_lag_is_what_it_has_not_committed_of_what_readers_see() -> None:
    primary = fixture()
    primary.partition.writer.append(batch(3))
    primary.sync()
    name = str(primary.partition.tp.topic)
    offsets = {
        "behind": committed(name, 1),
        "ahead": committed(name, 9),
        "gone": committed("no", 4),
    }
    lines = rendered(NameCollector(primary.table, lambda: [offsets], names_max=5))
    assert f'tidemark_group_lag_records{{group="behind",topic="{name}"}} 2.0' in lines
    assert f'tidemark_group_lag_records{{group="ahead",topic="{name}"}} 0.0' in lines
    assert f'tidemark_group_lag_records{{group="gone",topic="{OTHERS}"}} 0.0' in lines
    assert "tidemark_groups_without_series 0.0" in lines


def test_INV_NSR1_beyond_the_bound_topics_are_summed_up_and_groups_counted() -> None:
    primary = fixture()
    primary.partition.writer.append(batch(3))
    primary.sync()
    name = str(primary.partition.tp.topic)
    offsets = {f"g{number}": committed(name, 0) for number in range(10)}
    lines = rendered(NameCollector(primary.table, lambda: [offsets], names_max=2))
    assert sum(line.startswith("tidemark_group_lag_records{") for line in lines) == 2
    assert "tidemark_groups_without_series 8.0" in lines
    lines = rendered(NameCollector(primary.table, lambda: [offsets], names_max=0))
    assert f'tidemark_topic_records_total{{topic="{OTHERS}"}} 3.0' in lines
    assert not any(name in line for line in lines)


def test_INV_NSR1_a_name_keeps_its_place() -> None:
    places = Named(2)
    places.settle(["m", "n", "o"])
    assert [name in places for name in ("m", "n", "o")] == [True, True, False]
    places.settle(["a", "m", "n", "o"])
    assert [name in places for name in ("a", "m", "n", "o")] == [False, True, True, False]
    places.settle(["a", "n", "o"])
    assert [name in places for name in ("a", "n", "o")] == [True, True, False]
    assert places.label("o") == OTHERS


def test_INV_NSR1_with_fewer_places_who_came_last_loses_its_own() -> None:
    places = Named(2)
    places.settle(["m", "n"])
    places.names_max = 1
    places.settle(["a", "m", "n"])
    assert [name in places for name in ("a", "m", "n")] == [False, True, False]
    places.names_max = 0
    places.settle(["a", "m", "n"])
    assert "m" not in places
    places.names_max = 3
    places.settle(["a", "m", "n", "o"])
    assert [name in places for name in ("a", "m", "n", "o")] == [True, True, True, False]
