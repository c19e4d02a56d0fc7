"""Whose a data folder is, which history it copies, and the chain of its starts (T32, T33, T36). Pure.

INV-FX1  a folder has one history for life: the one born in it, or the one that it joined; neither is ever changed
INV-FX2  each start draws an incarnation at random and links it to the one before: no clock orders them
INV-FX3  a chain keeps its newest `INCARNATIONS_KEPT` ids, how many there were, and a hash over all of them

Not here: where it is kept (`adapters.birth.identity_file`), what a region without history does (`failover`).
"""

from enum import Enum
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid5

import msgspec

INCARNATIONS_KEPT: Final = 64
_BIRTHS_OF_OLDER_FOLDERS: Final = UUID("b0a5c5f6-5d5c-4c8e-9e8c-3d1a6f0e7a10")


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """The one birth of a cluster: its id, at which region it was, and the first region epoch (T32)."""

    birth_id: str
    region: str
    region_epoch: int
    wall_ms: int


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The starts of one folder, newest last (INV-FX3)."""

    newest: tuple[str, ...] = ()
    count: int = 0
    digest: str = ""

    @property
    def last(self) -> str:
        """Return the present incarnation, empty before the first start."""
        return self.newest[-1] if self.newest else ""

    def with_start(self, incarnation: str) -> "Chain":
        """Return the chain with one more start (INV-FX2)."""
        return Chain(
            newest=(*self.newest, incarnation)[-INCARNATIONS_KEPT:],
            count=self.count + 1,
            digest=sha256(f"{self.digest}/{incarnation}".encode()).hexdigest(),
        )


class FolderIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a data folder says of itself. `born` or `joined` is its history, neither means that it has none."""

    cluster_id: str
    region: str
    node_id: int
    folder_id: str
    born: Birth | None = None
    joined: Birth | None = None
    chain: Chain = Chain()
    whole: bool = False
    """Whether all parts of the folder were made: what is missing from then on was lost."""
    starts_counted: int = 0
    """What the metadata had counted at the start before this one, at least: a lower count is an older metadata."""

    @property
    def history(self) -> Birth | None:
        """Return the history that this folder holds or copies, None for a folder without (INV-FX1)."""
        return self.born or self.joined


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells of its folder when it greets; without `history` it may do nothing but ask."""

    folder_id: str = ""
    history: Birth | None = None
    incarnations: tuple[str, ...] = ()
    incarnation_count: int = 0

    @classmethod
    def of(cls, identity: FolderIdentity) -> "Shown":
        """Return what the folder of `identity` tells."""
        return cls(
            folder_id=identity.folder_id,
            history=identity.history,
            incarnations=identity.chain.newest,
            incarnation_count=identity.chain.count,
        )


class BirthVerdict(Enum):
    """Whether two nodes hold, or may come to hold, one history."""

    SAME = "the same history, or one side's version does not tell"
    NO_HISTORY = "one side has no history yet"
    OTHER = "histories of two births"


def judge_births(ours: Shown | None, theirs: Shown | None) -> BirthVerdict:
    """Compare what two nodes show; None stands for a version that shows nothing."""
    if ours is None or theirs is None:
        return BirthVerdict.SAME
    if ours.history is None or theirs.history is None:
        return BirthVerdict.NO_HISTORY
    if ours.history.birth_id != theirs.history.birth_id:
        return BirthVerdict.OTHER
    return BirthVerdict.SAME


def birth_of_older_folder(cluster_id: str, region: str, region_epoch: int) -> Birth:
    """Return the birth of a cluster whose folders were written before births were kept: each region derives the same."""
    birth_id = uuid5(_BIRTHS_OF_OLDER_FOLDERS, cluster_id).hex
    return Birth(birth_id=birth_id, region=region, region_epoch=region_epoch, wall_ms=0)
