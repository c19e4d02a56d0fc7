"""What of users, ACLs, quotas and tokens here the primary of a newer region epoch does not have, by name.

INV-MAC1  a region that returns tells what of its users, ACLs, quotas and tokens is undone by that, by name, before it is, and once, however often
          that is tried: no quarantine keeps it, `tidemark region losses` lists records alone, and nobody can tell any more afterwards
Not here: taking over what the primary has (`mirror_access`).
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

from region_broker.controller.audited_commands import access_details
from region_broker.security.access import Access, AccessChange, Quota

_NAMED_MAX: Final = 200
"""Of each kind: it is one line of the log."""
_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")


def undone(ours: Access, theirs: Access) -> AccessChange:
    """Return the change after which what is theirs would be ours again."""
    keys_put, keys_removed = _differing(
        {(row.user, row.mechanism): row for row in ours.keys},
        {(row.user, row.mechanism): row for row in theirs.keys},
    )
    tokens_put, tokens_removed = _differing(ours.tokens_by_id, theirs.tokens_by_id)
    quotas_put, quotas_removed = _differing(
        {row.entity: row for row in ours.quotas}, {row.entity: row for row in theirs.quotas}
    )
    acls_added, acls_removed = _differing(
        dict.fromkeys(ours.acls, True), dict.fromkeys(theirs.acls, True)
    )
    return AccessChange(
        acls_added=tuple(acls_added),
        acls_removed=tuple(acls_removed),
        keys_put=tuple(keys_put.values()),
        keys_removed=tuple(keys_removed),
        quotas_put=(*quotas_put.values(), *(Quota(entity, {}) for entity in quotas_removed)),
        tokens_put=tuple(tokens_put.values()),
        tokens_removed=tuple(tokens_removed),
    )


def named(change: AccessChange) -> str:
    """Return what a change is, by name, empty if it changes nothing; without anything that somebody could log in with."""
    return "; ".join(f"{what}: {_listed(rows)}" for what, rows in access_details(change).items())


def _differing(
    ours: Mapping[_Key, _Row], theirs: Mapping[_Key, _Row]
) -> tuple[dict[_Key, _Row], list[_Key]]:
    """Return what is to be put to be as ours, and what is to be removed."""
    put = {key: row for key, row in ours.items() if key not in theirs or theirs[key] != row}
    return put, [key for key in theirs if key not in ours]


def _listed(rows: object) -> str:
    names = [str(row) for row in rows] if isinstance(rows, Iterable) else [str(rows)]
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f", and {more} more" if more > 0 else "")
