"""The commands that change users' keys, ACLs, quotas and tokens in the metadata (`security.access`).

INV-ACC1  a change is refused if what it was made from is there no more: who removes by a filter removes what it has seen
INV-ACC2  a mirror takes the primary's whole, and only one that differs
Not here: who may ask for a change, and where it is refused because this region does not act (`region.access`).
"""

from typing import TypeAlias

import msgspec

from region_broker.controller.refusals import CommandRefused
from region_broker.security.access import (
    BYTES_MAX,
    Access,
    AccessChange,
    AccessRefused,
    changed,
    check_room,
)

ACCESS_CHANGED = "access-changed"
ACCESS_TOO_LARGE = "access-too-large"


class ChangeAccess(msgspec.Struct, frozen=True, tag=True):
    """Put rows and remove others; refused if the number of what is there is not `expected` any more (None: whatever it is)."""

    change: AccessChange
    expected: int | None = None


class FollowAccess(msgspec.Struct, frozen=True, tag=True):
    """Be as the primary region is. For a mirror only."""

    access: Access


AccessCommand: TypeAlias = ChangeAccess | FollowAccess


def judge_room(access: Access, change: AccessChange) -> None:
    """Raise `CommandRefused` for what no client may ask for, though a log may hold it (INV-SAC5)."""
    try:
        check_room(access, change)
    except AccessRefused as error:
        raise CommandRefused(ACCESS_TOO_LARGE, str(error)) from error


def change_access(access: Access, command: AccessCommand) -> Access:
    """Return what `command` makes of `access`; raises `CommandRefused`."""
    if isinstance(command, FollowAccess):
        return _followed(access, command.access)
    if command.expected is not None and command.expected != access.number:
        raise CommandRefused(
            ACCESS_CHANGED, "users, ACLs, quotas or tokens changed meanwhile: ask again"
        )
    try:
        return changed(access, command.change)
    except AccessRefused as error:
        raise CommandRefused(ACCESS_TOO_LARGE, str(error)) from error


def _followed(ours: Access, theirs: Access) -> Access:
    """Return theirs; what is equal stays ours, so that nobody who follows it looks at it again (INV-SAC4)."""
    same = {
        kind: getattr(ours, kind)
        for kind in BYTES_MAX
        if getattr(ours, kind) == getattr(theirs, kind)
    }
    return msgspec.structs.replace(theirs, **same)
