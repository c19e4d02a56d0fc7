"""What a feature level allows, when it is raised, and that no level is ever given a second meaning."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args
from uuid import UUID

import msgspec
import pytest

from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    FinalizeLevel,
    RegisterNode,
)
from region_broker.controller.cluster_levels import LOWERED
from region_broker.controller.feature_levels import (
    NOT_SUPPORTED,
    allows,
    finalized_epoch,
    objection_to,
    since_type,
    told,
)
from region_broker.controller.image_database import MetadataUnreadable, Stored
from region_broker.controller.metadata_commands import (
    Command,
    CommandRefused,
    CountNodeStart,
    TakeLeaderEpoch,
    apply,
)
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_machine import (
    MachineState,
    MetadataMachine,
    encode_state,
    encode_wish,
    fold,
)
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import Entry, EntryKind, LogIndex, Term
from tests.fixtures.cluster_images import after, born, leader_epoch, let_in, member, node, refusal
from tests.fixtures.metadata_stores import open_metadata

RELEASED = Path(__file__).parent / "released_levels.json"
"""Commands by the level that brought them, with their fields, as they were released: only what is added may differ."""
OLD, NEW = range(1, 2), range(1, 3)


def knowing(node_id: int, levels: range) -> RegisterNode:
    """Return the registration of a node whose code knows `levels`."""
    image = node(node_id)
    return RegisterNode(
        msgspec.structs.replace(image, lowest_level=levels[0], feature_level=levels[-1])
    )


def described(types: tuple[type, ...]) -> dict[str, dict[str, list[str]]]:
    """Return what each level has: its commands, and the fields of them and of all that they hold."""
    found: dict[str, dict[str, list[str]]] = {}
    for each in types:
        level = found.setdefault(str(since_type(each)), {})
        level[each.__name__] = fields_of(each)
    return found


def held() -> dict[str, Any]:
    """Return what the log of a quorum holds: commands, and the image that a snapshot is."""
    return {**described(get_args(Command)), "image": fields_of(MetadataImage)}


def fields_of(command: type) -> list[str]:
    (_, parts) = msgspec.json.schema_components([command])
    names: list[str] = []
    for name, schema in parts.items():
        properties: Mapping[str, Any] = schema.get("properties", {})
        names += [f"{name}.{key}" for key in properties]
    return sorted(names)


def test_INV_FL1_what_was_released_at_a_level_stays_as_it_was() -> None:
    """Whoever adds a command or a field says in `_SINCE` with which level it came: older nodes do not know it.

    A field is added only if what older nodes make of a command at their level is the same without it. Then: `python -m` this module.
    """
    assert held() == json.loads(RELEASED.read_text())


def test_INV_FL1_a_level_allows_what_it_has_and_what_older_ones_had() -> None:
    assert allows(1, CountNodeStart())
    assert allows(2, CountNodeStart())
    assert allows(1, FinalizeLevel(2)), "it belongs to the level that it raises to"
    assert not allows(0, CountNodeStart())
    assert allows(2, FinalizeLevel(1)), "that it lowers the level is said by who carries it out"


async def test_INV_FL1_a_store_proposes_nothing_that_the_level_does_not_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "region_broker.controller.feature_levels._SINCE", {FinalizeLevel: 2, CountNodeStart: 2}
    )
    store = await opened(tmp_path, OLD)
    with pytest.raises(CommandRefused, match=r"CountNodeStart came with feature level 2.*at 1"):
        await store.apply(CountNodeStart())
    assert store.image.version == 0
    await store.close()


def test_INV_FL2_every_registered_node_must_know_it() -> None:
    first, _ = let_in(1)
    image = after(born(), first, *let_in(1)[1:], ElectLeader(member(1), leader_epoch(1), 0))
    image = after(image, knowing(2, OLD), FenceNode(2, node(2).life))
    assert refusal(image, FinalizeLevel(2)) == NOT_SUPPORTED, "one that is not heard counts, too"
    image = after(image, knowing(2, NEW))
    raised = after(image, FinalizeLevel(2))
    assert (image.feature_level, raised.feature_level) == (1, 2)
    assert refusal(raised, FinalizeLevel(1)) == LOWERED
    assert refusal(raised, FinalizeLevel(2)) == NOT_SUPPORTED
    assert refusal(raised, FinalizeLevel(3)) == NOT_SUPPORTED


def test_INV_FL2_nor_is_it_raised_to_one_that_a_node_knows_no_more() -> None:
    """A later release may have left the older levels out."""
    image = after(born(), knowing(1, range(1, 5)))
    nodes = {1: msgspec.structs.replace(image.nodes[1], lowest_level=3)}
    image = msgspec.structs.replace(image, nodes=nodes)
    assert refusal(image, FinalizeLevel(2)) == NOT_SUPPORTED
    assert after(image, FinalizeLevel(3)).feature_level == 3


def test_INV_FL3_a_node_registers_only_where_its_code_knows_the_level() -> None:
    raised = after(born(), FinalizeLevel(2))
    with pytest.raises(
        CommandRefused,
        match=r"levels 1, and its region is at 2: install the version that the other nodes run",
    ):
        after(raised, knowing(1, OLD))
    with pytest.raises(
        CommandRefused, match=r"levels 2, and its region is at 1: .* raise the level there"
    ):
        after(born(), knowing(1, range(2, 3)))
    assert refusal(raised, knowing(1, NEW)) == ""
    assert refusal(born(), knowing(1, OLD)) == ""


def test_objections_name_both_ways_out() -> None:
    assert objection_to(NEW, 2, who="x") is None
    assert "install the version that the other nodes run" in str(objection_to(NEW, 3, who="x"))
    assert "raise the level there" in str(objection_to(range(2, 4), 1, who="x"))


def test_clients_are_told_a_number_that_grows_with_each_level_and_each_takeover() -> None:
    told = [finalized_epoch(RegionEpoch(region), level) for region in (0, 8, 9) for level in (1, 2)]
    assert told == sorted(set(told))
    assert finalized_epoch(RegionEpoch(-1), 1) >= 0


def entry(command: Command) -> Entry:
    return Entry(
        LogIndex(7),
        Term(1),
        EntryKind.COMMAND,
        encode_wish(UUID(int=1), msgspec.msgpack.encode(command)),
    )


class Unheard(msgspec.Struct, frozen=True, tag=True):
    """A command of a later release."""


def test_INV_M10_a_command_of_a_newer_version_ends_the_node_and_is_not_skipped() -> None:
    state = MachineState(born())
    with pytest.raises(MetadataUnreadable, match=r"entry 7 .*FinalizeLevel came with level 2"):
        fold(state, [entry(FinalizeLevel(2))], OLD)
    with pytest.raises(MetadataUnreadable, match=r"entry 7 .* written by a newer one"):
        fold(state, [entry(Unheard())])  # type: ignore[arg-type]


async def opened(folder: Path, levels: range) -> MetadataStore:
    return await open_metadata(folder / "metadata.db", levels=levels)


async def test_a_new_folder_begins_at_the_newest_level_and_an_older_one_keeps_its_own(
    tmp_path: Path,
) -> None:
    store = await opened(tmp_path, OLD)
    await store.apply(CountNodeStart())
    assert store.image.feature_level == 1
    await store.close()
    store = await opened(tmp_path, NEW)
    assert store.image.feature_level == 1
    await store.apply(FinalizeLevel(2))
    await store.close()
    store = await opened(tmp_path, NEW)
    assert store.image.feature_level == 2
    await store.close()
    with pytest.raises(MetadataUnreadable, match=r"install the version"):
        await opened(tmp_path, OLD)
    (tmp_path / "new").mkdir()
    store = await opened(tmp_path / "new", NEW)
    assert store.image.feature_level == NEW[-1]
    await store.close()


# --- a region that grows ---


def was_alone(level: int) -> MetadataImage:
    image = msgspec.structs.replace(born(), feature_level=level)
    image = after(image, TakeLeaderEpoch(leader_epoch(1)))
    return after(
        image, *let_in(1), ElectLeader(member(1), leader_epoch(2), 0), *let_in(2), *let_in(3)
    )


def test_INV_MH7_a_region_that_grows_knows_how_many_have_been_in_sync() -> None:
    image = was_alone(2)
    assert image.grown_to == 1
    image = after(image, ChangeInSync(member(1), leader_epoch(2), (member(1), member(2)), 1))
    assert image.grown_to == 2
    image = after(image, ChangeInSync(member(1), leader_epoch(2), (member(1),), 2))
    assert image.grown_to == 2, "two have been in sync, so two are waited for"


def test_INV_FL4_at_level_1_a_region_that_grows_has_the_metadata_that_older_nodes_have() -> None:
    image = was_alone(1)
    image = after(image, ChangeInSync(member(1), leader_epoch(2), (member(1), member(2)), 1))
    assert (image.grown_to, image.feature_level) == (0, 1)


def test_INV_MH7_a_region_that_began_with_several_waits_as_it_did() -> None:
    image = msgspec.structs.replace(born(), feature_level=2)
    assert after(image, *let_in(1), ElectLeader(member(1), leader_epoch(1), 0)).grown_to == 0


def test_INV_MH7_an_unclean_election_ends_it() -> None:
    image = after(was_alone(2), FenceNode(1, node(1).life))
    image = after(image, ElectUnclean(member(2), leader_epoch(3), image.leadership.version))  # type: ignore[union-attr]
    assert image.grown_to == 0


if __name__ == "__main__":
    RELEASED.write_text(json.dumps(held(), indent=1, sort_keys=True) + "\n")


def test_a_range_without_a_level_is_told_as_none() -> None:
    """Another node may say that its newest level is below its oldest one."""
    assert (told(range(3, 3)), told(range(2, 3)), told(range(1, 3))) == ("none", "2", "1 to 2")


def test_INV_FL2_who_wants_to_lower_the_level_is_told_to_restore_all_nodes() -> None:
    with pytest.raises(CommandRefused, match="restore the copies of all of them"):
        apply(after(born(), FinalizeLevel(2)), FinalizeLevel(1))


class Database:
    """An `ImageDatabase` in memory."""

    def __init__(self, image: MetadataImage) -> None:
        self.stored = Stored(image, None)

    async def write(self, image: MetadataImage, position: LogPosition) -> None:
        self.stored = Stored(image, position)


def machine(image: MetadataImage, levels: range) -> tuple[MetadataMachine, Database]:
    database = Database(image)
    return MetadataMachine(member(1), cast("Any", database), levels), database


async def test_INV_FL3_an_entry_that_leads_to_a_level_which_the_code_does_not_know_ends_the_node() -> (
    None
):
    at_one = born()
    made, database = machine(at_one, NEW)
    with pytest.raises(MetadataUnreadable, match="feature levels 1 to 2, and its region is at 3"):
        await made.apply([entry(FinalizeLevel(3))])
    assert database.stored.image == at_one, "nothing of it is written down"


def test_INV_FL3_nor_is_a_snapshot_of_such_a_level_taken() -> None:
    image = after(born(), FinalizeLevel(2))
    made, _ = machine(image, range(2, 3))
    with pytest.raises(MetadataUnreadable, match="feature levels 2, and its region is at 1"):
        made.load(encode_state(MachineState(born())))
    assert made.current == image
