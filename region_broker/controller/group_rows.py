"""The rows of a region's replica groups, the main one and those that are spread, and what they have in common (ADR 53).

INV-SPR2  who leads the main group by an election was in sync in every group, and so was each that is in sync after it: whoever is
          outside one of them may lack what was committed there
INV-SPR3  so no change of an in-sync set leaves nobody who is in sync in all of them

While leaders are not spread, the only row is the main group's. Not here: what changes them (`cluster_leadership`, `spread_leadership`).
"""

import msgspec

from region_broker.controller.cluster_image import MAIN_GROUP, Leadership
from region_broker.controller.leadership_rules import names
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.controller.refusals import CommandRefused


def groups_of(image: MetadataImage) -> dict[int, Leadership]:
    """Return the row of each replica group that there is, the main one first."""
    rows: dict[int, Leadership] = {} if image.leadership is None else {MAIN_GROUP: image.leadership}
    if image.spread is not None:
        rows |= dict(sorted(image.spread.groups.items()))
    return rows


def changed_row(row: Leadership, **values: object) -> Leadership:
    """Return the row with other values, and its next version."""
    return msgspec.structs.replace(row, version=row.version + 1, **values)


def with_row(image: MetadataImage, group: int, row: Leadership) -> MetadataImage:
    """Return the image with another row of a group that there is."""
    if group == MAIN_GROUP:
        return msgspec.structs.replace(image, leadership=row)
    spread = image.spread
    assert spread is not None, group
    assert group in spread.groups, group
    groups = {**spread.groups, group: row}
    return msgspec.structs.replace(image, spread=msgspec.structs.replace(spread, groups=groups))


def in_sync_in_all(image: MetadataImage) -> tuple[Member, ...]:
    """Return who is in sync in every group, sorted: each of them holds all that was committed (INV-SPR2)."""
    if image.leadership is None:
        return ()
    if image.spread is None:
        return image.leadership.in_sync
    sets = [set(row.in_sync) for row in groups_of(image).values()]
    return tuple(sorted(set.intersection(*sets)))


def is_waited_for(image: MetadataImage, member: Member) -> bool:
    """Return whether others would wait for the member, were it gone: it is in sync in a replica group, and not alone."""
    return any(member in row.in_sync and len(row.in_sync) > 1 for row in groups_of(image).values())


def where_not(image: MetadataImage, member: Member) -> str:
    """Return in which data groups the member is not in sync, to be read behind what it lacks; "" while leaders are not spread."""
    lacking = [
        "the main group" if number == MAIN_GROUP else f"data group {number}"
        for number, row in groups_of(image).items()
        if member not in row.in_sync
    ]
    return "" if image.spread is None or not lacking else f" in {', '.join(lacking)}"


def judge_common(changed: MetadataImage, before: MetadataImage) -> None:
    """Raise `CommandRefused` where nobody would be in sync in every group of `changed` (INV-SPR3)."""
    if changed.spread is None or in_sync_in_all(changed):
        return
    raise CommandRefused(
        "would-leave-nobody",
        f"only {names(in_sync_in_all(before))} is known to hold all that was committed in every group, and would not any more: nobody"
        " could lead this region then. Let it catch up, or lead the region (tidemark cluster move), which gathers the leaders",
    )
