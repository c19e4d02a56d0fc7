"""Values of the new group protocol, each beside the bytes that Kafka 4.1.1's own classes write of it."""

from uuid import UUID

from region_broker.groups.modern.records import (
    ClassicMember,
    Current,
    GroupEpoch,
    MemberMetadata,
    ModernValue,
    PartitionMetadata,
    ResolvedRegex,
    Target,
    TargetEpoch,
    TopicShape,
)
from region_broker.groups.modern.states import MemberState
from region_broker.groups.records import ModernKind

_T1, _T2 = UUID(int=1), UUID(int=2)
_PARTS = {_T1: frozenset((0, 300)), _T2: frozenset((7,))}
_PARTS_HEX = f"03{_T1.hex}03000000000000012c00{_T2.hex}020000000700"

MODERN_VALUES: dict[ModernKind, tuple[ModernValue, bytes]] = {
    ModernKind.GROUP_EPOCH: (GroupEpoch(9), bytes.fromhex("00000000000900")),
    ModernKind.TARGET_EPOCH: (TargetEpoch(3), bytes.fromhex("00000000000300")),
    ModernKind.PARTITION_METADATA: (
        PartitionMetadata({"ab": TopicShape(_T1, 5)}),
        bytes.fromhex(f"000002{_T1.hex}03616200000005010000"),
    ),
    ModernKind.MEMBER: (
        MemberMetadata(
            instance_id="i",
            client_id="c",
            client_host="/h",
            topic_names=("a", "b"),
            topic_regex="r",
            rebalance_timeout_ms=5,
            classic=ClassicMember(7, (("range", b"\1\2"),)),
        ),
        bytes.fromhex(
            "00000269000263032f680302610262027200000005000100110100000007020672616e67650301020000"
        ),
    ),
    ModernKind.TARGET: (Target(_PARTS), bytes.fromhex(f"0000{_PARTS_HEX}00")),
    ModernKind.CURRENT: (
        Current(
            member_epoch=4,
            previous_epoch=-1,
            state=MemberState.UNRELEASED_PARTITIONS,
            assigned=_PARTS,
            revoking={},
        ),
        bytes.fromhex(f"000000000004ffffffff02{_PARTS_HEX}0100"),
    ),
    ModernKind.REGEX: (
        ResolvedRegex(("a",), 2, 3),
        bytes.fromhex("00000202610000000000000002000000000000000300"),
    ),
}
