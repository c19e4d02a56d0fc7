"""What a node leaves alone while leaders are spread, and whom it tells that leaders are to be gathered (ADR 53)."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from msgspec import structs

from idempotency.decision import DecisionId, round_of
from idempotency.record_batch import ControlType
from region_broker.controller.cluster_image import Leadership, Spread
from region_broker.node.lost_logs import LostLogs, LostLogsParts
from region_broker.node.stepping_down import SteppingDown
from tests.fixtures.cluster_images import in_sync, leader_epoch, member
from tests.fixtures.node_logs import Fixture, append_marker, fixture

MAIN = in_sync()


def row(leader: int, counter: int, *members: int) -> Leadership:
    return Leadership(
        leader=member(leader),
        leader_epoch=leader_epoch(counter),
        in_sync=tuple(map(member, members)),
        version=1,
    )


SPREAD = structs.replace(
    MAIN,
    spread=Spread(
        groups={1: row(2, 2, 1, 2, 3), 2: row(3, 3, 1, 2, 3)}, preferred=(1, 2, 3), topics=()
    ),
)


class Waiting:
    """A clock that gathers leaders when somebody waits on it."""

    def __init__(self) -> None:
        self.metadata = SimpleNamespace(image=SPREAD)
        self.said: list[str | None] = []
        self.side = SteppingDown(
            me=member(2), metadata=cast("Any", self.metadata), partitions=cast("Any", ()), clock=cast("Any", self), least_others=lambda: 2, damaged=frozenset,
        )  # fmt: skip

    async def sleep_ms(self, _duration_ms: float) -> None:
        self.said.append(self.side.waits)
        self.metadata.image = MAIN


def test_INV_RGR8_what_is_damaged_waits_until_leaders_are_gathered_and_says_that_it_waits() -> None:
    played = Waiting()
    asyncio.run(played.side.make_way())
    assert played.said == ["a full segment of node 2 is damaged"]
    assert played.side.waits is None


def test_INV_RGR8_nobody_steps_down_while_leaders_are_spread() -> None:
    some = fixture()
    some.partition.stop("its disk has failed")
    asked: list[object] = []

    async def apply(command: object) -> None:
        asked.append(command)

    metadata = SimpleNamespace(image=SPREAD, apply=apply)
    side = SteppingDown(
        me=member(1), metadata=cast("Any", metadata), partitions=some.table, clock=some.clock, least_others=lambda: 2, damaged=frozenset,
    )  # fmt: skip
    asyncio.run(side.look())
    assert not asked
    metadata.image = MAIN
    asyncio.run(side.look())
    assert len(asked) == 1


def marked(rounds: int) -> Fixture:
    """Return a copy of a log of a data group, with the markers of rounds of an older leader epoch."""
    some = fixture(leads=False)
    log = some.partition
    log.become_leader(leader_epoch(7))
    for number in range(1, rounds + 1):
        decision = DecisionId(0, leader_epoch(5), number, round_of(leader_epoch(5), number))
        append_marker(
            log, producer_id=number, producer_epoch=0, control_type=ControlType.COMMIT, coordinator_epoch=1, decision=decision,
            timestamp_ms=1_000_000,
        )  # fmt: skip
    some.sync()
    log.become_mirror()
    log.commit_up_to(log.log_end_offset)
    return some


def entries(some: Fixture) -> int:
    return len(some.partition.state._cut_index.entries())


def test_INV_SCU4_where_rounds_of_the_main_leader_begin_in_a_copy_that_it_reads_is_not_forgotten() -> (
    None
):
    some = marked(3)
    before = entries(some)
    assert before == 3
    some.maintain(lambda _: None, keeps_rounds=lambda _: True)
    assert entries(some) == before
    some.maintain(lambda _: None)
    assert entries(some) <= 1


def test_INV_NRP3_what_was_lost_counts_as_copied_again_only_once_one_node_leads_all_logs() -> None:
    some = fixture()
    lost = some.partition
    some.table._made.note_lost(lost.topic_id, 0)
    parts = LostLogsParts(
        me=member(3), metadata=cast("Any", SimpleNamespace(image=MAIN)), partitions=some.table, clock=some.clock,
        line=cast("Any", None), copies=lambda _key, _epoch: True, damaged=frozenset,
    )  # fmt: skip
    side = LostLogs(parts)
    main = row(1, 1, 1, 2, 3)
    side._told = main.leader_epoch, {lost.key: 0}
    spread = Spread(groups={1: row(2, 2, 1, 2, 3)}, preferred=(1, 2), topics=())
    side.take_image(structs.replace(MAIN, leadership=main, spread=spread))
    assert some.table.lost()
    side.take_image(structs.replace(MAIN, leadership=main))
    assert not some.table.lost()
