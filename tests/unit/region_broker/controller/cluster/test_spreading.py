"""When leaders are spread and gathered, rule by rule."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec import structs

from idempotency.fencing import LEADER_COUNTER_MAX, EpochExhausted
from idempotency.identity import Member
from region_broker.controller.cluster.spreading import (
    KeeperCommand,
    SpreadFacts,
    SpreadKeeping,
    SpreadSettings,
    gathering,
    leads_a_data_group,
)
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    DrainNode,
    ElectLeader,
    FenceNode,
    GatherLeaders,
    PreferSpread,
    RegisterNode,
    UnfenceNode,
)
from region_broker.controller.leadership_rules import KEPT_FOR_MAIN
from region_broker.controller.metadata_commands import Command, DeleteTopic, SetTopicConfigs
from region_broker.controller.metadata_image import MetadataImage
from tests.fixtures.cluster_images import after, leader_epoch, let_in, life, member, node
from tests.fixtures.spread_images import (
    ORDERS,
    PAYMENTS,
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
    spreading,
    topic,
)

TIMES = SpreadSettings()
STEP_MS = 250
ACTS = SpreadFacts(A)


@dataclass
class Kept:
    """A node's keeping, whose commands are applied at once unless a test keeps them back."""

    image: MetadataImage
    facts: SpreadFacts = ACTS
    applies: bool = True
    now_ms: int = 0
    asked: list[tuple[int, KeeperCommand]] = field(default_factory=list)
    core: SpreadKeeping = field(default_factory=lambda: SpreadKeeping(TIMES))

    def change(self, *commands: Command) -> "Kept":
        self.image = after(self.image, *commands)
        return self

    def pass_time(self, ms: int) -> "Kept":
        """Let time pass, in looks."""
        for _ in range(ms // STEP_MS):
            command = self.core.step(self.image, self.facts, self.now_ms)
            if command is not None:
                self.asked.append((self.now_ms, command))
                if self.applies:
                    self.image = after(self.image, command)
            self.now_ms += STEP_MS
        return self

    def kinds(self) -> list[str]:
        return [type(command).__name__ for _, command in self.asked]


def wanted(image: MetadataImage) -> MetadataImage:
    return after(image, PreferSpread(wanted=True))


def first(kept: Kept, ms: int) -> tuple[int, str]:
    """Return what is asked for first within a time, and when, (-1, "") for nothing."""
    kept.pass_time(ms)
    return (kept.asked[0][0], kept.kinds()[0]) if kept.asked else (-1, "")


def test_INV_SPK1_leaders_are_spread_when_the_region_has_acted_steadily() -> None:
    kept = Kept(wanted(able_to_spread())).pass_time(15_000)
    assert kept.asked == [(TIMES.steady_ms, spreading())]
    kept = Kept(wanted(after(able_to_spread(), ElectLeader(B, leader_epoch(2), 2))), SpreadFacts(B))  # fmt: skip
    kept.pass_time(15_000)
    assert kept.asked == [(TIMES.steady_ms, spreading(preferred=(2, 1, 3), epoch=2, version=3, leader=B))]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (able_to_spread(), ACTS),
        (structs.replace(wanted(able_to_spread()), feature_level=2), ACTS),
        (wanted(able_to_spread()), SpreadFacts(A, idle="a mirror")),
        (wanted(able_to_spread()), SpreadFacts(B)),
        (wanted(able_to_spread()), SpreadFacts(A, trouble="a log has stopped")),
        (wanted(after(able_to_spread(), ChangeInSync(A, leader_epoch(1), (A, B), 2))), ACTS),
        (wanted(after(able_to_spread(), FenceNode(2, life(2)), FenceNode(3, life(3)))), ACTS),
        (wanted(after(able_to_spread(), DrainNode(1, life(1)))), ACTS),
        (structs.replace(wanted(able_to_spread()), last_leader_epoch=leader_epoch(LEADER_COUNTER_MAX - KEPT_FOR_MAIN - 1)), ACTS),
    ],
    ids=[
        "not wanted", "older level", "does not act", "another one leads", "trouble", "one that may lead is not in sync",
        "nobody else", "about to stop", "too few leader epochs",
    ],
)  # fmt: skip
def test_INV_SPK1_else_they_are_not(image: MetadataImage, facts: SpreadFacts) -> None:
    assert Kept(image, facts).pass_time(60_000).asked == []


def test_INV_SPK1_the_time_begins_anew_where_it_is_interrupted() -> None:
    kept = Kept(wanted(able_to_spread())).pass_time(9_000)
    kept.facts = SpreadFacts(A, idle="a mirror")
    kept.pass_time(STEP_MS)
    kept.facts = ACTS
    assert kept.pass_time(9_000).asked == []
    kept.change(ElectLeader(A, leader_epoch(2), 2))
    assert kept.pass_time(9_000).asked == []
    assert kept.pass_time(3_000).kinds() == ["SpreadLeaders"]


def test_INV_SPK1_a_node_that_is_not_heard_is_left_out() -> None:
    kept = Kept(wanted(after(able_to_spread(), FenceNode(2, life(2))))).pass_time(12_000)
    assert kept.asked == [(TIMES.steady_ms, spreading(preferred=(1, 3)))]


def two_nodes() -> MetadataImage:
    """Return it spread over two nodes, the third being silent."""
    image = after(able_to_spread(), FenceNode(3, life(3)))
    return wanted(after(image, spreading(preferred=(1, 2))))


def no_leader_able(_image: MetadataImage) -> MetadataImage:
    """Return two nodes, the second one silent: nobody else may lead its group."""
    return after(two_nodes(), FenceNode(2, life(2)))


def no_epoch_left(image: MetadataImage) -> MetadataImage:
    """Return it with the second node started anew and in sync, and no leader epoch left for data groups: nobody is elected in its group."""
    image = after(image, FenceNode(2, life(2)), UnfenceNode(2, life(2)))
    return structs.replace(
        image, last_leader_epoch=leader_epoch(LEADER_COUNTER_MAX - KEPT_FOR_MAIN)
    )


@pytest.mark.parametrize(
    ("make", "after_ms"),
    [
        (lambda image: after(image, PreferSpread(wanted=False)), 0),
        (lambda image: after(image, shrunk(image, 1, B, A), shrunk(image, 2, A, C)), TIMES.common_ms),
        (lambda image: left_with(image, 1, B, C), TIMES.common_ms),
        (no_leader_able, TIMES.common_ms),
        (no_epoch_left, TIMES.common_ms),
        (lambda _image: after(two_nodes(), DrainNode(2, life(2))), 0),
        (lambda image: after(image, shrunk(image, 1, A, B)), TIMES.differ_ms),
        (lambda image: after(image, *let_in(4)), TIMES.count_ms),
        (lambda image: after(image, FenceNode(3, life(3)), elected(after(image, FenceNode(3, life(3))), 2, B)), TIMES.count_ms),
        (lambda image: after(image, SetTopicConfigs(ORDERS, {"cleanup.policy": "compact"})), TIMES.count_ms),
    ],
    ids=[
        "not wanted", "one in sync everywhere", "main leader not in sync", "nobody to lead", "no leader epoch left", "leader about to stop", "sets differ", "more nodes",
        "fewer nodes", "compacted since",
    ],
)  # fmt: skip
def test_INV_SPK2_leaders_are_gathered_when_that_has_been_so_for_a_while(
    make: Callable[[MetadataImage], MetadataImage], after_ms: int
) -> None:
    kept = Kept(make(wanted(spread())), applies=False)
    at_ms, kind = first(kept, 90_000)
    lacks = make.__name__ == "<lambda>" and A not in group(kept.image, 1).in_sync
    assert (at_ms, kind) == (after_ms, "ElectLeader" if lacks else "GatherLeaders")


def test_INV_SPK2_trouble_with_a_log_gathers_at_once_and_topics_that_come_and_go_do_not() -> None:
    kept = Kept(wanted(spread()), SpreadFacts(A, trouble="a log has stopped"))
    assert first(kept, 1_000) == (0, "GatherLeaders")
    kept = Kept(wanted(spread())).change(topic(A.incarnation), DeleteTopic(PAYMENTS))
    assert kept.pass_time(90_000).asked == []


def test_INV_SPK2_what_is_over_in_time_gathers_nothing() -> None:
    kept = Kept(wanted(spread())).change(*let_in(4)).pass_time(29_000)
    kept.change(FenceNode(4, life(4))).pass_time(1_000)
    kept.change(UnfenceNode(4, life(4))).pass_time(29_000)
    assert kept.asked == []


def test_INV_SPK2_only_who_leads_the_main_group_decides() -> None:
    image = after(wanted(spread()), PreferSpread(wanted=False))
    assert Kept(image, SpreadFacts(B, idle="a mirror")).pass_time(90_000).asked == []


def spreads_of(kept: Kept) -> list[int]:
    return [at_ms for at_ms, command in kept.asked if type(command).__name__ == "SpreadLeaders"]


def is_spread(kept: Kept) -> bool:
    return kept.image.spread is not None


def test_INV_SPK3_spreads_that_end_soon_come_later_and_later() -> None:
    kept = Kept(wanted(spread())).pass_time(STEP_MS)
    pauses: list[int] = []
    for _ in range(9):
        kept.change(gathering_of(kept.image))
        ended_ms = kept.now_ms
        while not is_spread(kept):
            kept.pass_time(STEP_MS)
        pauses.append(kept.now_ms - ended_ms)
        kept.pass_time(STEP_MS)
    assert pauses[:4] == [10_250, 20_250, 40_250, 80_250]
    assert pauses[-2:] == [TIMES.pause_max_ms + STEP_MS] * 2


def test_INV_SPK3_a_spread_that_lasted_is_forgiven_and_so_is_what_nobody_wants() -> None:
    kept = Kept(wanted(able_to_spread())).pass_time(11_000)
    for _ in range(4):
        kept.change(gathering_of(kept.image)).pass_time(400_000)
    assert kept.image.spread is not None
    kept.pass_time(TIMES.forgiven_ms).change(gathering_of(kept.image))
    ended_ms = kept.now_ms
    kept.pass_time(12_000)
    assert spreads_of(kept)[-1] - ended_ms <= TIMES.steady_ms + STEP_MS
    for _ in range(3):
        kept.change(PreferSpread(wanted=False)).pass_time(1_000)
        kept.change(PreferSpread(wanted=True))
        kept.pass_time(12_000)
        assert kept.image.spread is not None


def test_INV_SPK3_who_begins_to_lead_knows_how_long_spreads_have_lasted() -> None:
    kept = Kept(wanted(spread()), SpreadFacts(B, idle="a mirror")).pass_time(1_000)
    for epoch in (4, 7):
        kept.change(gathering_of(kept.image)).pass_time(1_000)
        version = kept.image.leadership.version  # type: ignore[union-attr]
        kept.change(spreading(epoch=epoch, version=version)).pass_time(1_000)
    kept.change(ElectLeader(B, leader_epoch(99), kept.image.leadership.version))  # type: ignore[union-attr]
    kept.facts = SpreadFacts(B)
    began_ms = kept.now_ms
    kept.pass_time(60_000)
    assert spreads_of(kept)[0] - began_ms >= 4 * TIMES.pause_ms


def test_INV_SPK4_a_data_group_goes_back_to_its_preferred_node() -> None:
    image = after(wanted(spread()), FenceNode(2, life(2)))
    image = after(image, elected(image, 1, C))
    kept = Kept(image).pass_time(15_000)
    assert kept.asked == []
    kept.change(RegisterNode(node(2, start=2)), UnfenceNode(2, life(2, 2)))
    began_ms = kept.now_ms
    kept.pass_time(15_000)
    assert kept.asked == [(began_ms + TIMES.preferred_ms, elected(image, 1, B))]
    assert group(kept.image, 1).leader == B
    assert kept.pass_time(90_000).kinds() == ["ElectGroupLeader"]


def test_INV_SPK5_what_was_asked_for_is_not_asked_for_again_at_once() -> None:
    kept = Kept(after(wanted(spread()), PreferSpread(wanted=False)), applies=False)
    kept.pass_time(2_000)
    assert [at_ms for at_ms, _ in kept.asked] == [0, TIMES.retry_ms]
    kept.change(topic(A.incarnation)).pass_time(STEP_MS)
    assert len(kept.asked) == 3


def test_gathering_elects_another_one_where_the_leader_lacks_something() -> None:
    image = spread()
    assert gathering(image) == GatherLeaders(3)
    image = left_with(image, 1, B, C)
    assert gathering(image) == ElectLeader(B, leader_epoch(4), 3)
    nobody = after(image, FenceNode(2, life(2)), FenceNode(3, life(3)))
    assert gathering(nobody) is None
    assert gathering(after(image, FenceNode(1, life(1)))) is None, "the controller elects"
    assert gathering(able_to_spread()) is None
    with pytest.raises(EpochExhausted):
        gathering(
            msgspec.structs.replace(image, last_leader_epoch=leader_epoch(LEADER_COUNTER_MAX))
        )


def test_who_leads_a_data_group() -> None:
    image = spread()
    assert [leads_a_data_group(image, each) for each in (A, B, C, member(4))] == [False, True, True, False]  # fmt: skip
    assert not leads_a_data_group(able_to_spread(), B)


@pytest.mark.parametrize(
    ("image", "facts", "said"),
    [
        (able_to_spread(), ACTS, ""),
        (spread(), ACTS, ""),
        (wanted(spread()), ACTS, ""),
        (structs.replace(wanted(able_to_spread()), leadership=None), ACTS, ""),
        (wanted(able_to_spread()), ACTS, "steadily for 10 s"),
        (wanted(able_to_spread()), SpreadFacts(A, "it takes no writes"), "takes no writes"),
        (wanted(able_to_spread()), SpreadFacts(A, trouble="a log stopped"), "a log stopped"),
        (structs.replace(wanted(able_to_spread()), feature_level=2), ACTS, "upgrade --finalize"),
    ],
    ids=["not wanted", "spread", "wanted and spread", "born", "soon", "stands still", "trouble", "level"],
)  # fmt: skip
def test_INV_SPK1_why_leaders_are_not_spread_though_they_are_to_be_is_said(
    image: MetadataImage, facts: SpreadFacts, said: str
) -> None:
    found = SpreadKeeping(TIMES).waits_for(image, facts)
    assert (said in found) if said else not found


def with_main_in_sync(image: MetadataImage, *in_sync: Member) -> MetadataImage:
    """Return the image with this in-sync set of the main group."""
    assert image.leadership is not None
    return structs.replace(
        image, leadership=structs.replace(image.leadership, in_sync=tuple(in_sync))
    )


def without_leader(image: MetadataImage, number: int, *in_sync: Member) -> MetadataImage:
    """Return the image in which nobody leads a data group, with this in-sync set."""
    image = left_with(image, number, *in_sync)
    assert image.spread is not None
    row = structs.replace(group(image, number), leader=None)
    groups = {**image.spread.groups, number: row}
    return structs.replace(image, spread=structs.replace(image.spread, groups=groups))


def test_INV_SPK2_two_that_run_are_enough_and_both_are_to_be_in_sync_in_all_groups() -> None:
    image = after(wanted(spread()), FenceNode(2, life(2)))
    image = after(image, elected(image, 1, C))
    kept = Kept(with_main_in_sync(image, A, B))
    assert first(kept, 5_000) == (TIMES.common_ms, "GatherLeaders")
    kept = Kept(with_main_in_sync(image, A, C))
    assert first(kept, 5_000) == (-1, "")


def test_INV_SPK2_a_group_that_has_a_successor_gathers_nothing() -> None:
    image = wanted(spread())
    assert first(Kept(without_leader(image, 1, A, B, C)), 5_000) == (-1, "")


def test_INV_SPK4_a_group_goes_to_its_preferred_node_and_to_no_other() -> None:
    """Node 4 leads fewer groups than node 3, which leads in place of node 2 as long as that is not heard."""
    image = after(wanted(able_to_spread()), *let_in(4))
    image = with_main_in_sync(image, A, B, C, member(4))
    image = after(image, spreading(preferred=(1, 2, 3, 4)), FenceNode(2, life(2)))
    image = after(image, elected(image, 1, C))
    assert first(Kept(image), 29_000) == (-1, "")


def test_INV_SPR5_a_leader_epoch_that_is_kept_is_not_asked_for_to_go_back_to_a_preferred_node() -> (
    None
):
    image = after(wanted(spread()), FenceNode(2, life(2)))
    image = after(image, elected(image, 1, C))
    image = after(image, RegisterNode(node(2, start=2)), UnfenceNode(2, life(2, 2)))
    last = leader_epoch(LEADER_COUNTER_MAX - KEPT_FOR_MAIN)
    used = structs.replace(image, last_leader_epoch=last)
    assert first(Kept(used), 15_000) == (-1, "")
    one_left = structs.replace(image, last_leader_epoch=type(last)(last - 1))
    assert first(Kept(one_left), 15_000) == (TIMES.preferred_ms, "ElectGroupLeader")


def test_INV_SPK3_a_spread_of_just_that_long_is_forgiven() -> None:
    core = SpreadKeeping(TIMES)
    image = wanted(spread())
    gathered = after(image, gathering_of(image))
    core.step(image, ACTS, 0)
    core.step(gathered, ACTS, 0)  # ended at once: the next pause is doubled
    core.step(image, ACTS, 0)
    ended_ms = TIMES.forgiven_ms
    core.step(gathered, ACTS, ended_ms)
    assert core.step(gathered, ACTS, ended_ms + TIMES.pause_ms) is not None, "not twice the pause"


def test_why_leaders_are_spread_and_gathered_is_told() -> None:
    kept = Kept(wanted(able_to_spread())).pass_time(11_000)
    assert "steadily with nodes [1, 2, 3]" in kept.core.reason
    kept.change(FenceNode(2, life(2)))
    kept.change(elected(kept.image, 1, C))
    kept.change(RegisterNode(node(2, start=2)), UnfenceNode(2, life(2, 2))).pass_time(11_000)
    assert "may lead data group 1 again" in kept.core.reason
    kept.change(PreferSpread(wanted=False)).pass_time(STEP_MS)
    assert "not to be spread any more" in kept.core.reason
