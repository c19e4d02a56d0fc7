"""Users' keys, ACLs, quotas and tokens as a part of the metadata: changes, what is stored, what a mirror takes over."""

import asyncio
import math
from pathlib import Path
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
import pytest

from geo_replicator.ports import LinkFailed
from geo_replicator.topology import MirrorTopic
from region_broker.controller.access_commands import (
    ACCESS_CHANGED,
    ACCESS_TOO_LARGE,
    ChangeAccess,
    FollowAccess,
)
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import Command, CommandRefused, CreateTopic, apply
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_machine import encode_command
from region_broker.controller.raft.settings import RaftSettings
from region_broker.region.mirror.mirror_access import MirrorAccess
from region_broker.region.mirror.region_link import PeerPrimarySession
from region_broker.region.peers.protocol import (
    PEER_FRAME_BYTES_MAX,
    FetchLogs,
    PeerRefused,
    SyncTopics,
)
from region_broker.region.peers.sessions import PeerSession
from region_broker.security import access as access_module
from region_broker.security.access import (
    ACCESS_BYTES_MAX,
    ADMIN_BYTES_MAX,
    NO_ACCESS,
    TOKEN_BYTES_MAX,
    Access,
    AccessChange,
    AccessRefused,
    Acl,
    DelegationToken,
    Operation,
    PatternType,
    Permission,
    Quota,
    ResourceType,
    ScramKeys,
    bytes_in,
    bytes_of,
    changed,
    check_room,
)
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.linked_regions import (
    REGION_EPOCH,
    PlayedMetadata,
    first_image,
    primary_and_mirror,
)
from tests.fixtures.metadata_stores import open_metadata
from tests.fixtures.waiting import until

READ = Acl(
    ResourceType.TOPIC, PatternType.PREFIXED, "pay-", "User:alice", "*", Operation.READ, Permission.ALLOW
)  # fmt: skip
DENIED = msgspec.structs.replace(READ, permission=Permission.DENY, host="10.0.0.1")
KEYS = ScramKeys("alice", "SCRAM-SHA-256", b"\x00salt", 4096, b"stored\xff", b"server\xfe")
QUOTA = Quota((("client-id", None), ("user", "alice")), {"producer_byte_rate": 1024.5})
TOKEN = DelegationToken("id1", "User:alice", "User:bob", ("User:carol",), 1, 2, 3)
EVERYTHING = AccessChange(
    acls_added=(READ, DENIED), keys_put=(KEYS,), quotas_put=(QUOTA,), tokens_put=(TOKEN,)
)


def test_INV_SAC3_rows_come_in_place_of_those_of_their_key_and_others_stay() -> None:
    full = changed(NO_ACCESS, EVERYTHING)
    assert full.acls == (READ, DENIED), (
        "in the order of all that they are: `*` stands before a digit"
    )
    more = AccessChange(
        acls_added=(READ,),
        acls_removed=(DENIED, msgspec.structs.replace(READ, name="nobody")),
        keys_put=(msgspec.structs.replace(KEYS, iterations=8192),),
        quotas_put=(msgspec.structs.replace(QUOTA, limits={}),),
        tokens_removed=("id1", "id2"),
    )
    after = changed(full, more)
    assert after.acls == (READ,)
    assert [row.iterations for row in after.keys] == [8192]
    assert (after.quotas, after.tokens, after.number) == ((), (), 2)
    assert changed(after, AccessChange(keys_removed=(("alice", "SCRAM-SHA-256"),))).keys == ()


def test_what_a_change_does_not_name_is_not_touched_however_much_there_is() -> None:
    """A change sorts, and looks at, nothing but what it is of: it happens on the event loop of each node."""
    before = changed(NO_ACCESS, EVERYTHING)
    changes = {
        "acls": AccessChange(acls_removed=(READ, DENIED)),
        "keys": AccessChange(keys_removed=(("alice", "SCRAM-SHA-256"),)),
        "quotas": AccessChange(quotas_put=(msgspec.structs.replace(QUOTA, limits={}),)),
        "tokens": AccessChange(tokens_removed=("id1",)),
    }
    for named, change in changes.items():
        after = changed(before, change)
        assert getattr(after, named) == ()
        assert after.number == before.number + 1
        others = changes.keys() - {named}
        assert all(getattr(after, each) is getattr(before, each) for each in others)


def test_keys_of_a_user_are_found_among_names_that_are_nearly_his() -> None:
    names = ["", "a", "a\0", "a b", "aa", "ab", "b", "é", "\U0010ffff"]
    access = changed(NO_ACCESS, AccessChange(keys_put=tuple(
        ScramKeys(name, mechanism, b"s", 4096, b"k", b"v") for name in names for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256")
    )))  # fmt: skip
    for name in names:
        found = [(row.user, row.mechanism) for row in access.keys_of(name)]
        assert found == [(name, "SCRAM-SHA-256"), (name, "SCRAM-SHA-512")]
    assert [*access.keys_of("aaa")] == [*access.keys_of("z")] == []


def test_INV_SAC2_keys_are_told_by_nobody() -> None:
    told = f"{KEYS!r} {KEYS} {changed(NO_ACCESS, EVERYTHING)!r}"
    assert "alice" in told
    for secret in (KEYS.salt, KEYS.stored_key, KEYS.server_key):
        assert repr(secret)[2:-1] not in told


def test_a_change_that_would_be_too_large_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "ACL_COUNT_MAX", 1)
    image = MetadataImage(version=1, cluster_id="c")
    with pytest.raises(CommandRefused, match="2 ACLs, and 1 are the most") as refused:
        apply(image, ChangeAccess(EVERYTHING))
    assert refused.value.code == ACCESS_TOO_LARGE


def test_INV_SAC4_renewers_of_tokens_take_no_room_from_others_and_all_fits_a_message() -> None:
    """Whoever logs in may make tokens, with 100 renewers whose names have any length (KIP-48)."""
    names = tuple(f"User:{at:03}{'x' * 32_000}" for at in range(100))
    *most, last = [msgspec.structs.replace(TOKEN, token_id=f"id{at}", renewers=names) for at in range(8)]  # fmt: skip
    access = changed(NO_ACCESS, AccessChange(tokens_put=tuple(most)))
    with pytest.raises(AccessRefused, match="delegation tokens would have"):
        changed(access, AccessChange(tokens_put=(last,)))
    assert changed(access, AccessChange(acls_added=(READ,))).acls == (READ,)
    assert not changed(access, AccessChange(tokens_removed=("id0",))).tokens_by_id.get("id0")
    assert sum(access_module.BYTES_MAX.values()) * 2 < PEER_FRAME_BYTES_MAX


def long_acls(total_bytes: int, *, of: int = 1_000) -> tuple[Acl, ...]:
    """Return ACLs with about so many bytes together."""
    beside_the_name = bytes_of(msgspec.structs.replace(READ, name="n" * of)) - of
    filler = "n" * (of - beside_the_name - 6)
    return tuple(
        msgspec.structs.replace(READ, name=f"{at:06}{filler}") for at in range(total_bytes // of)
    )


def test_INV_SAC5_clients_make_no_more_than_every_region_takes_over() -> None:
    """A mirror of several nodes takes all of it by one entry of its metadata's log: it was offered 56 MiB, and had room for 4."""
    access = changed(NO_ACCESS, AccessChange(acls_added=long_acls(ADMIN_BYTES_MAX - 2_000)))
    many = tuple(msgspec.structs.replace(KEYS, user=f"user{at}") for at in range(100))
    few = AccessChange(keys_put=many[:1], quotas_put=(QUOTA,))
    check_room(access, few)
    more = AccessChange(keys_put=many)
    with pytest.raises(AccessRefused, match=f"keys of users and quotas would have .* {ADMIN_BYTES_MAX} are the most"):  # fmt: skip
        check_room(access, more)
    check_room(access, AccessChange(tokens_put=(TOKEN,)))
    names = tuple(f"User:{at:03}{'x' * 5_000}" for at in range(100))
    *most, last = [msgspec.structs.replace(TOKEN, token_id=f"id{at}", renewers=names) for at in range(3)]  # fmt: skip
    tokens = changed(NO_ACCESS, AccessChange(tokens_put=tuple(most)))
    with pytest.raises(AccessRefused, match="delegation tokens would have"):
        check_room(tokens, AccessChange(tokens_put=(last,)))
    check_room(tokens, AccessChange(acls_added=long_acls(ADMIN_BYTES_MAX - 2_000)))


def test_INV_SAC5_what_an_older_version_took_is_replayed_and_may_become_less() -> None:
    """Whoever replays a log must come to what it came to before; two versions in one region, too."""
    acls = long_acls(2 * ADMIN_BYTES_MAX)
    image = apply(MetadataImage(version=1, cluster_id="c"), ChangeAccess(AccessChange(acls_added=acls)))  # fmt: skip
    assert image.access.acls == acls
    check_room(image.access, AccessChange(acls_removed=acls[:1]))
    check_room(image.access, AccessChange(acls_removed=acls[:1], acls_added=(READ,)))
    with pytest.raises(AccessRefused):
        check_room(image.access, AccessChange(acls_added=(READ,)))


@pytest.mark.parametrize("of", [70, 1_000])
def test_INV_SAC5_all_that_clients_make_fits_one_entry_of_several_nodes(of: int) -> None:
    renewers = tuple("User:" + "x" * 500 for _ in range(8))
    tokens = tuple(msgspec.structs.replace(TOKEN, token_id=f"id{at}", renewers=renewers) for at in range(TOKEN_BYTES_MAX // 4_200))  # fmt: skip
    acls = long_acls(ADMIN_BYTES_MAX, of=of)
    access = changed(NO_ACCESS, AccessChange(acls_added=acls, tokens_put=tokens))
    assert 0.9 * ACCESS_BYTES_MAX < bytes_in(access) <= ACCESS_BYTES_MAX
    whole = encode_command(FollowAccess(access), RaftSettings().payload_bytes_max)
    assert len(whole) - bytes_in(access) < 1_024, "what holds rows together"


async def test_INV_SAC5_a_change_beyond_that_is_refused_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        change = AccessChange(acls_added=long_acls(ADMIN_BYTES_MAX + 100_000))
        with pytest.raises(CommandRefused, match="remove some first") as refused:
            await fixture.services.metadata.change_access(change)
        assert refused.value.code == ACCESS_TOO_LARGE
        assert fixture.services.metadata.image.access == NO_ACCESS


async def test_INV_SAC5_who_has_more_is_told_at_both_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an older version; the mirror's region has several nodes, whose log has no room for it."""
    async with primary_and_mirror(tmp_path) as (primary, mirror, _, _):
        acls = long_acls(ACCESS_BYTES_MAX + 1_000_000)
        await primary.metadata.apply(ChangeAccess(AccessChange(acls_added=acls)))
        hello = msgspec.structs.replace(mirror.identity.hello(), feature_level=4)
        session = PeerSession(1, "of level 4", hello)
        asked = SyncTopics(region_epoch=REGION_EPOCH)
        told = await primary.source._sync_topics(session, asked, memoryview(b""))
        told = await primary.source._sync_topics(session, asked, memoryview(b""))
        warned = [each for each in caplog.records if "is not followed" in each.getMessage()]
        assert len(warned) == 1
    assert told.access is not None

    class OfSeveral(Counted):
        async def apply(self, command: Command) -> MetadataImage:
            encode_command(command, RaftSettings().payload_bytes_max)
            raise AssertionError("it had room")

    with pytest.raises(LinkFailed, match=r"nothing is shown that is under them\. Remove some at the primary"):  # fmt: skip
        await MirrorAccess(OfSeveral(first_image())).take(told.access)


def test_INV_SAC4_what_is_too_large_already_may_become_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = changed(NO_ACCESS, EVERYTHING)
    monkeypatch.setattr(access_module, "ACL_COUNT_MAX", 0)
    monkeypatch.setattr(access_module, "BYTES_MAX", dict.fromkeys(access_module.BYTES_MAX, 1))
    assert changed(full, AccessChange(acls_removed=(READ,))).acls == (DENIED,)
    with pytest.raises(AccessRefused):
        changed(full, AccessChange(acls_added=(msgspec.structs.replace(READ, name="b"),)))


@pytest.mark.parametrize("few", [0, 500])
def test_INV_SAC4_few_rows_and_many_come_to_the_same(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "_FEW_ROWS", few)
    rows = [msgspec.structs.replace(READ, name=f"t{at * 7 % 40}") for at in range(40)]
    access = changed(NO_ACCESS, AccessChange(acls_added=tuple(rows[:30])))
    access = changed(access, AccessChange(acls_added=tuple(rows[20:]), acls_removed=(*rows[:25],)))
    assert access.acls == tuple(sorted(rows[20:]))
    fresh = msgspec.convert(msgspec.to_builtins(access), Access)
    assert access.bytes_by_kind == fresh.bytes_by_kind


@pytest.mark.parametrize("few", [0, 500])
def test_INV_SAC3_keys_and_quotas_that_are_there_are_replaced_by_few_and_by_many(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password that was changed is changed, however many are changed with it."""
    monkeypatch.setattr(access_module, "_FEW_ROWS", few)
    names = [f"user{at}" for at in range(5)]
    old = tuple(msgspec.structs.replace(KEYS, user=name) for name in names)
    new = tuple(msgspec.structs.replace(row, stored_key=b"another") for row in old)
    access = changed(NO_ACCESS, AccessChange(keys_put=old, quotas_put=(QUOTA,)))
    wider = msgspec.structs.replace(QUOTA, limits={"producer_byte_rate": 2048.0})
    access = changed(access, AccessChange(keys_put=new, quotas_put=(wider,)))
    assert access.keys == new
    assert access.quotas == (wider,)


def test_INV_SAC4_what_a_change_does_not_touch_is_not_looked_at() -> None:
    full = changed(NO_ACCESS, EVERYTHING)
    after = changed(full, AccessChange(tokens_removed=("id1",)))
    assert after.acls is full.acls
    assert after.keys is full.keys
    theirs = msgspec.convert(msgspec.to_builtins(after), Access)
    followed = apply(
        MetadataImage(version=1, cluster_id="c", access=full), FollowAccess(theirs)
    ).access
    assert followed == theirs
    assert followed.acls is full.acls


def test_INV_ACC1_what_was_made_from_something_else_is_refused() -> None:
    image = apply(MetadataImage(version=1, cluster_id="c"), ChangeAccess(EVERYTHING, expected=0))
    with pytest.raises(CommandRefused) as refused:
        apply(image, ChangeAccess(AccessChange(acls_removed=(READ,)), expected=0))
    assert refused.value.code == ACCESS_CHANGED
    assert apply(image, ChangeAccess(AccessChange(acls_removed=(READ,)), expected=1)).access.acls


async def test_what_is_stored_is_read_again_as_it_was(tmp_path: Path) -> None:
    store = await open_metadata(tmp_path / "metadata.db")
    image = await store.apply(ChangeAccess(EVERYTHING))
    await store.close()
    again = await open_metadata(tmp_path / "metadata.db")
    assert again.image.access == image.access == changed(NO_ACCESS, EVERYTHING)
    less = await again.apply(
        ChangeAccess(AccessChange(acls_removed=(READ,), tokens_removed=("id1",)))
    )
    await again.close()
    last = await open_metadata(tmp_path / "metadata.db")
    assert last.image.access == less.access
    await last.close()


class Counted(PlayedMetadata):
    """Metadata that note what was asked of them; `refuses`: all of it."""

    refuses = False

    def __init__(self, image: MetadataImage) -> None:
        super().__init__(image)
        self.asked: list[Command] = []

    async def apply(self, command: Command) -> MetadataImage:
        self.asked.append(command)
        if self.refuses:
            raise CommandRefused("feature-level", "FollowAccess came with feature level 4")
        return await super().apply(command)


async def test_INV_ACC2_a_mirror_takes_over_what_differs_and_goes_as_its_primary_goes() -> None:
    metadata = Counted(first_image())
    primary, taking = changed(NO_ACCESS, EVERYTHING), MirrorAccess(metadata)
    await taking.take(primary)
    await taking.take(Access(number=1, acls=primary.acls, keys=primary.keys, quotas=primary.quotas, tokens=primary.tokens))  # fmt: skip
    assert metadata.asked == [FollowAccess(primary)]
    await taking.take(NO_ACCESS)
    assert metadata.image.access == NO_ACCESS


async def test_a_mirror_that_cannot_keep_it_shows_nothing_that_is_under_it() -> None:
    metadata = Counted(first_image())
    metadata.refuses = True
    with pytest.raises(LinkFailed, match=r"nothing is shown that is under them: .*level 4"):
        await MirrorAccess(metadata).take(changed(NO_ACCESS, EVERYTHING))


@pytest.mark.parametrize("limit", [math.inf, -math.inf, math.nan, 0.0, -1.0])
async def test_INV_SQE3_a_quota_that_is_none_is_not_taken_over(limit: float) -> None:
    """JSON has no word for infinity: the next start could not read what is kept."""
    metadata = Counted(first_image())
    wrong = Quota((("user", "alice"),), {"producer_byte_rate": 1024, "of a newer version": limit})
    with pytest.raises(LinkFailed, match="a quota that is none: Quota of a newer version must be"):
        await MirrorAccess(metadata).take(changed(NO_ACCESS, AccessChange(quotas_put=(wrong,))))
    assert metadata.asked == []


async def test_a_mirror_whose_only_nodes_metadata_cannot_be_written_does_not_go_on_as_if_it_had_it() -> (
    None
):
    """Nobody knows what is on its disk then: it ends, and a start shows."""

    class Unwritable(Counted):
        async def apply(self, command: Command) -> MetadataImage:
            raise MetadataUnwritable("no room")

    metadata = Unwritable(first_image())
    assert metadata.image.leadership is None
    with pytest.raises(MetadataUnwritable):
        await MirrorAccess(metadata).take(changed(NO_ACCESS, EVERYTHING))


async def test_INV_SAC1_a_change_reaches_the_mirror_beside_its_topics_and_before_the_next_tidemark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        registry, asked = PeerPrimarySession.registry, asyncio.Event()
        told = WeakKeyDictionary[PeerPrimarySession, tuple[int, tuple[MirrorTopic, ...]]]()

        async def late(session: PeerPrimarySession) -> tuple[int, tuple[MirrorTopic, ...]]:
            """Until `asked` a session sees the registry as it was when it began: only what is fetched can bring the change."""
            if asked.is_set() or session not in told:
                told[session] = await registry(session)
            return told[session]

        monkeypatch.setattr(PeerPrimarySession, "registry", late)
        await primary.create_topic("orders", 1)
        _ = mirror.mirror(tasks, await primary.listen())
        point = await leader.final_round()
        await until(lambda: mirror.link.reached >= point, what="the tidemark is reached")
        await primary.metadata.apply(ChangeAccess(EVERYTHING))
        await primary.produce("orders", b"a")
        later = await leader.final_round()
        await until(lambda: mirror.link.reached >= later, what="the next one")
        assert mirror.metadata.image.access == primary.metadata.image.access != NO_ACCESS
        asked.set()
        await primary.metadata.apply(ChangeAccess(AccessChange(acls_removed=(READ,))))
        primary.tidemarks._parts.source.notice_topics()
        gone = primary.metadata.image.access
        await until(lambda: mirror.metadata.image.access == gone, what="a change without a record")


@pytest.mark.parametrize("what", ["access", "sealed"])
async def test_INV_SO12_a_region_of_an_older_level_follows_nobody_who_has_users_or_sealed_topics(
    tmp_path: Path, what: str
) -> None:
    """Its nodes may run an older version, which leaves the access out of a registry that it reads, and knows no seal."""
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        mirror.identity.feature_level = 3
        await primary.create_topic("orders")
        _ = mirror.mirror(tasks, await primary.listen())
        point = await leader.final_round()
        await until(lambda: mirror.link.reached >= point, what="the tidemark is reached")
        if what == "access":
            await primary.metadata.apply(ChangeAccess(EVERYTHING))
        else:
            topic = TopicImage(
                topic_id=UUID(int=7),
                name="secrets",
                partition_count=1,
                configs={"tidemark.encryption": "k"},
            )
            await primary.metadata.apply(CreateTopic(topic))
        session = PeerSession(1, "of an older version", mirror.identity.hello())
        asked = SyncTopics(region_epoch=REGION_EPOCH)
        with pytest.raises(PeerRefused, match=r"at feature level 3: .*--finalize") as refused:
            await primary.source._sync_topics(session, asked, memoryview(b""))
        assert refused.value.code == "feature-level"
        fetch = FetchLogs(region_epoch=REGION_EPOCH, positions=(), bytes_max=1, wait_ms_max=0)
        with pytest.raises(PeerRefused, match="at feature level 3"):
            await primary.source._fetch_logs(session, fetch, memoryview(b""))
        session.hello = msgspec.structs.replace(session.hello, feature_level=4)
        told = await primary.source._sync_topics(session, asked, memoryview(b""))
        assert told.topics
        await primary.produce("orders", b"under it")
        await until(lambda: "--finalize" in mirror.link.core.last_error, what="its session ends")
        assert mirror.partition("orders").log_end_offset == 0, "nor is anything copied under it"
