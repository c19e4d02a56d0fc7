"""A region of three nodes: single rules that its other runs do not notice the lack of (ADR 47)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster.elections import elect
from region_broker.controller.cluster_commands import DrainNode, RegisterNode
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import (
    Command,
    CommandRefused,
    CreateTopic,
    RecordLineage,
)
from region_broker.controller.metadata_image import (
    DomainImage,
    LineageEntry,
    MetadataImage,
    TopicImage,
)
from region_broker.controller.metadata_store import MetadataStore
from region_broker.node.storage import Begun, Storage
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.leadership import LeadershipDriver
from region_broker.region.folder.identity_file import read_identity
from tests.simulation.region_cluster import REGION, Cluster, Member, region_cluster
from tests.simulation.region_pair import until
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.test_region_of_three import (
    TOPIC,
    all_in_sync,
    connected,
    everything_equal,
    leadership,
    values_at,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def now_s() -> float:
    return asyncio.get_running_loop().time()


def a_topic(number: int = 1) -> CreateTopic:
    return CreateTopic(
        TopicImage(topic_id=UUID(int=number, version=4), name=TOPIC, partition_count=2)
    )


async def made_by(node: Member) -> None:
    """Let a node that does not lead make the topic: a command that it began when it led."""

    async def make() -> None:
        image = await node.node.storage.metadata.apply(a_topic())
        node.node.storage.partitions.open_topic(image.topics[TOPIC])
        assert node.node._replication is not None
        node.node._replication.logs_changed()

    await node.as_process(make())


def has_topic(node: Member) -> bool:
    return node.node.storage.partitions.get(TOPIC, 0) is not None


def is_elected(node: Member) -> bool:
    found = leadership(node).leader
    return found is not None and found.node_id == node.node_id


# -- beginning ---------------------------------------------------------------------------------------


async def test_INV_CNN1_no_log_is_opened_before_this_very_process_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made while it was away, and who led, is in the image by then: also at a start behind a kill."""
    finish = Storage.finish
    checked: list[int] = []

    def watched(begun: Begun, *rest: Any) -> Storage:
        image, me = begun.metadata.image, begun.member
        registered = image.nodes[me.node_id]
        assert registered.member == me
        assert registered.life == cluster.nodes[f"eu-{me.node_id}"].member._life
        assert registered.life not in registered.former_lives
        checked.append(me.node_id)
        return finish(begun, *rest)

    cluster = Cluster(tmp_path, 21)
    monkeypatch.setattr(Storage, "finish", watched)
    try:
        await cluster.start()
        leader = await all_in_sync(cluster)
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await other.kill()
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await other.start()
        assert has_topic(other)
        await all_in_sync(cluster)
        assert sorted(checked) == sorted([1, 2, 3, other.node_id])
    finally:
        await cluster.stop()


async def test_INV_STG1_a_node_goes_on_answering_while_it_opens_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are opened in a job of a thread, never in a step of the loop that its quorum is served by."""
    finish = Storage.finish
    in_thread: list[bool] = []

    def watched(begun: Begun, *rest: Any) -> Storage:
        in_thread.append(loop._in_job)
        return finish(begun, *rest)

    running = asyncio.get_running_loop()
    assert isinstance(running, SimulatedLoop)
    loop: SimulatedLoop = running
    cluster = Cluster(tmp_path, 23)
    monkeypatch.setattr(Storage, "finish", watched)
    try:
        await cluster.start()
        await all_in_sync(cluster)
        assert in_thread == [True] * len(cluster.nodes)
    finally:
        await cluster.stop()


class Changing:
    """A store whose image is another one as soon as somebody has looked."""

    def __init__(self, first: MetadataImage, later: MetadataImage) -> None:
        self._first: MetadataImage | None = first
        self._later = later

    @property
    def image(self) -> MetadataImage:
        found, self._first = self._first or self._later, None
        return found


async def test_INV_STG1_what_changes_while_logs_are_opened_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that was made, one that was deleted, and one whose configs were changed, between the image that the logs were opened
    for and the one that the node begins with."""
    finish = Storage.finish
    older: list[MetadataImage] = []

    def opened_before(begun: Begun, *rest: Any) -> Storage:
        if not older:
            return finish(begun, *rest)
        then = replace(
            begun, metadata=cast("MetadataStore", Changing(older[0], begun.metadata.image))
        )
        storage = finish(then, *rest)
        storage.metadata = begun.metadata
        return storage

    cluster = Cluster(tmp_path, 24)
    monkeypatch.setattr(Storage, "finish", opened_before)
    try:
        await cluster.start()
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic("goes", 1, {})
        await leader.node.topics.create_topic("changes", 1, {})
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await until(lambda: _log_of(other, "changes") is not None, "the follower has the topics")
        older.append(other.node.storage.metadata.image)
        await other.kill()
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await leader.node.topics.delete_topic("goes")
        await leader.node.topics.change_configs("changes", {"segment.bytes": "2097152"}, {})
        await other.start()
        assert has_topic(other)
        assert _log_of(other, "goes") is None
        changed = _log_of(other, "changes")
        assert changed is not None
        assert changed.log.config.segment_bytes == 2_097_152
        await all_in_sync(cluster)
        await everything_equal(cluster)
    finally:
        await cluster.stop()


def _log_of(node: Member, topic: str) -> Partition | None:
    return node.node.storage.partitions.get(topic, 0)


async def test_INV_CNN2_nodes_of_a_new_region_may_be_started_all_at_once(tmp_path: Path) -> None:
    """The first one has yet to lead when the others ask to be let in: they wait for it."""
    cluster = Cluster(tmp_path, 22)
    try:
        for node in reversed(cluster.nodes.values()):
            await node.begin()
        leader = await all_in_sync(cluster)
        assert leader.name == "eu-1"
    finally:
        await cluster.stop()


async def test_INV_CNN2_a_joined_folder_says_of_which_region_it_is(tmp_path: Path) -> None:
    """It is read at each later start, also before there is a quorum."""
    async with region_cluster(tmp_path, 23) as cluster:
        await all_in_sync(cluster)
        births = set()
        for node in cluster.nodes.values():
            identity = read_identity(node.disk, node.folder)
            assert identity is not None
            assert identity.born is not None
            births.add(identity.born.birth_id)
        assert len(births) == 1


def answer(
    monkeypatch: pytest.MonkeyPatch, kind: type[Command], *errors: Exception
) -> list[Exception]:
    """Let the next commands of that kind end with `errors`, one each; return what is left of them."""
    apply, left = MetadataStore.apply, list(errors)

    async def applied(store: MetadataStore, command: Command, **options: Any) -> MetadataImage:
        if isinstance(command, kind) and left:
            raise left.pop(0)
        return await apply(store, command, **options)

    monkeypatch.setattr(MetadataStore, "apply", applied)
    return left


async def test_a_node_that_the_metadata_refuse_for_good_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with region_cluster(tmp_path, 24) as cluster:
        leader = await all_in_sync(cluster)
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await other.kill()
        refusal = CommandRefused("incarnation-in-use", "the folder is another node's")
        answer(monkeypatch, RegisterNode, refusal)
        await other.begin()
        await until(lambda: other.died, "it ends")
        assert "this node cannot register: the folder is another node's" in other.why_died()


async def test_a_node_waits_for_what_time_mends_of_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with region_cluster(tmp_path, 31) as cluster:
        leader = await all_in_sync(cluster)
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await other.kill()
        left = answer(
            monkeypatch,
            RegisterNode,
            CommandRefused("leadership-not-begun", "the first node does not lead yet"),
            CommandRefused("node-id-in-use", "its former folder still counts as there"),
            MetadataUnwritable("nobody leads the quorum"),
            MetadataInDoubt("it may have been applied"),
        )
        await other.start()
        assert not left
        await all_in_sync(cluster)


@pytest.mark.parametrize(
    "error",
    [CommandRefused("other-life", "it is another process"), MetadataUnwritable("no room")],
)
async def test_a_leader_whose_order_to_hand_over_fails_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with region_cluster(tmp_path, 32) as cluster:
        first = await all_in_sync(cluster)
        left = answer(monkeypatch, DrainNode, error)
        await first.stop()
        assert not left
        await cluster.until_led(but=first)


# -- topics that others make -------------------------------------------------------------------------


async def test_INV_RGF1_a_topic_that_another_node_made_takes_writes_at_once(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 25) as cluster:
        leader = await all_in_sync(cluster)
        other = next(node for node in cluster.nodes.values() if node is not leader)
        await made_by(other)
        await cluster.until(lambda: has_topic(leader), "it is there")
        await write(await connected(cluster, leader), [b"1", b"2"])
        assert await values_at(cluster, leader) == [b"1", b"2"]
        for node in cluster.nodes.values():
            await cluster.until(lambda node=node: has_topic(node), "made")  # type: ignore[misc]
            leads = [node.partition(TOPIC, number).is_leader for number in (0, 1)]
            assert leads == [node is leader] * 2
        await everything_equal(cluster)


def held_back(monkeypatch: pytest.MonkeyPatch, during: Callable[[], Awaitable[None]]) -> None:
    """Let `during` happen once while a new leader waits until all is committed that its logs hold."""
    settle = LeadershipDriver.settle_commits
    left = [during]

    async def held(driver: LeadershipDriver, leader_epoch: LeaderEpoch | None) -> None:
        await settle(driver, leader_epoch)
        if left and driver.leads is not None:
            await left.pop()()

    monkeypatch.setattr(LeadershipDriver, "settle_commits", held)


async def test_INV_RGF1_so_it_does_where_it_is_made_while_a_new_leader_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A node is elected, and loads. 2. What the former leader began is applied: a topic. 3. The new leader has told its logs
    that they lead, before this one was there.
    """
    async with region_cluster(tmp_path, 26) as cluster:
        first = await all_in_sync(cluster)
        others = [node for node in cluster.nodes.values() if node is not first]

        async def make() -> None:
            await made_by(next(node for node in others if not is_elected(node)))
            await cluster.until(lambda: all(map(has_topic, others)), "it is there")

        held_back(monkeypatch, make)
        await first.kill()
        second = await cluster.until_led(but=first)
        assert all(second.partition(TOPIC, number).is_leader for number in (0, 1))
        epochs = {second.partition(TOPIC, number).sight.leader_epoch for number in (0, 1)}
        assert epochs == {second.node.role.leader_epoch}
        await write(await connected(cluster, second), [b"1"])
        assert await values_at(cluster, second) == [b"1"]


async def deposed_with_a_change_under_way(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> tuple[Member, Member, asyncio.Task[TopicImage], asyncio.Event]:
    """Return who led, who leads, and what the former makes: a topic, which the quorum does not hear of before the event."""
    first = await all_in_sync(cluster)
    store = first.node.storage.metadata
    wish_once, heard = store._wish_once, asyncio.Event()

    async def held(payload: bytes, among: Any, left_ms: int) -> str:
        return await wish_once(payload, among, left_ms) if heard.is_set() else "it is not heard"

    monkeypatch.setattr(store, "_wish_once", held)
    making = first.as_process(first.node.topics.create_topic(TOPIC, 2, {}))
    await asyncio.sleep(0.01)
    other = next(node for node in cluster.nodes.values() if node is not first)
    metadata = other.node.storage.metadata
    image = metadata.image
    region_epoch = image.main_domain.region_epoch
    await metadata.apply(elect(image, region_epoch, image.nodes[other.node_id].member))
    return first, other, making, heard


async def test_INV_LSH5_a_change_that_is_not_settled_keeps_nobody_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A leader makes a topic, and the quorum does not hear of it. 2. Another one is elected. 3. The former follows at once. 4. The
    quorum hears of it: nothing is made (INV-M22), and who leads now makes it.
    """
    async with region_cluster(tmp_path, 33) as cluster:
        first, other, making, heard = await deposed_with_a_change_under_way(cluster, monkeypatch)
        replication = first.node._replication
        assert replication is not None
        begun_s = now_s()
        await cluster.until(lambda: replication.leadership.follows, "it follows")
        assert now_s() - begun_s < 1
        assert not making.done()
        heard.set()
        with pytest.raises(CommandRefused, match="Ask again there"):
            await making
        await cluster.until_led(but=first)
        assert not any(has_topic(node) for node in cluster.nodes.values())
        await other.node.topics.create_topic(TOPIC, 2, {})
        for node in cluster.nodes.values():
            await cluster.until(lambda node=node: has_topic(node), "made")  # type: ignore[misc]
            leads = [node.partition(TOPIC, number).is_leader for number in (0, 1)]
            assert leads == [node is other] * 2
        await write(await connected(cluster, other), [b"1"])
        await everything_equal(cluster)


async def test_a_change_that_others_undid_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot tells a node at once that its topic was made, and that another node deleted it since."""
    async with region_cluster(tmp_path, 34) as cluster:
        leader = await all_in_sync(cluster)
        apply = MetadataStore.apply

        async def undone(store: MetadataStore, command: Command, **options: Any) -> MetadataImage:
            image = await apply(store, command, **options)
            if not isinstance(command, CreateTopic):
                return image
            topics = {name: each for name, each in image.topics.items() if name != TOPIC}
            return msgspec.structs.replace(image, topics=topics)

        monkeypatch.setattr(MetadataStore, "apply", undone)
        with pytest.raises(CommandRefused, match="was deleted meanwhile"):
            await leader.node.topics.create_topic(TOPIC, 2, {})


# -- ending ------------------------------------------------------------------------------------------


async def test_a_leader_that_stops_has_handed_over_when_it_ends(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 27) as cluster:
        first = await all_in_sync(cluster)
        other = next(node for node in cluster.nodes.values() if node is not first)
        me = leadership(first).leader
        epoch = leadership(first).leader_epoch
        await first.stop()
        assert leadership(other).leader not in (None, me)
        assert leadership(other).leader_epoch > epoch


async def test_a_leader_without_another_one_in_sync_stops_at_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 28)
    try:
        first = cluster.nodes["eu-1"]
        await first.start()
        store = first.node.storage.metadata
        await cluster.until(lambda: store.image.leadership is not None, "it is elected")
        assert len(leadership(first).in_sync) == 1
        begun_s = now_s()
        await first.stop()
        assert now_s() - begun_s < 1
    finally:
        await cluster.stop()


async def test_a_leader_that_cannot_hand_over_ends_all_the_same(tmp_path: Path) -> None:
    """Most voters are gone: nobody knows what becomes of its order, and who stops it does not hear of that."""
    async with region_cluster(tmp_path, 29) as cluster:
        first = await all_in_sync(cluster)
        for node in cluster.nodes.values():
            if node is not first:
                cluster.fabric.cut(first.name, node.name)
        await first.stop()


# -- who is there ------------------------------------------------------------------------------------


async def test_a_node_whose_process_is_gone_is_fenced_before_one_that_is_silent(
    tmp_path: Path,
) -> None:
    """Its connections are reset: nothing is waited for but that it may come back at once."""
    async with region_cluster(tmp_path, 30) as cluster:
        leader = await all_in_sync(cluster)
        settings = leader.member.controller._settings
        gone = next(node for node in cluster.nodes.values() if node is not leader)
        begun_s = now_s()
        await gone.kill()
        await cluster.until(
            lambda: leader.node.storage.metadata.image.nodes[gone.node_id].fenced, "it is fenced"
        )
        took_ms = 1_000 * (now_s() - begun_s)
        assert settings.reset_grace_ms <= took_ms < settings.session_timeout_ms / 2


async def test_INV_M18_a_takeover_that_is_learnt_while_a_node_starts_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the domain by then, and notes the birth in it."""
    entry = LineageEntry(
        region_epoch=RegionEpoch(16), acting_region=REGION, base_region_epoch=RegionEpoch(8), base_number=0
    )  # fmt: skip
    real, learnt = MetadataStore.apply, False

    async def apply(store: MetadataStore, command: Command, **more: Any) -> MetadataImage:
        nonlocal learnt
        domain = getattr(command, "domain", None)
        if isinstance(domain, DomainImage) and domain.birth is not None and not learnt:
            learnt = True
            await real(store, RecordLineage(domain.name, entry), **more)
        return await real(store, command, **more)

    monkeypatch.setattr(MetadataStore, "apply", apply)
    async with region_cluster(tmp_path, 61) as cluster:
        await all_in_sync(cluster)
        assert learnt
        leader = await cluster.until_led()
        domain = leader.node.storage.metadata.image.main_domain
        assert domain.lineage == (entry,)
        assert domain.birth is not None


async def test_INV_CNN2_a_node_that_joins_notes_the_regions_history_in_its_own_folder(
    tmp_path: Path,
) -> None:
    """Its next start must know that it has history: alone, it would ask for one; and so must one that joins an older region."""
    async with region_cluster(tmp_path, 62) as cluster:
        await all_in_sync(cluster)
        first, *others = cluster.nodes.values()
        born = read_identity(first.disk, first.folder)
        assert born is not None
        assert born.history is not None
        for node in others:
            identity = read_identity(node.disk, node.folder)
            assert identity is not None
            assert identity.history == born.history
            begun = node.member._begun
            begun.identity = msgspec.structs.replace(identity, born=None, joined=None)
            older = msgspec.structs.replace(begun.metadata.image, region_folder=None)
            node.member._take_history_over(older)
            assert begun.identity.born == born.born
            assert read_identity(node.disk, node.folder) == begun.identity


async def test_INV_NRP1_a_node_that_starts_takes_nothing_of_its_logs_for_committed(
    tmp_path: Path,
) -> None:
    """What is durable here may be on no other node: nobody is shown it, and nothing stands on it, before it leads or follows."""
    found: dict[str, tuple[int, int, int]] = {}

    def look(node: Any) -> None:
        for log in node.storage.partitions:
            found[str(log.tp)] = log.log_start_offset, log.high_watermark, log.log_end_offset

    async with region_cluster(tmp_path, 63) as cluster:
        await all_in_sync(cluster)
        leader = await cluster.until_led()
        await leader.node.topics.create_topic(TOPIC, 2, {})
        connection = await connected(cluster, leader)
        await write(connection, [b"1", b"2"])
        connection.close()
        away = next(node for node in cluster.nodes.values() if node is not leader)
        await all_in_sync(cluster)
        await away.kill()
        away.on_open = look
        await away.start()
    assert any(end > start for start, _, end in found.values()), "it has records"
    assert all(shown == start for start, shown, _ in found.values())
