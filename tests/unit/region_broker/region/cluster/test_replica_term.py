"""Whether a leader is sure to lead, by whom it has heard (INV-RTM5)."""

from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.region.cluster.replica_term import SURE_MS, LeaderTerm, TermParts
from region_broker.replication.leading import LeadingSettings
from tests.fixtures.cluster_images import member
from tests.fixtures.node_logs import ManualClock

ONE, TWO, THREE = map(member, (1, 2, 3))


def nothing(*_: object) -> None:
    """Do nothing."""


def term(clock: ManualClock, *in_sync: int) -> LeaderTerm:
    parts = TermParts(
        me=ONE, clock=clock, settings=LeadingSettings(), min_in_sync_of=lambda _: 1, propose=nothing, was_cut=nothing
    )  # fmt: skip
    members = tuple(map(member, in_sync))
    return LeaderTerm(
        parts, Leadership(leader=ONE, leader_epoch=LeaderEpoch(9), in_sync=members, version=4)
    )


def test_INV_RTM5_whoever_begins_to_lead_is_sure_for_a_while_and_no_longer() -> None:
    clock = ManualClock()
    leads = term(clock, 1, 2)
    clock.now_ms += SURE_MS
    assert leads.is_sure()
    clock.now_ms += 1
    assert not leads.is_sure(), "it has heard nobody in this leader epoch"


def test_INV_RTM5_who_is_not_in_sync_makes_nobody_sure_and_a_leader_alone_is() -> None:
    clock = ManualClock()
    leads = term(clock, 1, 2)
    clock.now_ms += SURE_MS + 1
    leads._heard_ms[THREE] = clock.now_ms
    assert not leads.is_sure(), "another one may have been elected, and THREE may be behind it"
    leads._heard_ms[TWO] = clock.now_ms
    assert leads.is_sure()
    assert term(clock, 1).is_sure()
