"""What a controller is told, and what it asks of its driver.

The driver's duties stand in the package docstring.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from region_broker.controller.cluster_commands import (
    DrainNode,
    ElectGroupLeader,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member, Term


@dataclass(frozen=True, slots=True)
class Leads:
    """This member leads the quorum in `term`, and has applied an entry of it: `image`."""

    term: Term
    image: MetadataImage


@dataclass(frozen=True, slots=True)
class LeadsNoMore:
    """Another member leads the quorum, or nobody does."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A process of a member is alive and reaches this one. `opens_logs`: it is still about to open its logs."""

    member: Member
    life: UUID
    opens_logs: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A connection of that process was reset."""

    member: Member
    life: UUID


@dataclass(frozen=True, slots=True)
class DamageKnown:
    """These members, and no others, have said that something of their disks is damaged and not mended."""

    members: frozenset[Member]


@dataclass(frozen=True, slots=True)
class ImageChanged:
    """This is applied now."""

    image: MetadataImage


class Outcome(Enum):
    """What became of a proposal."""

    DONE = "done"
    REFUSED = "it changed nothing, and never will"
    UNKNOWN = "it may have been applied, or be applied yet, or not"


@dataclass(frozen=True, slots=True)
class CommandSettled:
    """The proposal `number` came to this. `text`: why, where it was not done."""

    number: int
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True, slots=True)
class PreferredAsked:
    """An operator wants this node to lead; None: of those that may, the one with the lowest node id."""

    ticket: int
    preferred_node_id: int | None


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """A node is to be stopped: it is answered when it leads nothing, or nobody else can."""

    ticket: int
    node_id: int


@dataclass(frozen=True, slots=True)
class UncleanAsked:
    """An operator wants `member` to lead although it is not in sync: what only others hold is lost."""

    ticket: int
    member: Member


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed, nothing else."""


Order: TypeAlias = PreferredAsked | DrainAsked | UncleanAsked
Event: TypeAlias = (
    Leads
    | LeadsNoMore
    | Heard
    | Lost
    | DamageKnown
    | ImageChanged
    | CommandSettled
    | PreferredAsked
    | DrainAsked
    | UncleanAsked
    | Ticked
)
ControllerCommand: TypeAlias = (
    FenceNode | UnfenceNode | DrainNode | ElectLeader | ElectUnclean | ElectGroupLeader
)


@dataclass(frozen=True, slots=True)
class Propose:
    """Have the quorum apply `command`, while this member leads it in `term`; `CommandSettled` names `number`."""

    number: int
    term: Term
    command: ControllerCommand


@dataclass(frozen=True, slots=True)
class Offline:
    """Nobody can lead the logs of the region, or of a data group: one of `awaited` must come back. Say it loudly."""

    awaited: tuple[Member, ...]
    why: str
    group: int = MAIN_GROUP


@dataclass(frozen=True, slots=True)
class Online:
    """What `Offline` said is over: this member leads, in that group; in the main one also where the spread has ended."""

    leader: Member
    group: int = MAIN_GROUP


@dataclass(frozen=True, slots=True)
class DamagedElected:
    """Nobody else can lead but this member, which has said that it has damage. Say it loudly."""

    leader: Member


@dataclass(frozen=True, slots=True)
class FolderReplaced:
    """A node came back with another data folder: what only `former` held is not there. Say it loudly."""

    former: Member
    present: Member


@dataclass(frozen=True, slots=True)
class OrderAnswered:
    """The order `ticket` is settled. `text`: why, where it was not done."""

    ticket: int
    outcome: Outcome
    text: str = ""


Effect: TypeAlias = Propose | Offline | Online | DamagedElected | FolderReplaced | OrderAnswered
