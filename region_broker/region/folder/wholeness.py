"""Whether the parts of a data folder are all there, and of one folder (T36).

Identity, metadata, failover journal and logs are made once, by the first start; what is missing later was lost, and a
folder that lost one of them is not opened: what is left could be taken for all there ever was. A part of another
folder, or an older one than the others, is no part of this folder.

Not here: single logs (`log.indexes.log_manifest`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from geo_replicator.failover_events import Event, folder_named
from geo_replicator.folder_life import FolderIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is there at a start; `journal` is None without a file, `metadata_starts` what the metadata has counted."""

    metadata: bool
    metadata_history: bool
    metadata_starts: int
    journal: Sequence[Event] | None
    logs: bool


def what_is_wrong(folder: Path, identity: FolderIdentity | None, parts: Parts) -> str | None:
    """Return why a folder with these parts may not be opened, and what to do; None where it may."""
    if identity is None:
        problem = _wrong_without_identity(parts)
    else:
        problem = _wrong_with_identity(identity, parts)
    if problem is None:
        return None
    return (
        f"{folder} is not whole: {problem}. Give the whole folder back as it was when the node stopped, all parts from"
        " one moment; or empty it: the node then joins the region that acts, and copies all from there (if none acts:"
        " tidemark region failover --to a region that has history)"
    )


def _wrong_without_identity(parts: Parts) -> str | None:
    if parts.journal and folder_named(parts.journal):
        return "identity is missing, and the failover journal says that there was one"
    if parts.metadata_history and parts.journal is None:
        return "metadata.db is there, identity and failover.journal are missing"
    if not parts.metadata_history and (parts.journal or parts.logs):
        there = "failover.journal" if parts.journal else "logs"
        return f"{there} is there, identity and metadata.db are missing"
    return None


def _wrong_with_identity(identity: FolderIdentity, parts: Parts) -> str | None:
    if identity.whole:
        present = {
            "metadata.db": parts.metadata,
            "failover.journal": parts.journal is not None,
            "logs": parts.logs,
        }
        missing = [name for name, is_there in present.items() if not is_there]
        if missing:
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        if parts.metadata_starts < identity.starts_counted:
            return "metadata.db is older than the rest of it"
    named = folder_named(parts.journal or ())
    if named and named != identity.folder_id:
        return "failover.journal is that of another folder"
    return None
