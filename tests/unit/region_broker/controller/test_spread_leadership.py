"""What the commands that spread and gather leaders do, and when they are refused: rule by rule (ADR 53)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from idempotency.fencing import LEADER_COUNTER_MAX
from idempotency.identity import LogKey, RegionEpoch
from region_broker.controller.cluster_commands import (
    BearDomain,
    ChangeInSync,
    DrainNode,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    GatherLeaders,
    PreferSpread,
    RegisterNode,
    RemoveNode,
    UnfenceNode,
)
from region_broker.controller.group_rows import groups_of, in_sync_in_all, where_not
from region_broker.controller.leadership_rules import KEPT_FOR_MAIN
from region_broker.controller.metadata_commands import (
    Command,
    CommandRefused,
    DeleteTopic,
    PutDomain,
    RecordLineage,
    RenameTopic,
    ResizeTopic,
    SetTopicConfigs,
    apply,
)
from region_broker.controller.metadata_image import LineageEntry, MetadataImage
from region_broker.controller.metadata_machine import MachineState, decode_state, encode_state
from region_broker.controller.region_folder import (
    BeginRegionFolder,
    NoteMet,
    RecordFailover,
    RegionFolder,
)
from tests.fixtures.cluster_images import (
    after,
    leader_epoch,
    let_in,
    life,
    main_domain,
    member,
    node,
    refusal,
    starts,
)
from tests.fixtures.metadata_stores import open_metadata
from tests.fixtures.spread_images import (
    LEDGER,
    ORDERS,
    PAYMENTS,
    TABLE,
    A,
    B,
    C,
    able_to_spread,
    elected,
    gathering_of,
    group,
    left_with,
    shrunk,
    spread,
    spread_of,
    spreading,
    topic,
)

FOURTH = member(4)
ENTRY = LineageEntry(
    region_epoch=RegionEpoch(17),
    acting_region="us",
    base_region_epoch=RegionEpoch(8),
    base_number=1,
)


def main(image: MetadataImage) -> tuple[object, int, tuple[object, ...], int]:
    """Return leader, leader epoch, in-sync set and version of the main group."""
    found = image.leadership
    assert found is not None
    return found.leader, found.leader_epoch, found.in_sync, found.version


# --- how it begins ---


def test_each_data_group_gets_a_leader_a_leader_epoch_and_the_in_sync_set_of_all() -> None:
    image = spread()
    rows = [
        (row.leader, row.leader_epoch, row.in_sync, row.version)
        for row in groups_of(image).values()
    ]
    everybody = (A, B, C)
    assert rows == [
        (A, leader_epoch(1), everybody, 3), (B, leader_epoch(2), everybody, 1), (C, leader_epoch(3), everybody, 1),
    ]  # fmt: skip
    assert image.last_leader_epoch == leader_epoch(3)
    assert (spread_of(image).preferred, spread_of(image).topics) == ((1, 2, 3), (ORDERS, PAYMENTS))
    led = {image.leadership_of(LogKey(ORDERS, number)) for number in range(3)}
    assert len(led) == 3
    assert image.leadership_of(LogKey(TABLE, 1)) == image.leadership_of(LogKey(LEDGER, 2)) == image.leadership  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "command", "code"),
    [
        ([], spreading(leader=B, preferred=(2, 1)), "not-the-leader"),
        ([], spreading(epoch=9), "not-the-leader"),
        ([PutDomain(main_domain(RegionEpoch(16)))], spreading(), "other-region-epoch"),
        ([], spreading(version=1), "leadership-changed"),
        ([spreading()], spreading(version=3), "leaders-are-spread"),
        ([], spreading(preferred=(1,)), "preferred-nodes"),
        ([], spreading(preferred=()), "preferred-nodes"),
        ([], spreading(preferred=(1, 2, 2)), "preferred-nodes"),
        ([], spreading(preferred=(2, 1)), "preferred-nodes"),
        ([], spreading(preferred=(1, 7)), "unknown-node"),
        ([FenceNode(2, life(2))], spreading(), "node-fenced"),
        ([DrainNode(2, life(2))], spreading(), "node-draining"),
        ([DrainNode(1, life(1))], spreading(), "node-draining"),
        ([ChangeInSync(A, leader_epoch(1), (A, B), 2)], spreading(version=3), "not-in-sync"),
        ([FenceNode(1, life(1))], spreading(version=3), "not-the-leader"),
        ([], spreading(topics=(PAYMENTS, ORDERS)), "topics-not-sorted"),
        ([], spreading(topics=(ORDERS, ORDERS)), "topics-not-sorted"),
        ([], spreading(topics=(A.incarnation,)), "unknown-topic"),
        ([], spreading(topics=(ORDERS, TABLE)), "topic-not-spread"),
        ([], spreading(topics=(ORDERS, LEDGER)), "topic-not-spread"),
    ],
)  # fmt: skip
def test_INV_SPR4_it_begins_by_the_main_leader_alone_with_nodes_that_can(
    changes: list[Command], command: Command, code: str
) -> None:
    assert refusal(after(able_to_spread(), *changes), command) == code


def test_INV_SPR4_a_change_of_the_in_sync_set_that_is_still_under_way_is_refused() -> None:
    assert refusal(spread(), ChangeInSync(A, leader_epoch(1), (A, B), 2)) == "leadership-changed"


@pytest.mark.parametrize("level", [1, 2])
def test_INV_SPR4_INV_FL4_no_older_level_has_any_of_it(level: int) -> None:
    image = structs.replace(able_to_spread(), feature_level=level)
    for command in (
        PreferSpread(wanted=True), spreading(), elected(spread(), 1, C), shrunk(spread(), 1, A, B),
        GatherLeaders(2),
    ):  # fmt: skip
        assert refusal(image, command) == "feature-level"


def test_what_an_operator_wants_is_remembered_and_changes_nothing_else() -> None:
    image = able_to_spread()
    wanted = after(image, PreferSpread(wanted=True))
    assert wanted == structs.replace(image, spread_wanted=True, version=image.version + 1)
    assert not after(wanted, PreferSpread(wanted=False)).spread_wanted


# --- how it ends ---


def test_INV_SPR1_INV_SPR2_gathering_elects_the_main_leader_anew_with_who_is_in_sync_everywhere() -> (
    None
):
    image = spread()
    image = after(image, shrunk(image, 2, A, C), spreading_folder())
    gathered = after(image, gathering_of(image))
    assert gathered.spread is None
    assert main(gathered) == (A, leader_epoch(4), (A, C), 4)
    assert gathered.region_folder is not None
    assert gathered.region_folder.chain.count == 1, "a start of the region (INV-MRF3)"
    assert refusal(gathered, gathering_of(gathered)) == "leaders-not-spread"


def test_INV_SPR1_what_was_to_gather_another_spread_does_not_end_this_one() -> None:
    """1. Leaders are to be gathered; the command is in doubt. 2. They are gathered, and spread again. 3. It is carried out, late."""
    image = spread()
    late = gathering_of(image)
    again = after(image, late)
    assert again.leadership is not None
    version = again.leadership.version
    again = after(again, spreading(epoch=4, version=version))
    assert refusal(again, late) == "leadership-changed"
    assert refusal(again, gathering_of(again)) == ""


@pytest.mark.parametrize(
    ("lacking", "where"),
    [((1,), " in data group 1"), ((1, 2), " in data group 1, data group 2")],
)
def test_who_is_not_elected_is_told_in_which_groups_it_is_behind(
    lacking: tuple[int, ...], where: str
) -> None:
    image = spread()
    assert where_not(image, B) == ""
    for number in lacking:
        image = left_with(image, number, A, C)
    assert where_not(image, B) == where
    assert where_not(image, FOURTH) == " in the main group, data group 1, data group 2"
    assert where_not(able_to_spread(), FOURTH) == ""


def spreading_folder() -> BeginRegionFolder:
    return BeginRegionFolder(leader_epoch(1), RegionFolder(folder_id="f"))


def test_INV_SPR1_each_election_of_a_main_leader_ends_it() -> None:
    image = spread()
    assert after(image, ElectLeader(B, leader_epoch(4), 3)).spread is None
    assert refusal(image, ElectLeader(B, leader_epoch(3), 3)) == "leader-epoch-taken"
    fenced = after(image, FenceNode(1, life(1)))
    assert fenced.spread is not None, "data leaders go on until somebody leads"
    assert refusal(fenced, gathering_of(fenced)) == "nobody-leads"
    assert after(fenced, ElectLeader(C, leader_epoch(4), 4)).spread is None


def test_INV_SPR2_who_is_outside_of_one_group_is_not_elected() -> None:
    image = spread()
    image = left_with(image, 1, B, C)
    with pytest.raises(
        CommandRefused, match=r"were acknowledged in data group 1: wait until it is in sync"
    ):
        apply(image, ElectLeader(A, leader_epoch(4), 3))
    assert refusal(image, gathering_of(image)) == "not-in-sync"
    assert main(after(image, ElectLeader(B, leader_epoch(4), 3)))[2] == (B, C)


def test_INV_SPR10_a_data_leader_that_would_go_on_without_the_main_leader_gathers_the_leaders() -> (
    None
):
    """The main leader reads D of each log from its own copy: it has all that was shown (INV-SCU1)."""
    image = spread()
    for without in (shrunk(image, 1, B, C), shrunk(image, 2, C)):
        found = after(image, without)
        assert found.spread is None
        assert main(found) == main(after(image, gathering_of(image)))
    nobody = after(image, FenceNode(1, life(1)))
    assert refusal(nobody, shrunk(nobody, 1, B, C)) == "nobody-leads"
    assert after(image, shrunk(image, 1, A, B)).spread is not None


def test_INV_SPR11_no_spread_begins_behind_an_event_that_was_recorded_since_it_was_decided() -> (
    None
):
    """1. Leaders are to be spread. 2. A promise is recorded. 3. Data leaders would acknowledge what the candidate cuts off (T24)."""
    image = after(able_to_spread(), spreading_folder())
    promised = after(image, RecordFailover(leader_epoch(1), 0, b"promised"))
    assert refusal(image, spreading()) == ""
    assert refusal(promised, spreading()) == "failover-moved-on"
    assert refusal(promised, structs.replace(spreading(), failover_number=1)) == ""


def test_INV_SPR3_somebody_is_in_sync_in_every_group() -> None:
    image = spread()
    image = after(left_with(image, 1, B, C), shrunk(image, 2, A, C))
    assert in_sync_in_all(image) == (C,)
    with pytest.raises(CommandRefused, match=r"only 3/.* move"):
        apply(image, ChangeInSync(A, leader_epoch(1), (A, B), 3))
    assert refusal(image, ChangeInSync(A, leader_epoch(1), (A, B), 3)) == "would-leave-nobody"
    assert refusal(image, shrunk(image, 1, B)) == "would-leave-nobody"
    assert refusal(image, shrunk(image, 1, A, B, C)) == ""
    assert refusal(image, ChangeInSync(A, leader_epoch(1), (A, C), 3)) == ""


def test_INV_SPR2_an_unclean_election_needs_that_nobody_alive_has_all() -> None:
    image = spread()
    image = after(left_with(image, 1, B, C), shrunk(image, 2, A, C), FenceNode(1, life(1)))
    unclean = ElectUnclean(B, leader_epoch(4), 4)
    assert refusal(image, unclean) == "election-can-be-clean"
    image = after(image, FenceNode(3, life(3)))
    found = after(image, unclean)
    assert (main(found)[2], found.spread) == ((B,), None)


# --- data groups ---


def test_a_data_group_elects_for_itself() -> None:
    image = after(spread(), FenceNode(2, life(2)))
    assert group(image, 1).leader is None
    found = after(image, elected(image, 1, C))
    row = group(found, 1)
    assert (row.leader, row.leader_epoch, row.in_sync, row.version) == (C, leader_epoch(4), (A, B, C), 3)  # fmt: skip
    assert (main(found), group(found, 2)) == (main(image), group(image, 2))
    assert found.last_leader_epoch == leader_epoch(4)


def test_INV_SPR5_an_election_of_a_data_group_takes_a_new_leader_epoch() -> None:
    image = spread()
    due = elected(image, 1, C)
    for wrong, code in (
        (structs.replace(due, leader_epoch=leader_epoch(3)), "leader-epoch-taken"),
        (structs.replace(due, leader_epoch=leader_epoch(9, RegionEpoch(16))), "other-region-epoch"),
        (structs.replace(due, expected_version=2), "leadership-changed"),
        (structs.replace(due, group=3), "unknown-group"),
        (structs.replace(due, group=0), "unknown-group"),
    ):
        assert refusal(image, wrong) == code
    gathered = after(image, gathering_of(image))
    assert refusal(gathered, due) == "leaders-not-spread"
    again = after(gathered, spreading(epoch=4, version=4))
    assert refusal(again, due) == "leader-epoch-taken", (
        "one of the spread before, whose version is right again"
    )


def test_INV_SPR5_the_last_leader_epochs_are_kept_for_the_main_group() -> None:
    last = LEADER_COUNTER_MAX - KEPT_FOR_MAIN
    image = structs.replace(able_to_spread(), last_leader_epoch=leader_epoch(last - 2))
    full = after(image, spreading())
    assert full.last_leader_epoch == leader_epoch(last)
    assert refusal(full, elected(full, 1, C)) == "leader-epochs-kept"
    assert refusal(full, gathering_of(full)) == ""
    image = structs.replace(image, last_leader_epoch=leader_epoch(last - 1))
    assert refusal(image, spreading()) == "leader-epochs-kept"
    used_up = structs.replace(full, last_leader_epoch=leader_epoch(LEADER_COUNTER_MAX))
    assert refusal(used_up, gathering_of(used_up)) == "leader-epochs-exhausted"


@pytest.mark.parametrize(
    ("changes", "leader", "code"),
    [
        ([], A, "leads-the-main-group"),
        ([], FOURTH, "not-in-sync"),
        ([FenceNode(3, life(3))], C, "node-fenced"),
        ([DrainNode(3, life(3))], C, "node-draining"),
    ],
)
def test_INV_SPR6_the_main_leader_leads_no_data_group_nor_does_who_is_not_in_sync(
    changes: list[Command], leader: object, code: str
) -> None:
    image = after(spread(), *let_in(4), *changes)
    assert refusal(image, elected(image, 1, leader)) == code  # type: ignore[arg-type]


def test_INV_SPR7_only_the_leader_of_a_data_group_says_who_is_in_sync_there() -> None:
    image = after(spread(), *let_in(4))
    change = shrunk(image, 1, B, FOURTH, A)
    found = after(image, change)
    assert (group(found, 1).in_sync, group(found, 1).version) == ((A, B, FOURTH), 2)
    assert (main(found), group(found, 2)) == (main(image), group(image, 2))
    for wrong, code in (
        (structs.replace(change, leader=C), "not-the-leader"),
        (structs.replace(change, leader_epoch=leader_epoch(1)), "not-the-leader"),
        (structs.replace(change, group=2), "not-the-leader"),
        (structs.replace(change, expected_version=2), "leadership-changed"),
        (structs.replace(change, in_sync=(A, C)), "leader-not-in-sync"),
        (structs.replace(change, in_sync=(B, member(5))), "unknown-node"),
    ):
        assert refusal(image, wrong) == code
    fenced = after(image, FenceNode(4, life(4)))
    assert refusal(fenced, change) == "node-fenced"


def test_INV_SPR7_a_version_is_not_used_twice_under_one_leader_epoch() -> None:
    image = spread()
    seen = {(group(image, 1).leader_epoch, group(image, 1).version)}
    for change in (
        shrunk(image, 1, A, B), FenceNode(2, life(2)), UnfenceNode(2, life(2)),
    ):  # fmt: skip
        before, image = image, after(image, change)
        key = group(image, 1).leader_epoch, group(image, 1).version
        assert (key in seen) == (group(image, 1) == group(before, 1))
        seen.add(key)


def test_INV_MH7_a_region_has_grown_to_as_many_as_are_in_sync_in_every_group() -> None:
    image = structs.replace(spread(), grown_to=3)
    image = after(image, *let_in(4))
    image = after(image, ChangeInSync(A, leader_epoch(1), (A, B, C, FOURTH), 3))
    assert image.grown_to == 3
    image = after(image, shrunk(image, 1, A, B, C, FOURTH))
    assert image.grown_to == 3
    assert after(image, shrunk(image, 2, A, B, C, FOURTH)).grown_to == 4


# --- nodes ---


@pytest.mark.parametrize(
    "change", [FenceNode(2, life(2)), RegisterNode(node(2, start=2))], ids=["fenced", "new life"]
)
def test_INV_MH2_who_is_fenced_or_has_another_life_leads_no_data_group(change: Command) -> None:
    image = after(spread(), change)
    row = group(image, 1)
    assert (row.leader, row.in_sync, row.version) == (None, (A, B, C), 2)
    assert (main(image), group(image, 2)) == (main(spread()), group(spread(), 2))


def test_INV_MN5_who_leads_a_data_group_or_is_needed_is_not_removed() -> None:
    image = spread()
    assert refusal(image, RemoveNode(2, B.incarnation)) == "node-leads"
    image = left_with(after(image, FenceNode(3, life(3))), 1, B, C)
    left = after(image, RemoveNode(3, C.incarnation))
    assert {row.in_sync for row in groups_of(left).values()} == {(A, B), (B,)}
    image = after(image, shrunk(image, 1, A, B, C))
    row = group(image, 2)
    image = after(image, elected(image, 2, B))
    image = left_with(image, 2, B, C)
    assert row.leader is None
    needed = after(image, ChangeInSync(A, leader_epoch(1), (A, C), 3))
    assert in_sync_in_all(needed) == (C,)
    assert refusal(needed, RemoveNode(3, C.incarnation)) == "only-in-sync"


def test_INV_MFD1_the_folder_of_who_is_in_sync_in_a_data_group_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("region_broker.controller.cluster_folders.FOLDERS_MAX", 5)
    image = after(spread(), *let_in(4))
    image = after(image, shrunk(image, 1, A, B, C, FOURTH), FenceNode(4, life(4)))
    for number in range(2, 8):
        image = after(image, RegisterNode(node(4, folder=number, start=number)))
    assert FOURTH.incarnation in image.folders


# --- the failover, and topics ---


def test_INV_SPR8_nothing_of_a_failover_changes_while_leaders_are_spread() -> None:
    image = after(spread(), spreading_folder())
    epoch = leader_epoch(1)
    for command in (
        RecordFailover(epoch, 0, b"x"),
        RecordLineage("main", ENTRY),
        RecordLineage("main", ENTRY, learnt=True),
        PutDomain(main_domain(RegionEpoch(16))),
        PutDomain(structs.replace(main_domain(), acting_region="us")),
        PutDomain(structs.replace(main_domain(), lineage=(ENTRY,))),
    ):
        assert refusal(image, command) == "leaders-are-spread"
        assert refusal(after(image, gathering_of(image)), command) in {"", "not-the-leader"}
    assert refusal(image, PutDomain(main_domain())) == ""
    assert refusal(image, NoteMet(epoch, "us", starts(A, "s"))) == ""
    born = BearDomain(structs.replace(main_domain(RegionEpoch(16)), acting_region="us"))
    assert after(image, born).domains == image.domains, (
        "never refused (INV-M18), and changes nothing"
    )


def test_INV_SPR9_topics_join_and_leave_as_they_are_made_and_deleted() -> None:
    image = spread()
    new, other = A.incarnation, B.incarnation
    image = after(image, topic(new), topic(other, policy="compact"), topic(C.incarnation, internal=True))  # fmt: skip
    assert spread_of(image).topics == tuple(sorted((ORDERS, PAYMENTS, new)))
    image = after(image, DeleteTopic(ORDERS), DeleteTopic(other))
    assert spread_of(image).topics == tuple(sorted((PAYMENTS, new)))
    same = spread_of(image)
    image = after(
        image, SetTopicConfigs(PAYMENTS, {"cleanup.policy": "compact"}), ResizeTopic(PAYMENTS, 9, 6),
        RenameTopic(PAYMENTS, "p"),
    )  # fmt: skip
    assert image.spread is same, "a log does not change its group"


# --- where it is kept ---


def test_a_snapshot_has_the_spread() -> None:
    state = MachineState(after(spread(), PreferSpread(wanted=True)))
    assert decode_state(encode_state(state)) == state


async def test_the_database_has_the_spread(tmp_path: Path) -> None:
    expected = after(able_to_spread(), PreferSpread(wanted=True), spreading())
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    *before_it, begins = _made_by()
    for command in before_it:
        await store.apply(command)
    assert not has_table(tmp_path / "m.db"), "an older version can take the folder over (ADR 52)"
    await store.apply(begins)
    assert has_table(tmp_path / "m.db")
    assert (store.image.spread, store.image.spread_wanted) == (expected.spread, True)
    before = store.image
    await store.close()
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert store.image == before
    await store.apply(gathering_of(store.image))
    await store.apply(PreferSpread(wanted=False))
    await store.close()
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert (store.image.spread, store.image.spread_wanted) == (None, False)
    await store.close()


def has_table(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as database:
        return bool(
            database.execute("SELECT 1 FROM sqlite_master WHERE name = 'spread'").fetchall()
        )


def _made_by() -> list[Command]:
    return [
        PutDomain(main_domain()), *let_in(1), ElectLeader(A, leader_epoch(1), 0), *let_in(2), *let_in(3),
        ChangeInSync(A, leader_epoch(1), (A, B, C), 1), topic(ORDERS), topic(PAYMENTS),
        PreferSpread(wanted=True), spreading(),
    ]  # fmt: skip
