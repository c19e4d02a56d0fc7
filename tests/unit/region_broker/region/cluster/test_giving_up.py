"""When a leader gives up that hears nobody, what clients are told then, and how it leads again."""

from msgspec.structs import replace

from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster.elections import elect
from region_broker.controller.cluster_commands import ElectLeader
from region_broker.controller.cluster_image import MAIN_GROUP, GroupNumber
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.region.cluster.giving_up import (
    GIVE_UP_MS,
    LOOK_MAX_MS,
    LOOK_MS,
    GivingUp,
    GivingUpParts,
    Silence,
)
from region_broker.region.cluster.replica_term import SURE_MS
from tests.fixtures.cluster_images import after, in_sync, member
from tests.fixtures.node_logs import TOPIC_ID, ManualClock
from tests.fixtures.played_spread import MAIN_EPOCH, group_epoch, spread_region

GROUP = GroupNumber(1)


class Leader:
    """A node, number 2 where not said otherwise, that leads what `led` says, and hears whom it is told to hear."""

    def __init__(
        self, image: MetadataImage, led: dict[GroupNumber, LeaderEpoch], me: int = 2
    ) -> None:
        self.image = image
        self.led = led
        self.clock = ManualClock()
        self.sure = self.quorum = False
        self.given: list[tuple[GroupNumber, LeaderEpoch]] = []
        self.asked: list[ElectLeader] = []
        self.refuses = False
        self.giving = GivingUp(
            GivingUpParts(
                me=member(me),
                clock=self.clock,
                image=lambda: self.image,
                led=lambda: dict(self.led),
                leading_of=lambda _group: self,
                give_up=self._give_up,
                hears_quorum=lambda: self.quorum,
                apply=self._apply,
            )
        )

    def is_sure(self) -> bool:
        return self.sure

    def _give_up(self, group: GroupNumber, leader_epoch: LeaderEpoch) -> None:
        assert self.led.pop(group) == leader_epoch
        self.given.append((group, leader_epoch))

    async def _apply(self, command: ElectLeader) -> None:
        self.asked.append(command)
        if self.refuses:
            raise CommandRefused("other-version", "somebody else was elected")
        self.image = after(self.image, command)

    def look_for(self, ms: int) -> None:
        for _ in range(0, ms, LOOK_MS):
            self.clock.now_ms += LOOK_MS
            self.giving.look()


def main_leader(me: int = 1) -> Leader:
    image = in_sync()
    assert image.leadership is not None
    return Leader(image, {MAIN_GROUP: image.leadership.leader_epoch}, me)


def data_leader() -> Leader:
    return Leader(spread_region(TOPIC_ID), {GROUP: group_epoch(1)})


def test_INV_GUP1_a_leader_gives_up_when_it_has_heard_nobody_for_a_while_and_no_sooner() -> None:
    node = main_leader()
    [epoch] = node.led.values()
    node.look_for(GIVE_UP_MS - SURE_MS)
    assert node.given == []
    node.look_for(2 * LOOK_MS)
    assert node.given == [(MAIN_GROUP, epoch)]
    node.look_for(GIVE_UP_MS)
    assert len(node.given) == 1


def test_INV_GUP1_whoever_hears_a_follower_or_the_quorum_in_between_goes_on() -> None:
    for heard in ("sure", "quorum"):
        node = main_leader()
        for _ in range(5):
            node.look_for(GIVE_UP_MS - SURE_MS - LOOK_MS)
            setattr(node, heard, True)
            node.look_for(LOOK_MS)
            setattr(node, heard, False)
        assert node.given == []


def test_INV_GUP1_each_leader_epoch_has_its_own_time() -> None:
    """Who is elected anew had to be heard for that."""
    node = main_leader()
    node.look_for(GIVE_UP_MS - SURE_MS)
    node.led[MAIN_GROUP] = LeaderEpoch(node.led[MAIN_GROUP] + 1)
    node.look_for(GIVE_UP_MS - SURE_MS)
    assert node.given == []
    node.look_for(2 * LOOK_MS)
    assert node.given == [(MAIN_GROUP, node.given[0][1])]


def test_INV_GUP1_nobody_gives_up_who_is_in_sync_alone() -> None:
    node = main_leader()
    main = node.image.leadership
    assert main is not None
    node.image = replace(node.image, leadership=replace(main, in_sync=(member(1),)))
    node.look_for(10 * GIVE_UP_MS)
    assert node.given == []


def test_INV_GUP2_time_in_which_nobody_looked_counts_a_little() -> None:
    silence = Silence(LeaderEpoch(9), 0)
    now_ms, looks = 0, 0
    while not silence.look(now_ms, is_heard=False):
        now_ms, looks = now_ms + 3_600_000, looks + 1
    assert looks >= (GIVE_UP_MS - SURE_MS) // LOOK_MAX_MS


def test_INV_GUP1_a_group_is_given_up_and_the_others_go_on() -> None:
    node = data_leader()
    other = GroupNumber(2)
    node.led[other] = group_epoch(2)
    node.look_for(GIVE_UP_MS - SURE_MS)
    del node.led[other]  # it is led elsewhere meanwhile
    node.look_for(2 * LOOK_MS)
    assert node.given == [(GROUP, group_epoch(1))]


def test_INV_GUP3_nobody_is_told_to_lead_what_was_given_up() -> None:
    node = data_leader()
    image = node.image
    assert node.giving.told(image) is image
    node.look_for(GIVE_UP_MS)
    told = node.giving.told(image)
    assert told is node.giving.told(image), "whoever keeps answers by image goes on doing so"
    row, main = told.leadership_in(GROUP), told.leadership
    assert row is not None
    assert main is not None
    assert (row.leader, row.leader_epoch) == (None, group_epoch(1))
    assert (main.leader, main.leader_epoch) == (member(1), MAIN_EPOCH)
    assert told.leadership_in(2) == image.leadership_in(2)


async def test_INV_GUP4_it_is_elected_anew_once_the_quorum_is_heard_again() -> None:
    node = main_leader()
    before = node.image
    node.look_for(GIVE_UP_MS)
    told = node.giving.told(before)
    assert told.leadership is not None
    assert told.leadership.leader is None
    await node.giving.lead_again()
    assert node.asked == []
    node.quorum = True
    await node.giving.lead_again()
    assert node.asked == [elect(before, before.main_domain.region_epoch, member(1))]
    assert node.giving.told(node.image) is node.image, "it leads under another leader epoch"
    await node.giving.lead_again()
    assert len(node.asked) == 1


async def test_INV_GUP4_where_somebody_else_was_elected_nothing_is_asked_or_it_is_refused() -> None:
    node = main_leader()
    node.look_for(GIVE_UP_MS)
    node.quorum = node.refuses = True
    await node.giving.lead_again()
    assert len(node.asked) == 1
    node.image = after(
        node.image, elect(node.image, node.image.main_domain.region_epoch, member(2))
    )
    await node.giving.lead_again()
    assert len(node.asked) == 1


async def test_INV_GUP4_who_may_not_lead_any_more_has_another_one_elected() -> None:
    node = main_leader()
    node.look_for(GIVE_UP_MS)
    image = node.image
    node.image = replace(image, nodes=image.nodes | {1: replace(image.nodes[1], draining=True)})
    node.quorum = True
    await node.giving.lead_again()
    assert [each.leader for each in node.asked] == [member(2)]
