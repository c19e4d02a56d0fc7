"""How many groups there are, so that clients cannot make them without end.

INV-GN1  a request makes a new group only while there are fewer than `group_count_max`; a known group is always served
INV-GN2  groups are counted one by one at most once a second, and only where the limit seems to be reached: a group that
         went away (its members left and it has no offsets, or an administrator deleted it) makes room again
INV-GN3  the id of a new group has GROUP_ID_BYTES_MAX: so few groups with ids of 32 kB would take all memory, and no list of them could be answered
In between, what was let in is added to the last count, which may be too high, never too low.
Not here: when groups go away (`coordinator.expire_offsets`, KIP-211).
"""

import logging
from collections.abc import Sequence
from typing import Final

from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import Shard
from region_broker.limits import GROUP_ID_BYTES_MAX

_COUNT_AGAIN_MS: Final = 1_000
_UNKNOWN: Final = 1 << 62
"""A count that is above every limit: what there is has to be counted first."""
_log: Final = logging.getLogger("tidemark.groups")


class GroupCensus:
    """Lets new groups in, over all shards."""

    def __init__(self, shards: Sequence[Shard], clock: Clock, settings: GroupSettings) -> None:
        """Nothing is counted yet. The limit in `settings` may change meanwhile."""
        self._shards = shards
        self._clock = clock
        self._settings = settings
        self._count = _UNKNOWN
        self._count_again_ms = 0
        self._said = SaidSeldom(clock)

    def admits(self, shard: Shard, group_id: str) -> bool:
        """Return whether a request may go on with this group, and make it if there is none."""
        if shard.knows(group_id):
            return True
        if len(group_id.encode()) > GROUP_ID_BYTES_MAX:  # INV-GN3
            self._refuse(group_id, f"its id has more than {GROUP_ID_BYTES_MAX} bytes")
            return False
        if self._count >= self._settings.group_count_max and not self._has_room():
            self._refuse(
                group_id,
                f"there are as many groups as group_count_max = {self._settings.group_count_max} allows. Groups without members go when"
                " their offsets are over seven days old; `kafka-consumer-groups.sh --delete` deletes one at once",
            )
            return False
        self._count += 1
        return True

    def _has_room(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._count_again_ms:
            return False
        self._count_again_ms = now_ms + _COUNT_AGAIN_MS
        self._count = sum(shard.group_count() for shard in self._shards)
        return self._count < self._settings.group_count_max

    def _refuse(self, group_id: str, why: str) -> None:
        if self._said.is_due():
            _log.warning(
                "the new group %.200r is refused (INVALID_GROUP_ID): %s. Said once a minute", group_id, why
            )  # fmt: skip
