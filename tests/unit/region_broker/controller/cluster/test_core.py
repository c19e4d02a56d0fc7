"""The controller's core, rule by rule."""

from collections.abc import Iterable
from uuid import UUID

import pytest

from idempotency.identity import RegionEpoch
from region_broker.controller.cluster.core import ControllerCore
from region_broker.controller.cluster.events import (
    CommandSettled,
    ControllerCommand,
    DamagedElected,
    DamageKnown,
    DrainAsked,
    Effect,
    Event,
    FolderReplaced,
    Heard,
    ImageChanged,
    Leads,
    LeadsNoMore,
    Lost,
    Offline,
    Online,
    OrderAnswered,
    Outcome,
    PreferredAsked,
    Propose,
    Ticked,
    UncleanAsked,
)
from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    DrainNode,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    RegisterNode,
    RemoveNode,
    UnfenceNode,
)
from region_broker.controller.metadata_commands import Command, CommandRefused, PutDomain, apply
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Term
from tests.fixtures.cluster_images import (
    after,
    born,
    in_sync,
    leader_epoch,
    led_by_one,
    let_in,
    life,
    main_domain,
    member,
    node,
)

A, B, C = member(1), member(2), member(3)
LIVES = {1: life(1), 2: life(2), 3: life(3)}


class Region:
    """A core that leads the quorum, whose commands are applied at once unless a test settles them."""

    def __init__(self, image: MetadataImage, settings: ControllerSettings | None = None) -> None:
        self.image = image
        self.now_ms = 0
        self.core = ControllerCore(settings or ControllerSettings(), image, 0)
        self.proposed: list[ControllerCommand] = []
        self.loud: list[Effect] = []
        self.applies = True
        self.lives = dict(LIVES)
        self.opening: set[int] = set()

    def tell(self, event: Event) -> list[Effect]:
        effects = self.core.step(event, self.now_ms)
        for effect in effects:
            if not isinstance(effect, Propose):
                self.loud.append(effect)
                continue
            self.proposed.append(effect.command)
            if self.applies:
                self.settle(effect)
        return effects

    def settle(self, effect: Propose) -> None:
        outcome, text = Outcome.DONE, ""
        try:
            self.image = apply(self.image, effect.command)
        except CommandRefused as refused:
            outcome, text = Outcome.REFUSED, refused.code
        else:
            self.tell(ImageChanged(self.image))
        self.tell(CommandSettled(effect.number, outcome, text))

    def change(self, *commands: Command) -> None:
        """Have others change the metadata."""
        for command in commands:
            self.image = apply(self.image, command)
            self.tell(ImageChanged(self.image))

    def lead(self, term: int = 1) -> "Region":
        self.tell(Leads(Term(term), self.image))
        return self

    def hear(self, *node_ids: int) -> None:
        for node_id in node_ids:
            incarnation = (
                self.image.nodes[node_id].incarnation
                if node_id in self.image.nodes
                else UUID(int=0)
            )
            who, opens = type(A)(node_id, incarnation), node_id in self.opening
            self.tell(Heard(who, self.lives[node_id], opens))

    def pass_time(self, ms: int, heard: Iterable[int] = ()) -> None:
        """Let time pass in steps of 50 ms, in each of which some nodes are heard."""
        for _ in range(ms // 50):
            self.now_ms += 50
            self.hear(*heard)
            self.tell(Ticked())

    def taken(self) -> list[ControllerCommand]:
        """Return what was proposed since the last time."""
        proposed, self.proposed = self.proposed, []
        return proposed


def test_the_first_node_is_let_in_and_leads() -> None:
    region = Region(born()).lead()
    region.change(RegisterNode(node(1)))
    assert region.taken() == [], "INV-CS2: it was not heard"
    region.hear(1)
    assert region.taken() == [UnfenceNode(1, LIVES[1]), ElectLeader(A, leader_epoch(1), 0)]


def test_INV_CS1_silence_fences_and_another_one_leads() -> None:
    region = Region(in_sync()).lead()
    region.pass_time(700, heard=(2, 3))
    assert region.taken() == []
    region.pass_time(50, heard=(2, 3))
    assert region.taken() == [FenceNode(1, LIVES[1]), ElectLeader(B, leader_epoch(2), 3)]


def test_INV_CS1_a_reset_connection_fences_after_the_grace_unless_it_is_heard_again() -> None:
    region = Region(in_sync()).lead()
    region.tell(Lost(B, LIVES[2]))
    region.pass_time(50, heard=(1, 3))
    region.pass_time(200, heard=(1, 2, 3))
    assert region.taken() == []
    region.tell(Lost(B, LIVES[2]))
    region.pass_time(50, heard=(1, 3))
    assert region.taken() == []
    region.pass_time(50, heard=(1, 3))
    assert region.taken() == [FenceNode(2, LIVES[2])]


def test_INV_CS1_a_new_leader_of_the_quorum_gives_everybody_a_whole_session() -> None:
    region = Region(in_sync()).lead()
    region.pass_time(700)
    region.tell(LeadsNoMore())
    region.lead(term=2)
    region.pass_time(700)
    assert region.taken() == []
    region.pass_time(50)
    assert region.taken()[0] == FenceNode(1, LIVES[1])


def test_INV_CK6_a_controller_that_stood_still_holds_it_against_nobody_but_not_for_ever() -> None:
    region = Region(in_sync()).lead()
    region.now_ms += 10_000
    region.tell(Ticked())
    assert region.taken() == []
    for _ in range(5):
        region.now_ms += 10_000
        region.tell(Ticked())
    assert region.taken() == [], "six looks of 100 ms"
    for _ in range(2):
        region.now_ms += 10_000
        region.tell(Ticked())
    assert region.taken()[0] == FenceNode(1, LIVES[1])


def test_INV_CK4_the_leader_is_fenced_first_then_somebody_is_elected_then_nodes_are_let_in() -> (
    None
):
    image = after(in_sync(), ElectLeader(C, leader_epoch(2), 2), FenceNode(2, LIVES[2]))
    region = Region(image).lead()
    region.applies = False
    region.hear(2)
    assert region.taken() == [UnfenceNode(2, LIVES[2])]
    region.applies = True
    region.lead(term=2)
    region.pass_time(750)
    fenced = region.taken()
    assert fenced == [FenceNode(3, LIVES[3]), FenceNode(1, LIVES[1])]
    assert region.loud[-1] == Offline(
        (A, B, C), "none of those that hold all that was committed is heard"
    )


@pytest.mark.parametrize(
    ("who", "its_life"),
    [(B, life(2, 2)), (member(2, 2), LIVES[2]), (member(9), life(9))],
    ids=["another life", "another folder", "nobody's"],
)  # fmt: skip
def test_INV_CS2_only_the_registered_life_is_heard(who: type(A), its_life: UUID) -> None:  # type: ignore[valid-type]
    region = Region(after(in_sync(), FenceNode(2, LIVES[2]))).lead()
    region.tell(Heard(who, its_life))
    assert region.taken() == []
    region.tell(Heard(B, LIVES[2]))
    assert region.taken() == [UnfenceNode(2, LIVES[2])]
    region.tell(Lost(who, its_life))
    region.pass_time(500, heard=(1, 3))
    assert region.taken() == []


def test_a_new_life_is_let_in_when_it_is_heard_and_leads_again_under_a_new_leader_epoch() -> None:
    region = Region(led_by_one()).lead()
    region.hear(1)
    region.change(RegisterNode(node(1, start=2)))
    region.hear(1)
    assert region.taken() == [], "the former life is not heard for it"
    region.lives[1] = life(1, 2)
    region.hear(1)
    assert region.taken() == [UnfenceNode(1, life(1, 2)), ElectLeader(A, leader_epoch(2), 2)]


def test_INV_CS1_the_grace_counts_from_the_first_reset() -> None:
    region = Region(in_sync()).lead()
    region.tell(Lost(B, LIVES[2]))
    region.pass_time(50, heard=(1, 3))
    region.tell(Lost(B, LIVES[2]))
    region.pass_time(50, heard=(1, 3))
    assert region.taken() == [FenceNode(2, LIVES[2])]


def flap(region: Region) -> None:
    """Let node 3 be fenced."""
    region.pass_time(800, heard=(1, 2))
    assert region.taken() == [FenceNode(3, LIVES[3])]


def returns_after_ms(region: Region) -> int:
    """Return how long node 3 is heard before it is unfenced."""
    for waited_ms in range(0, 30_000, 50):
        region.pass_time(50, heard=(1, 2, 3))
        if region.taken() == [UnfenceNode(3, LIVES[3])]:
            return waited_ms
    pytest.fail("it is let in within the limit")


def test_INV_CS3_a_node_that_flaps_waits_longer_each_time_up_to_a_limit_and_is_forgiven() -> None:
    settings = ControllerSettings(unfence_pause_max_ms=2_000)
    region = Region(in_sync(), settings).lead()
    region.pass_time(100, heard=(1, 2, 3))
    waited = []
    for _ in range(6):
        flap(region)
        waited.append(returns_after_ms(region))
    # The pause counts from when it was fenced, 50 ms before `flap` ended; the first look is after 50 ms more.
    assert waited == [0, 400, 900, 1_900, 1_900, 1_900]
    region.pass_time(60_000, heard=(1, 2, 3))
    flap(region)
    assert returns_after_ms(region) == 0
    flap(region)
    assert returns_after_ms(region) == 400
    region.pass_time(59_000, heard=(1, 2, 3))
    flap(region)
    assert returns_after_ms(region) == 900, "it did not stay for a minute"


def test_INV_CS3_who_is_not_in_sync_waits_also_while_nobody_leads() -> None:
    region = Region(led_by_one()).lead()
    for _ in range(2):
        region.pass_time(100, heard=(1, 2, 3))
        region.taken()
        region.pass_time(800, heard=(1, 2))
        assert region.taken() == [FenceNode(3, LIVES[3])]
        region.pass_time(500, heard=(1, 2, 3))
    region.taken()
    region.pass_time(800, heard=(1, 2))
    region.tell(Lost(A, LIVES[1]))
    region.pass_time(100, heard=(2, 3))
    assert region.taken() == [FenceNode(3, LIVES[3]), FenceNode(1, LIVES[1])]
    region.pass_time(200, heard=(2, 3))
    assert region.taken() == []


def test_INV_CS3_who_is_awaited_to_lead_does_not_wait() -> None:
    region = Region(led_by_one()).lead()
    for _ in range(4):
        region.pass_time(800, heard=(2, 3))
        assert region.taken() == [FenceNode(1, LIVES[1])]
        region.hear(1)
        unfenced, elected = region.taken()
        assert unfenced == UnfenceNode(1, LIVES[1])
        assert isinstance(elected, ElectLeader)


def test_INV_CK5_nobody_in_sync_is_left_and_nobody_else_is_elected() -> None:
    image = after(led_by_one(), ChangeInSync(A, leader_epoch(1), (A, B), 1))
    region = Region(image).lead()
    region.tell(Lost(A, LIVES[1]))
    region.tell(Lost(B, LIVES[2]))
    region.pass_time(2_000, heard=(3,))
    assert region.taken() == [FenceNode(1, LIVES[1]), FenceNode(2, LIVES[2])]
    why = "none of those that hold all that was committed is heard"
    assert region.loud == [Offline((A, B), why)]
    region.change(RegisterNode(node(1, folder=2, start=2)))
    region.lives[1] = life(1, 2)
    region.pass_time(1_000, heard=(1, 3))
    assert region.taken() == [UnfenceNode(1, life(1, 2))], "an emptied folder never leads"
    assert region.loud[1:] == [FolderReplaced(A, member(1, 2))]
    region.hear(2)
    assert region.taken() == [UnfenceNode(2, LIVES[2]), ElectLeader(B, leader_epoch(2), 3)]
    assert region.loud[2:] == [Online(B)]


def test_INV_CV1_the_preferred_one_leads_where_several_may() -> None:
    region = Region(in_sync(), ControllerSettings(preferred_node_id=3)).lead()
    region.pass_time(750, heard=(2, 3))
    assert region.taken()[-1] == ElectLeader(C, leader_epoch(2), 3)


def test_INV_CV4_who_still_opens_its_logs_is_elected_where_nobody_else_can_be() -> None:
    region = Region(in_sync(), ControllerSettings(preferred_node_id=2)).lead()
    region.opening = {2}
    region.pass_time(750, heard=(2, 3))
    assert region.taken()[-1] == ElectLeader(C, leader_epoch(2), 3)
    region.opening = {1, 2}
    region.pass_time(750, heard=(2,))
    assert region.taken()[-1] == ElectLeader(B, leader_epoch(3), 5)


def test_INV_CV4_who_has_opened_them_since_counts_as_ready() -> None:
    region = Region(in_sync()).lead()
    region.opening = {2}
    region.pass_time(700, heard=(2, 3))
    region.opening = set()
    region.pass_time(50, heard=(2, 3))
    assert region.taken()[-1] == ElectLeader(B, leader_epoch(2), 3)


def test_INV_CV2_T19_a_failover_lets_the_leader_be_elected_anew() -> None:
    region = Region(in_sync()).lead()
    region.change(PutDomain(main_domain(RegionEpoch(16))))
    assert region.taken() == [ElectLeader(A, leader_epoch(1, RegionEpoch(16)), 2)]
    moved = after(in_sync(), ElectLeader(C, leader_epoch(2), 2))
    stays = Region(after(moved, PutDomain(main_domain(RegionEpoch(16))))).lead()
    assert stays.taken() == [ElectLeader(C, leader_epoch(1, RegionEpoch(16)), 3)]
    drained = after(in_sync(), DrainNode(1, LIVES[1]), PutDomain(main_domain(RegionEpoch(16))))
    assert Region(drained).lead().taken() == [ElectLeader(B, leader_epoch(1, RegionEpoch(16)), 2)]
    gone = Region(after(in_sync(), FenceNode(1, LIVES[1]), PutDomain(main_domain(RegionEpoch(16)))))
    gone.lead()
    assert gone.taken() == [ElectLeader(B, leader_epoch(1, RegionEpoch(16)), 3)]


def test_leader_epochs_that_are_used_up_are_said_and_nobody_leads() -> None:
    image = after(in_sync(), ElectLeader(A, leader_epoch(65_535), 2))
    region = Region(image).lead()
    region.pass_time(1_000, heard=(2, 3))
    assert region.taken() == [FenceNode(1, LIVES[1])]
    (said,) = region.loud
    assert isinstance(said, Offline)
    assert said.awaited == ()
    assert "another region has to take over" in said.why


# --- proposals ---


def test_INV_CK1_who_does_not_lead_the_quorum_proposes_nothing() -> None:
    region = Region(in_sync())
    region.pass_time(2_000)
    assert region.taken() == []
    region.lead(term=7)
    region.applies = False
    region.pass_time(700)
    region.now_ms += 50
    assert region.tell(Ticked()) == [Propose(1, Term(7), FenceNode(1, LIVES[1]))]
    region.tell(LeadsNoMore())
    region.pass_time(2_000)
    assert len(region.taken()) == 1


def asked_once() -> Region:
    """Return a region whose core has asked to fence node 1, and was not answered."""
    region = Region(in_sync()).lead()
    region.applies = False
    region.pass_time(2_000)
    assert region.taken() == [FenceNode(1, LIVES[1])], "INV-CK2: one at a time"
    return region


def test_INV_CK2_an_unknown_outcome_is_not_asked_for_again_before_the_metadata_show_it() -> None:
    region = asked_once()
    region.tell(CommandSettled(1, Outcome.UNKNOWN))
    region.change(DrainNode(3, LIVES[3]))
    region.pass_time(2_000)
    assert region.taken() == []
    region.change(FenceNode(1, LIVES[1]))
    assert region.taken() == [FenceNode(2, LIVES[2])]


def test_INV_CK2_a_new_term_holds_what_was_applied_and_the_rest_never_comes() -> None:
    region = asked_once()
    region.tell(CommandSettled(1, Outcome.UNKNOWN))
    region.lead(term=2)
    region.pass_time(750)
    assert region.taken() == [FenceNode(1, LIVES[1])]
    region.tell(CommandSettled(1, Outcome.DONE))
    region.pass_time(500)
    assert region.taken() == [], "the answer was to the former proposal"


def test_INV_CK3_a_refusal_is_asked_for_again_later_or_when_the_metadata_changed() -> None:
    region = asked_once()
    region.tell(CommandSettled(1, Outcome.REFUSED, "no room"))
    region.pass_time(50)
    assert region.taken() == []
    region.pass_time(50)
    assert region.taken() == [FenceNode(1, LIVES[1])]
    region.tell(CommandSettled(2, Outcome.REFUSED, "no room"))
    assert region.taken() == []
    region.change(DrainNode(3, LIVES[3]))
    assert region.taken() == [FenceNode(1, LIVES[1])]


# --- orders ---


def test_INV_CW1_a_leader_that_is_to_be_stopped_hands_over_before_that_is_answered() -> None:
    region = Region(in_sync()).lead()
    region.tell(DrainAsked(5, 1))
    assert region.taken() == [DrainNode(1, LIVES[1]), ElectLeader(B, leader_epoch(2), 2)]
    assert region.loud == [OrderAnswered(5, Outcome.DONE)]
    alone = Region(led_by_one()).lead()
    alone.tell(DrainAsked(6, 1))
    assert alone.taken() == [DrainNode(1, LIVES[1])]
    assert alone.loud == [OrderAnswered(6, Outcome.DONE)], "nobody else can lead"


def test_INV_CW1_a_drain_is_answered_when_another_one_leads_and_drains_no_later_life() -> None:
    region = Region(in_sync()).lead()
    region.applies = False
    region.tell(DrainAsked(1, 1))
    region.tell(DrainAsked(2, 3))
    region.change(DrainNode(1, LIVES[1]))
    region.tell(CommandSettled(1, Outcome.DONE))
    assert region.taken() == [DrainNode(1, LIVES[1]), ElectLeader(B, leader_epoch(2), 2)]
    assert region.loud == []
    region.change(ElectLeader(B, leader_epoch(2), 2), RegisterNode(node(1, start=2)))
    region.tell(CommandSettled(2, Outcome.DONE))
    assert answers(region) == [(1, Outcome.DONE)]
    assert region.taken() == [DrainNode(3, LIVES[3])]


def test_INV_CW1_an_election_that_is_ordered() -> None:
    region = Region(in_sync()).lead()
    region.tell(PreferredAsked(1, 3))
    assert region.taken() == [ElectLeader(C, leader_epoch(2), 2)]
    region.tell(PreferredAsked(2, 3))
    region.tell(PreferredAsked(3, None))
    assert region.taken() == [ElectLeader(A, leader_epoch(3), 3)]
    assert region.loud == [OrderAnswered(ticket, Outcome.DONE) for ticket in (1, 2, 3)]


def test_INV_CV5_who_has_damage_comes_behind_all_others() -> None:
    region = Region(in_sync())
    region.tell(DamageKnown(frozenset({B})))
    region.lead()
    region.pass_time(750, heard=(2, 3))
    assert region.taken() == [FenceNode(1, LIVES[1]), ElectLeader(C, leader_epoch(2), 3)]
    assert region.loud == []
    region.tell(DamageKnown(frozenset()))
    region.pass_time(750, heard=(2,))
    assert region.taken() == [FenceNode(3, LIVES[3]), ElectLeader(B, leader_epoch(3), 5)]
    assert region.loud == []


def test_INV_CV4_INV_CV5_a_sound_one_that_opens_its_logs_comes_before_one_with_damage() -> None:
    region = Region(in_sync(), ControllerSettings(preferred_node_id=2)).lead()
    region.tell(DamageKnown(frozenset({B})))
    region.opening = {3}
    region.pass_time(750, heard=(2, 3))
    assert region.taken()[-1] == ElectLeader(C, leader_epoch(2), 3)


def test_INV_CV5_where_all_who_could_lead_have_damage_one_is_elected_loudly() -> None:
    region = Region(in_sync()).lead()
    region.tell(DamageKnown(frozenset({A, B, C})))
    region.pass_time(750, heard=(2, 3))
    assert region.taken() == [FenceNode(1, LIVES[1]), ElectLeader(B, leader_epoch(2), 3)]
    assert region.loud == [DamagedElected(B)]


def test_INV_CW2_a_node_with_damage_leads_by_no_order_while_another_one_could() -> None:
    region = Region(in_sync()).lead()
    region.tell(DamageKnown(frozenset({B})))
    region.tell(PreferredAsked(1, 2))
    assert region.taken() == []
    [refused] = region.loud
    assert isinstance(refused, OrderAnswered)
    assert refused.outcome is Outcome.REFUSED
    assert "Let one of these nodes lead: 1, 3" in refused.text
    region.tell(DamageKnown(frozenset({A, B, C})))
    region.tell(PreferredAsked(2, 2))
    assert region.taken() == [ElectLeader(B, leader_epoch(2), 2)]
    region.tell(DamageKnown(frozenset({A, B})))
    region.tell(PreferredAsked(3, 2))
    region.tell(PreferredAsked(4, None))
    assert region.taken() == [ElectLeader(C, leader_epoch(3), 3)], "who leads goes on, or the best"


def answers(region: Region) -> list[tuple[int, Outcome]]:
    return [(said.ticket, said.outcome) for said in region.loud if isinstance(said, OrderAnswered)]


def test_INV_CW1_an_order_that_cannot_be_is_refused_at_once() -> None:
    region = Region(led_by_one()).lead()
    for order in (
        PreferredAsked(1, 2), PreferredAsked(2, 9), DrainAsked(3, 9), UncleanAsked(4, B),
    ):  # fmt: skip
        region.tell(order)
    assert region.taken() == []
    assert answers(region) == [(ticket, Outcome.REFUSED) for ticket in (1, 2, 3, 4)]
    follower = Region(in_sync())
    follower.tell(DrainAsked(5, 1))
    assert answers(follower) == [(5, Outcome.REFUSED)]


def test_INV_MH5_an_unclean_election_is_an_operators_word() -> None:
    region = Region(led_by_one()).lead()
    region.pass_time(1_000, heard=(2, 3))
    assert region.taken() == [FenceNode(1, LIVES[1])]
    region.tell(UncleanAsked(1, C))
    assert region.taken() == [ElectUnclean(C, leader_epoch(2), 2)]
    assert answers(region) == [(1, Outcome.DONE)]
    assert region.image.leadership is not None
    assert (region.image.leadership.leader, region.image.leadership.unclean) == (C, 1)


def test_INV_CW1_orders_are_answered_when_the_quorum_is_led_by_another_one() -> None:
    region = Region(in_sync(), ControllerSettings(orders_max=2)).lead()
    region.applies = False
    for ticket in (1, 2, 3):
        region.tell(DrainAsked(ticket, ticket))
    assert answers(region) == [(3, Outcome.REFUSED)], "two may wait"
    region.tell(LeadsNoMore())
    assert answers(region)[1:] == [(1, Outcome.UNKNOWN), (2, Outcome.UNKNOWN)]


def test_INV_CW1_an_order_whose_command_came_to_nothing_is_answered_so() -> None:
    for outcome in (Outcome.REFUSED, Outcome.UNKNOWN):
        region = Region(in_sync()).lead()
        region.applies = False
        region.tell(PreferredAsked(1, 2))
        region.tell(CommandSettled(1, outcome, "why"))
        assert region.loud == [OrderAnswered(1, outcome, "why")]


def test_a_node_that_was_removed_has_no_session() -> None:
    region = Region(in_sync()).lead()
    region.change(RemoveNode(3, C.incarnation))
    region.pass_time(1_000, heard=(1, 2))
    assert region.taken() == []
    region.change(*let_in(3, folder=2))
    region.pass_time(700, heard=(1, 2))
    assert region.taken() == []
    region.pass_time(50, heard=(1, 2))
    assert region.taken() == [FenceNode(3, LIVES[3])]
