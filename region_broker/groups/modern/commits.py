"""Who may commit offsets of a group of the new protocol, and who may ask for them (C42).

INV-NM1  a member commits at its own epoch only; nobody commits for a group that has members
After Kafka's ConsumerGroup.validateOffsetCommit and validateOffsetFetch.
Not here: the offsets themselves (`groups.offset_service`).
"""

from region_broker.groups.messages import CommitRequest
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.verdicts import GroupVerdict


def judge_commit(
    group: ConsumerGroup, request: CommitRequest, *, transactional: bool
) -> GroupVerdict:
    """Judge an offset commit; `request.generation` is the member's epoch."""
    member_id = request.who.member_id
    if request.generation < 0:
        anonymous = not member_id and request.who.instance_id is None
        if not group.metadata or (transactional and anonymous):
            return GroupVerdict.OK
    if member_id not in group.metadata:
        return GroupVerdict.UNKNOWN_MEMBER
    classic = group.uses_classic(member_id)
    if not transactional and not classic and not request.knows_epochs:
        return GroupVerdict.UNSUPPORTED_VERSION
    if request.generation == group.current_of(member_id).member_epoch:
        return GroupVerdict.OK
    if classic or transactional:
        return GroupVerdict.ILLEGAL_GENERATION
    return GroupVerdict.STALE_MEMBER_EPOCH


def judge_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> GroupVerdict:
    """Judge who asks for offsets; an administrator says neither member nor epoch."""
    if member_id is None and member_epoch < 0:
        return GroupVerdict.OK
    if member_id is None or member_id not in group.metadata:
        return GroupVerdict.UNKNOWN_MEMBER
    if member_epoch == group.current_of(member_id).member_epoch:
        return GroupVerdict.OK
    if group.uses_classic(member_id):
        return GroupVerdict.ILLEGAL_GENERATION
    return GroupVerdict.STALE_MEMBER_EPOCH
