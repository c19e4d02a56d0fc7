"""When a node of several believes that what its disk had lost was copied again."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.controller.cluster_image import Leadership
from region_broker.node import lost_logs
from region_broker.node.lost_logs import LostLogs, LostLogsParts
from region_broker.region.mending.copying_anew import AskLogHeld, LogHeld
from region_broker.region.peers.protocol import PeerRefused
from tests.fixtures.cluster_images import born, member
from tests.fixtures.node_logs import TOPIC_ID, ManualClock
from tests.fixtures.scrubbing import BATCHES, filled

ONE, TWO, THREE = map(member, (1, 2, 3))


class Played:
    """Node 1, whose only log is on its list of lost ones; node 2 leads and says what it is to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.some = filled()
        self.some.table._made.note_lost(TOPIC_ID, 0)
        self.copied_under = 9
        self.ends: list[int | PeerRefused] = [BATCHES]
        self.asked = 0
        self.image = born()
        self.side = LostLogs(
            LostLogsParts(
                me=ONE, damaged=frozenset, metadata=cast("Any", self), partitions=self.some.table, clock=ManualClock(),
                line=cast("Any", SimpleNamespace()), copies=self._copies,
            )
        )  # fmt: skip
        monkeypatch.setattr(lost_logs, "asked", self._answer)
        self.sees(ONE, TWO)

    def _copies(self, key: LogKey, leader_epoch: LeaderEpoch) -> bool:
        assert key == self.some.partition.key
        return leader_epoch == self.copied_under

    async def _answer(
        self, _line: object, leader: Member, ask: AskLogHeld, _kind: object
    ) -> tuple[LogHeld, bytes]:
        assert (leader, ask.is_running_here) == (TWO, True)
        self.asked += 1
        end = self.ends.pop(0)
        if isinstance(end, PeerRefused):
            raise end
        return LogHeld(log_start_offset=0, high_watermark=0, log_end_offset=end), b""

    def sees(self, *in_sync: Member, epoch: int = 9, leader: Member | None = TWO) -> None:
        leads = Leadership(
            leader=leader, leader_epoch=LeaderEpoch(epoch), in_sync=in_sync, version=4
        )
        self.image = msgspec.structs.replace(born(), leadership=leads)

    async def is_lost(self) -> bool:
        await self.side.look()
        return bool(self.some.table.lost())


async def test_INV_NRP5_a_node_that_is_in_sync_and_has_what_the_leader_has_lost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Played(monkeypatch)
    assert not await node.is_lost()
    assert not await node.is_lost()
    assert node.asked == 1


@pytest.mark.parametrize(
    "end", [BATCHES + 1, -1, PeerRefused("not-held", "it is damaged there, too")]
)
async def test_INV_NRP5_the_metadata_alone_do_not_say_so(
    monkeypatch: pytest.MonkeyPatch, end: int | PeerRefused
) -> None:
    """The leader has more, is of an older version, or has not all of it either."""
    node = Played(monkeypatch)
    node.ends = [end, end]
    assert await node.is_lost()
    node.side.take_image(node.image)
    assert await node.is_lost()


async def test_INV_NRP5_what_was_not_compared_in_this_session_is_not_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Played(monkeypatch)
    node.copied_under = 8
    assert await node.is_lost()
    node.copied_under = 9
    node.some.partition.log.content.failed = "its disk has failed"
    assert await node.is_lost()


async def test_INV_NRP5_another_leader_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Played(monkeypatch)
    node.sees(TWO, THREE)
    node.ends = [BATCHES, BATCHES + 1, BATCHES]
    assert await node.is_lost(), "it is not in sync"
    node.sees(ONE, TWO, epoch=10)
    node.copied_under = 10
    node.side.take_image(node.image)
    assert await node.is_lost()
    node.sees(ONE, TWO, epoch=11)
    node.copied_under = 11
    assert not await node.is_lost()
    assert node.asked == 3


async def test_INV_NRP3_it_is_taken_note_of_as_the_node_is_taken_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a moment later: if that leader is lost then, this node is not to stand back."""
    node = Played(monkeypatch)
    node.sees(TWO, THREE)
    assert await node.is_lost()
    node.sees(ONE, TWO, THREE)
    node.side.take_image(node.image)
    assert node.some.table.lost() == []
