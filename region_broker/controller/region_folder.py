"""What a region of several nodes knows of itself, in place of the files of one folder: a part of the metadata image (ADR 48).

INV-MRF1  it is changed by the leader alone, under its own leader epoch, which each command names
INV-MRF2  the state of the failover machine is replaced by whoever knows the one before: `failover_number` counts the events that
          led to it, and a command names the number that it follows
INV-MRF3  each election adds a start to the chain: who compares two leaders of a region sees which of them came later (T36)
INV-MRF4  it has one history for life (INV-FX1)

Not here: what the state means (`geo_replicator.failover`); it is kept as its driver encodes it.
"""

from typing import Final, TypeAlias, assert_never
from uuid import UUID, uuid5

import msgspec

from geo_replicator.folder_life import Birth, Chain, Shown
from idempotency.identity import LeaderEpoch
from region_broker.controller.refusals import CommandRefused

_NO_EVENTS: Final = 0


class RegionFolder(msgspec.Struct, frozen=True, kw_only=True):
    """`folder_id`: of the folder that founded the region, and whose chain this one continues. `met`: as in `FolderIdentity`.

    `failover`: the state of the failover machine, empty before it is known; it came from `failover_number` events.
    """

    folder_id: str
    born: Birth | None = None
    joined: Birth | None = None
    chain: Chain = Chain()
    met: dict[str, Shown] = {}
    failover_number: int = _NO_EVENTS
    failover: bytes = b""

    @property
    def history(self) -> Birth | None:
        """Return the history that this region holds or copies, None without one."""
        return self.born or self.joined


class BeginRegionFolder(msgspec.Struct, frozen=True, tag=True):
    """Take over what the folder of the first leader says; nothing changes where that was done."""

    leader_epoch: LeaderEpoch
    folder: RegionFolder


class RecordFailover(msgspec.Struct, frozen=True, tag=True):
    """Replace the state of the failover machine; refused unless `follows` events led to the one that is there."""

    leader_epoch: LeaderEpoch
    follows: int
    failover: bytes


class JoinHistory(msgspec.Struct, frozen=True, tag=True):
    """The region copies `history` from now on; nothing changes where it does (T32)."""

    leader_epoch: LeaderEpoch
    history: Birth


class NoteMet(msgspec.Struct, frozen=True, tag=True):
    """Remember the known start of another region (T36)."""

    leader_epoch: LeaderEpoch
    region: str
    shown: Shown


RegionFolderCommand: TypeAlias = BeginRegionFolder | RecordFailover | JoinHistory | NoteMet


def change_region_folder(
    folder: RegionFolder | None, command: RegionFolderCommand
) -> RegionFolder | None:
    """Return the region's folder after `command`; raises `CommandRefused`."""
    if isinstance(command, BeginRegionFolder):
        return folder or command.folder
    if folder is None:
        raise CommandRefused(
            "region-not-begun",
            "this region does not know its history yet: its first leader writes it down when it runs",
        )
    match command:
        case RecordFailover():
            return _recorded(folder, command)
        case JoinHistory(history=history):
            return _joined(folder, history)
        case NoteMet(region=region, shown=shown):
            return msgspec.structs.replace(folder, met={**folder.met, region: shown})
        case _:
            assert_never(command)


def with_election(
    folder: RegionFolder | None, life: UUID, leader_epoch: LeaderEpoch
) -> RegionFolder | None:
    """Return it with one more start: that of the process with `life`, elected under `leader_epoch` (INV-MRF3)."""
    if folder is None:
        return None
    started = folder.chain.with_start(uuid5(life, str(leader_epoch)).hex)
    return msgspec.structs.replace(folder, chain=started)


def _recorded(folder: RegionFolder, command: RecordFailover) -> RegionFolder:
    if folder.failover_number != command.follows:  # INV-MRF2
        raise CommandRefused(
            "failover-moved-on",
            f"the failover of this region has come to step {folder.failover_number}, not {command.follows}: look again",
        )
    return msgspec.structs.replace(
        folder, failover=command.failover, failover_number=folder.failover_number + 1
    )


def _joined(folder: RegionFolder, history: Birth) -> RegionFolder:
    known = folder.history
    if known is None:
        return msgspec.structs.replace(folder, joined=history)
    if known.birth_id != history.birth_id:  # INV-MRF4
        raise CommandRefused(
            "other-history",
            f"this region has the history born in region {known.region} ({known.birth_id}), and is to join {history.birth_id}:"
            " empty the folders of all its nodes, and start them again",
        )
    return folder
