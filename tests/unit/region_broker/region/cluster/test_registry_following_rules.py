"""Topics that other nodes changed: what is open here afterwards, and what a disk has kept from being done."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_store import Going
from region_broker.partitions.partition import Partition
from region_broker.partitions.topic_file import TOPIC_FILE_NAME
from region_broker.region.cluster.registry_following import RegistryFollowing
from region_broker.region.topics import BY_ORDER
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, Topic, batch, fixture, run_now
from tests.simulation.disk import SimulatedDisk

A, B = (UUID(int=number) for number in (1, 2))


def topic(topic_id: UUID = A, name: str = "a", count: int = 1, **configs: str) -> TopicImage:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return TopicImage(topic_id=topic_id, name=name, partition_count=count, configs=named)


class Followed:
    """The registry, as others change it, and the partitions of this node."""

    def __init__(self) -> None:
        config = replace(fixture().config, deleted_topic_retention_ms=60_000)
        self.some = Fixture(SimulatedDisk(), Topic(), config)
        spec = self.some.topic
        self.present = TopicImage(
            topic_id=spec.topic_id, name=spec.name, partition_count=spec.partition_count
        )
        self.image = self._image()
        self.opened: list[Partition] = []
        self.registry = RegistryFollowing(self.some.table, self._take_opened, lambda: BY_ORDER)

    def _take_opened(self, partition: Partition) -> None:
        partition.become_leader(LEADER_EPOCH)
        self.opened.append(partition)

    def _image(self, *topics: TopicImage) -> MetadataImage:
        held = {each.name: each for each in (self.present, *topics)}
        return MetadataImage(version=0, cluster_id="c", topics=held)

    def become(self, *topics: TopicImage) -> list[str]:
        """Let these be the topics, beside the one that stays; return which partitions were told as opened."""
        old, self.image = self.image, self._image(*topics)
        self.opened.clear()
        self.registry.take(old, self.image)
        return [str(partition.tp) for partition in self.opened]

    def again(self) -> None:
        self.registry.again(self.image)

    def lags(self) -> bool:
        return self.registry.is_behind

    @property
    def held(self) -> set[str]:
        return {str(partition.tp) for partition in self.some.table} - {str(self.some.partition.tp)}

    def of(self, name: str, number: int = 0) -> Partition:
        found = self.some.table.get(name, number)
        assert found is not None
        return found


def test_INV_RGF1_partitions_are_opened_and_told_once_each() -> None:
    here = Followed()
    assert here.become(topic()) == ["a-0"]
    assert here.become(topic(count=3)) == ["a-1", "a-2"], "those before are open already"
    assert here.become(topic(count=3), topic(B, "b")) == ["b-0"]
    assert here.held == {"a-0", "a-1", "a-2", "b-0"}
    assert all(here.of("a", number).is_leader for number in range(3))


def test_INV_RGF1_partitions_go_with_their_topic_and_where_it_shrinks() -> None:
    here = Followed()
    here.become(topic(count=2), topic(B, "b"))
    here.become(topic(count=1), topic(B, "b"))
    assert here.held == {"a-0", "b-0"}
    here.become(topic(B, "b"))
    assert here.held == {"b-0"}


def test_INV_RGF1_a_topic_made_anew_under_the_name_of_a_deleted_one_begins_empty() -> None:
    here = Followed()
    here.become(topic())
    here.of("a").writer.append(batch(3))
    here.some.sync()
    assert here.become(topic(B)) == ["a-0"]
    assert here.of("a").topic_id == B
    assert here.of("a").log_end_offset == 0
    assert len(here.held) == len(list(here.some.table)) - 1 == 1


def test_INV_RGF1_a_topic_keeps_its_logs_under_another_name() -> None:
    here = Followed()
    here.become(topic())
    here.of("a").writer.append(batch(3))
    assert here.become(topic(name="b")) == []
    assert here.held == {"b-0"}
    assert here.of("b").log_end_offset == 3


@pytest.mark.parametrize("names", [("b", "c"), ("c", "a"), ("b", "a")])
def test_INV_RGF1_topics_that_take_each_others_names_keep_their_logs(
    names: tuple[str, str],
) -> None:
    """A snapshot brings several renamings at once: in which order the names were free, it does not say."""
    here = Followed()
    here.become(topic(A, "a"), topic(B, "b"))
    here.of("a").writer.append(batch(3))
    assert here.become(topic(A, names[0]), topic(B, names[1])) == []
    assert here.held == {f"{names[0]}-0", f"{names[1]}-0"}
    assert here.of(names[0]).log_end_offset == 3
    assert here.of(names[1]).log_end_offset == 0


def test_INV_RGF1_logs_follow_changed_configs() -> None:
    here = Followed()
    here.become(topic())
    here.become(topic(retention_ms="5000"))
    assert here.of("a").log.config.retention_ms == 5_000


def test_what_others_change_beside_topics_opens_nothing() -> None:
    here = Followed()
    here.become(topic())
    here.registry.take(here.image, msgspec.structs.replace(here.image, version=9))
    assert here.held == {"a-0"}


def hide(here: Followed, *topic_ids: UUID) -> Callable[[Path], list[str]]:
    """Return what lists folders, but for those of these topics, once they have their description."""
    disk = here.some.disk
    list_dir, hidden = (
        disk.list_dir,
        {here.some.table.folder_of(each, 0).parent for each in topic_ids},
    )

    def listed(path: Path) -> list[str]:
        if path in hidden and disk.exists(path / TOPIC_FILE_NAME):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return list_dir(path)

    return listed


def test_INV_RGF1_what_a_disk_refused_is_tried_again_and_told_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder that cannot be listed: which partitions it has beside the topic's own is not known, so none is opened."""
    here = Followed()
    monkeypatch.setattr(here.some.disk, "list_dir", hide(here, A, B))
    assert here.become(topic(), topic(B, "b")) == []
    assert here.lags()
    monkeypatch.undo()
    here.again()
    assert not here.lags()
    assert sorted(str(partition.tp) for partition in here.opened) == ["a-0", "b-0"]
    here.opened.clear()
    here.again()
    assert not here.opened


def test_INV_RGF1_what_one_topic_meets_keeps_no_other_one_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Followed()
    monkeypatch.setattr(here.some.disk, "list_dir", hide(here, A))
    assert here.become(topic(), topic(B, "b")) == ["b-0"]


def test_INV_RGF1_a_deletion_is_as_whole_as_one_of_this_node() -> None:
    """What held records is kept for a while, and says why it went (INV-T5)."""
    here = Followed()
    here.become(topic())
    here.of("a").writer.append(batch(3))
    here.some.sync()
    here.become()
    assert here.held == set()
    here.some.finish_drops()
    (kept,) = here.some.table.kept.listed()
    assert "an order to delete it" in kept.note.why


@pytest.mark.parametrize(("keeps", "marked"), [(0, ["."]), (1, ["1", "2"])])
def test_INV_RGF2_what_is_about_to_go_is_marked_for_a_start_that_finds_it_gone(
    keeps: int, marked: list[str]
) -> None:
    here = Followed()
    here.become(topic(count=3))
    run_now(here.registry.mark_going([Going(topic(count=3), keeps)]))
    folder = here.some.table.folder_of(A, 0).parent
    found = [
        each for each in (".", "0", "1", "2") if here.some.table.removal.is_marked(folder / each)
    ]
    assert found == marked
    run_now(here.registry.mark_going([Going(topic(B, "unknown here"), 0)]))
