"""What members of a classic group are told of its generation. Not here: when (`group`), refusals (`membership`)."""

from region_broker.groups.classic.judgements import GroupFacts
from region_broker.groups.classic.membership import Member
from region_broker.groups.messages import JoinOutcome, SyncOutcome
from region_broker.groups.verdicts import GroupVerdict


def joined(
    group: GroupFacts,
    member: Member,
    *,
    tell_members: bool = False,
    leader: str | None = None,
    skip: bool = False,
) -> JoinOutcome:
    """Return the answer to a join: `tell_members` to the leader; `skip` its assignment (KIP-814)."""
    roster = group.roster
    members = roster.told_to_leader(group.protocol_name) if tell_members or skip else ()
    return JoinOutcome(
        verdict=GroupVerdict.OK,
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader if leader is not None else (roster.leader or ""),
        members=members,
        skip_assignment=skip,
    )


def assigned(group: GroupFacts, member: Member) -> SyncOutcome:
    """Return the answer to a sync."""
    return SyncOutcome(
        verdict=GroupVerdict.OK,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
