"""Whose a data folder is, which history it copies, and the chain of its starts (T32, T33, T36). Pure.

INV-FX1  a folder has one history for life: the one born in it, or the one that it joined; neither is ever changed
INV-FX3  a chain keeps its newest `INCARNATIONS_KEPT` ids, how many there were, and a hash over all of them
Each start draws an incarnation at random and links it to the one before: no clock orders them.

INV-FX4  a start that speaks again after a later heard one of its region has spoken is alive: two nodes run as that region, unless
         the one was elected after the other
In a region of several nodes a start is an election by their quorum, so the one before it has ended, whatever it says still.

Not here: where it is kept (`region.folder.identity_file`), which of two goes on (`known_lives`), what a region without history does (`failover`).
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid5

import msgspec

from idempotency.identity import RegionEpoch

INCARNATIONS_KEPT: Final = 64
TWICE_MS: Final = 15_000
"""How long after its last word a start of another region counts as one that runs."""
LATE_MS: Final = 1_000
"""How long what a process said before its end may be on its way."""
LIVES_HEARD_MAX: Final = 8
_BIRTHS_OF_OLDER_FOLDERS: Final = UUID("b0a5c5f6-5d5c-4c8e-9e8c-3d1a6f0e7a10")


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """The one birth of a cluster: its id, at which region it was, and the first region epoch (T32)."""

    birth_id: str
    region: str
    region_epoch: RegionEpoch
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
        """Return the chain with one more start."""
        kept = min(self.count, INCARNATIONS_KEPT)
        assert len(self.newest) == kept, f"INV-FX3: {len(self.newest)} of {self.count} starts"
        assert incarnation not in self.newest, f"INV-FX3: {incarnation} was drawn before"
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
    founds: bool = False
    """Whether this folder began the quorum of its region, which joins the history of another one."""
    elected: bool = False
    """Whether this speaks for a region of several nodes, whose starts are elections (ADR 48)."""
    outdated: bool = False
    """Whether the other nodes of its region know a later start of this folder: it is an older copy, and is not started again."""
    met: "dict[str, Shown]" = {}
    """The known start of each other region, as far as it is remembered (`known_lives`)."""

    @property
    def history(self) -> Birth | None:
        """Return the history that this folder holds or copies, None for a folder without (INV-FX1)."""
        assert self.born is None or self.joined is None, f"INV-FX1: {self.born}, {self.joined}"
        return self.born or self.joined


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells of its folder when it makes a handshake; without `history` it may do nothing but ask."""

    folder_id: str = ""
    history: Birth | None = None
    incarnations: tuple[str, ...] = ()
    incarnation_count: int = 0
    aside: bool = False
    """It was refused, and stands aside: it claims nothing."""
    elected: bool = False
    """Its starts are elections of a quorum."""

    @classmethod
    def of(cls, identity: FolderIdentity, *, aside: bool = False, elected: bool = False) -> "Shown":
        """Return what the folder of `identity` tells."""
        return cls(
            folder_id=identity.folder_id,
            history=identity.history,
            incarnations=identity.chain.newest,
            incarnation_count=identity.chain.count,
            aside=aside,
            elected=elected,
        )

    def starts_only(self) -> "Shown":
        """Return what tells whether this start continues another one."""
        return Shown(
            folder_id=self.folder_id,
            incarnations=self.incarnations,
            incarnation_count=self.incarnation_count,
        )

    def to_remember(self) -> "Shown":
        """Return what tells this start from others; of one that was elected, also which were before it."""
        return Shown(
            folder_id=self.folder_id,
            incarnations=self.incarnations if self.elected else self.incarnations[-1:],
            incarnation_count=self.incarnation_count,
            elected=self.elected,
        )


class LifeVerdict(Enum):
    """How one start of a region stands to another."""

    SAME = "the same start"
    LATER = "a later start of the same folder"
    PARTED = "an older copy of the folder, or one that has parted from it"
    OTHER_FOLDER = "another folder"


def judge_lives(first: Shown, second: Shown) -> LifeVerdict:
    """Say what `second` is to `first`; a start that fell out of a longer chain counts as continued."""
    if first.folder_id != second.folder_id:
        return LifeVerdict.OTHER_FOLDER
    if first.incarnations[-1:] == second.incarnations[-1:]:
        return LifeVerdict.SAME
    fell_out = second.incarnation_count - first.incarnation_count >= INCARNATIONS_KEPT
    if fell_out or first.incarnations[-1] in second.incarnations:
        return LifeVerdict.LATER
    return LifeVerdict.PARTED


def was_deposed(first: Shown, second: Shown) -> bool:
    """Return whether `second` was elected after `first`, which has ended by that (INV-KL7)."""
    return second.elected and judge_lives(first, second) is LifeVerdict.LATER


@dataclass(slots=True)
class _Heard:
    shown: Shown
    first_ms: int
    last_ms: int


class HeardLives:
    """The starts of other regions that were heard of late; times are monotonic ms."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._heard: dict[str, list[_Heard]] = {}

    def hear(self, region: str, shown: Shown | None, now_ms: int) -> None:
        """Note a handshake."""
        if shown is None or not shown.incarnations:
            return
        lives = self._running(region, now_ms)
        for life in lives:
            if judge_lives(life.shown, shown) is LifeVerdict.SAME:
                life.last_ms = now_ms
                break
        else:
            lives.append(_Heard(shown, now_ms, now_ms))
        self._heard[region] = lives[-LIVES_HEARD_MAX:]

    def twice(self, now_ms: int) -> dict[str, str]:
        """Return the regions that two nodes run as, with what is known of both (INV-FX4)."""
        return {
            region: text
            for region in self._heard
            if (text := _two_of(region, self._running(region, now_ms)))
        }

    def _running(self, region: str, now_ms: int) -> list[_Heard]:
        return [one for one in self._heard.get(region, ()) if now_ms - one.last_ms <= TWICE_MS]


def _two_of(region: str, lives: list[_Heard]) -> str:
    """Say which start is heard still after a later one came; empty where none is."""
    for at, first in enumerate(lives):
        for second in lives[at + 1 :]:
            if was_deposed(first.shown, second.shown) or was_deposed(second.shown, first.shown):
                continue
            if first.last_ms > second.first_ms + LATE_MS:
                verdict = judge_lives(first.shown, second.shown)
                return (
                    f"two nodes run as region {region}: start {first.shown.incarnations[-1]} (number"
                    f" {first.shown.incarnation_count} of folder {first.shown.folder_id}) is heard still, and since"
                    f" then start {second.shown.incarnations[-1]} (number {second.shown.incarnation_count} of folder"
                    f" {second.shown.folder_id}), {verdict.value}. Stop the one that is not region {region}'s own"
                )
    return ""


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


def birth_of_older_folder(cluster_id: str, region: str, region_epoch: RegionEpoch) -> Birth:
    """Return the birth of a cluster whose folders were written before births were kept: each region derives the same."""
    birth_id = uuid5(_BIRTHS_OF_OLDER_FOLDERS, cluster_id).hex
    return Birth(birth_id=birth_id, region=region, region_epoch=region_epoch, wall_ms=0)
