"""Users, ACLs, quotas and tokens of a mirror: the primary's, taken over with its topics (INV-SAC1).

They come with the registry of topics when a session begins, and after each change with the next answer that has records, read before these
count: a tidemark is among them, so what a mirror shows, and lands on after a failover, is under the access of that tidemark or a newer one.
A mirror that is cut off goes on with what it has.
Not here: what they mean (`security`), topics (`mirror_topics`).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from geo_replicator.ports import LinkFailed
from idempotency.identity import RegionEpoch
from region_broker.controller.access_commands import FollowAccess
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.refusals import COMMAND_TOO_LARGE
from region_broker.ports.unbroken import to_its_end
from region_broker.region.mirror.lost_access import named, undone
from region_broker.region.ports import MetadataSide
from region_broker.security.access import ACCESS_BYTES_MAX, Access, bytes_in
from region_broker.security.quotas.entities import QuotaRefused, check_followed
from region_broker.wire.cooperative_yield import CooperativeYield

_log: Final = logging.getLogger("tidemark.access")
_TOO_LARGE: Final = (
    "the primary's users, ACLs, quotas and tokens have {} bytes, of which an older version took more, and a region of several nodes takes over"
    " some {}: nothing is shown that is under them. Remove some at the primary"
)
TakeAccess: TypeAlias = Callable[[Access, int], Awaitable[None]]
"""Takes what a region says, and of which region epoch's history that is known to be, -1: not told."""


async def no_access_taken(_access: Access, _access_epoch: int) -> None:
    """Whoever only looks takes nothing over."""


class MirrorAccess:
    """Takes over what the primary says; raises `LinkFailed` where it cannot be kept here."""

    def __init__(self, metadata: MetadataSide, *, of_older_epoch: bool = False) -> None:
        """Keep it in `metadata`; `of_older_epoch`: what is there is known of an older region epoch than the primary's."""
        self._metadata = metadata
        self._of_older_epoch = of_older_epoch
        self._told = ""
        """What was told last to be undone: a session that could not take it over is followed by another one within seconds."""

    async def take(self, access: Access, _access_epoch: int = -1) -> None:
        """Be as the primary is; nothing is written where this region is so already."""
        ours = self._metadata.image.access
        if access == ours:
            self._of_older_epoch = False
            return
        await _check_quotas(access)
        if self._of_older_epoch:
            self._tell(named(undone(ours, access)))
        await to_its_end(self._take(access))
        self._of_older_epoch = False
        _log.info(
            "users, ACLs, quotas and tokens are as at the primary now: %s", _told(ours, access)
        )

    def _tell(self, lost: str) -> None:
        """Tell it before the command, and no second time where that fails.

        1. The outcome of the command is not heard, in an election of the region, say. 2. It takes effect. 3. Whoever looks next finds all as
        at the primary.
        """
        if lost in {"", self._told}:
            return
        self._told = lost
        _log.warning(
            "users, ACLs, quotas and tokens become as at the region that has taken over (INV-MAC1). These are otherwise here, as they were"
            " changed here and not heard of there, or changed there since. Look at each, and order anew what is to count again: %s",
            lost,
        )

    async def _take(self, access: Access) -> None:
        try:
            await self._metadata.apply(FollowAccess(access))
        except (CommandRefused, MetadataUnwritable) as error:
            if isinstance(error, CommandRefused) and error.code == COMMAND_TOO_LARGE:
                raise LinkFailed(_TOO_LARGE.format(bytes_in(access), ACCESS_BYTES_MAX)) from error
            is_of_disk = isinstance(error, MetadataUnwritable)
            if is_of_disk and self._metadata.image.leadership is None:
                raise  # of the only node: a start shows what became of it
            raise LinkFailed(
                f"the primary's users and ACLs cannot be kept here, so nothing is shown that is under them: {error}"
            ) from error


class NewerAccess:
    """Takes over what a donor says where it is the newer of both: a `TakeAccess` (INV-QM3).

    The number counts the changes of one history: of two the one of the newer region epoch counts.
    """

    def __init__(
        self, metadata: MetadataSide, access_epoch: int, region_epoch: RegionEpoch
    ) -> None:
        """Begin with what is here, of the history of `access_epoch`; `region_epoch`: that a donor which does not tell is believed to have followed."""
        self._metadata = metadata
        self._access = MirrorAccess(metadata)
        self._access_epoch = access_epoch
        self._region_epoch = region_epoch

    async def __call__(self, access: Access, access_epoch: int) -> None:
        """Be as the donor is, or stay."""
        theirs = access_epoch if access_epoch >= 0 else self._region_epoch
        ours = self._metadata.image.access.number
        if (theirs, access.number) > (self._access_epoch, ours):
            await self._access.take(access)
            self._access_epoch = theirs


async def _check_quotas(access: Access) -> None:
    """Raise `LinkFailed` where the primary says a quota that no region can keep, and read at its next start (INV-SQE3)."""
    yielding = CooperativeYield()
    for quota in access.quotas:
        await yielding.row()
        try:
            check_followed(quota)
        except QuotaRefused as error:
            raise LinkFailed(f"the primary sent a quota that is none: {error}") from error


def _told(ours: Access, theirs: Access) -> str:
    """Return how many rows came and went: a region that returns loses what it had changed, and nobody else had heard of."""
    kinds = (
        ("ACLs", {*ours.acls}, {*theirs.acls}),
        ("keys", {*ours.keys}, {*theirs.keys}),
        ("quotas", {row.entity for row in ours.quotas}, {row.entity for row in theirs.quotas}),
        ("tokens", {*ours.tokens}, {*theirs.tokens}),
    )
    return ", ".join(f"{kind} +{len(new - old)} -{len(old - new)}" for kind, old, new in kinds)
