"""Folders on their way out: a deletion that was begun is finished, in this life or at the next start.

INV-RM2  what is about to be deleted is marked before the registry forgets it, so that a start can tell a deletion that
        was interrupted from a registry that has lost something: only what is marked goes
INV-RM3  a disk that fails here is nobody's error: what could not be put away now is left to a later try
INV-RM4  what could not be put away is marked as deleted, if the disk lets us: a start does not take it for the next topic of
        that id
INV-RM5  what held records is kept for a while before it is removed, if that is asked for (`kept_deletions`)
INV-RM6  what was kept long enough, or is not kept, is removed in a thread: of a large topic the file system takes seconds to let go, and
         nobody waits for that
INV-RM7  nothing of a deletion waits for the disk on the loop: from the step in which it is begun the folder is on its way out, and a thread
         marks it, says in the manifest that its logs are gone, syncs what is kept, and renames it. Who makes something of that name, who is
         about to let a region act, and who stops the node, has that done first
INV-RM8  a mark is taken back only if nobody else here asks for the same deletion: two may, and one of them be refused; and one that is settled by
         others meanwhile is marked anew
A folder is put away by a rename that is durable before anything in it is removed: a crash leaves it whole under its
name, or under one that no log has.

    <folder>/deleting                      the mark: an empty file, so that it finds room on a full disk
    <folder>/deleted                       it should be away, and could not be put away
    <folder>/deletion.json                 what is deleted, and why
    <folder>.kept, <folder>.1.kept         put away, to be removed later
    <folder>.deleted, <folder>.1.deleted   put away, to be removed
    <folder>.damaged, <folder>.1.damaged   a damaged log: for people, who remove it
    <folder>.uncut.damaged                 the same, which may hold what a takeover has made void, and is in no quarantine

Not here: what is to be deleted (`partitions.table`).
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from region_broker.log.recovery.kept_deletions import (
    KEPT_SUFFIX,
    NOTE_NAME,
    DeletionNote,
    KeptDeletions,
)
from region_broker.log.recovery.putting_away import (
    DELETED_NAME,
    PuttingAway,
    free_name,
    nothing,
    renamed,
)
from region_broker.ports.disk import Disk
from region_broker.ports.offload import Offload

OnGone = Callable[[], None]

logger: Final = logging.getLogger(__name__)

MARK_NAME: Final = "deleting"
DELETED_SUFFIX: Final = ".deleted"
ASIDE_SUFFIX: Final = ".damaged"
UNCUT_SUFFIX: Final = ".uncut" + ASIDE_SUFFIX
TOPIC_ID_CHARS: Final = 32
"""The folder of a topic is called by its id, in hexadecimal digits."""
_LEFT: Final = "%s is left for the next start to remove: %s"


class Removal:
    """Of folders on one disk. Belongs to the event loop, but for `mark` and `unmark`, which may run in any thread."""

    def __init__(
        self, disk: Disk, kept: KeptDeletions, *, offload: Offload = asyncio.to_thread
    ) -> None:
        """Nothing is on its way out."""
        self._disk = disk
        self._kept = kept
        self.offload = offload
        self._going: dict[Path, _Going] = {}
        self._trees: set[Path] = set()
        """What was put away, and is removed, now or later."""
        self._removing: set[Path] = set()
        self._begun = asyncio.Event()
        self._asked: Counter[Path] = Counter()
        """For what is marked, and is not on its way out yet: by how many that is asked for."""
        self._marked: set[Path] = set()
        self._marking = threading.Lock()
        self._marking_turn, self._finishing_turn = asyncio.Lock(), asyncio.Lock()
        """Who waits for its turn holds no thread."""

    # -- before the registry forgets it ----------------------------------------------------------

    async def mark_aside(self, folder: Path, note: DeletionNote, *, asks: bool = True) -> None:
        """Mark a folder, in a thread. `asks`: somebody here asks for its deletion, who takes the mark back if it is refused."""
        if asks:
            self._asked[folder] += 1
        if folder in self._marked:
            return
        async with self._marking_turn:
            await self.offload(partial(self.mark, folder, note))

    async def unmark_aside(self, folder: Path) -> None:
        """Take that back, in a thread, unless somebody else asks for the same deletion, or has got it (INV-RM8)."""
        if self._asked[folder] > 1:
            self._asked[folder] -= 1
            return
        del self._asked[folder]
        self._marked.discard(folder)  # who needs it from now on makes it anew, behind this
        async with self._marking_turn:
            await self.offload(partial(self._unmark_unasked, folder))

    def mark(self, folder: Path, note: DeletionNote) -> None:
        """Say durably that a folder is about to be deleted. Without the mark a crash leaves it, which is logged.

        The note of the first mark stays.
        """
        with self._marking:
            if folder in self._marked:
                return
            try:
                self._disk.open(folder / MARK_NAME, create=True).close()
                self._disk.fsync_dir(folder)
                self._marked.add(folder)
            except OSError as error:
                logger.warning("%s cannot be marked, a crash now would leave it: %s", folder, error)
            self._note(folder, note)

    def _note(self, folder: Path, note: DeletionNote) -> None:
        path = folder / NOTE_NAME
        if not self._kept.wanted or self._disk.exists(path):
            return
        try:
            self._disk.write_file_atomic(path, note.content())
        except OSError as error:
            logger.warning("%s does not say what it is: %s", folder, error)

    def unmark(self, folder: Path) -> None:
        """Take that back: it stays, unless somebody asks for its deletion now (INV-RM8)."""
        if folder not in self._asked and self.is_marked(folder):
            self._unmark_unasked(folder)

    def _unmark_unasked(self, folder: Path) -> None:
        with self._marking:
            if folder in self._asked or folder in self._going:
                return
            self._marked.discard(folder)
            try:
                if self._disk.exists(folder / MARK_NAME):
                    if self._disk.exists(folder / NOTE_NAME):
                        self._disk.remove(folder / NOTE_NAME)
                    self._disk.remove(folder / MARK_NAME)
                    self._disk.fsync_dir(folder)
            except OSError as error:
                logger.warning("%s stays, but its mark cannot be removed: %s", folder, error)

    def is_marked(self, folder: Path) -> bool:
        """Return whether its deletion was begun."""
        return self._disk.exists(folder / MARK_NAME)

    # -- putting away ----------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether what held records is kept for a while."""
        return self._kept.wanted

    def begin(
        self, folder: Path, *, keep: bool = True, first: Callable[[], None] = nothing,
        on_left: OnGone = nothing, on_gone: OnGone = nothing,
    ) -> None:  # fmt: skip
        """Let a folder be on its way out: who has to do with it finishes that first, and `run` does it anyway (INV-RM7).

        `first` is done before, in the same thread; `on_left` is called on the loop once that is done, `on_gone` once the folder is durably
        out of the way. `keep` False: it holds nothing.
        """
        suffix = KEPT_SUFFIX if keep and self._kept.wanted else DELETED_SUFFIX
        inner = [
            going.away
            for other, going in self._going.items()
            if other == folder or folder in other.parents
        ]
        away = PuttingAway(
            self._disk, folder, suffix, is_taken=self._kept.is_named, inner=inner, first=first
        )
        earlier = self._going.get(folder)
        self._going[folder] = _Going(away, on_left, on_gone, earlier)
        self._asked.pop(folder, None)
        self._begun.set()

    def put_away(self, folder: Path, *, keep: bool = True) -> bool:
        """Take a folder out of the way durably, at once; what is not kept is removed by `run`, or by `remove_now`.

        False if it is there, or may come back: it is tried again later. `keep` False: it holds nothing.
        """
        if folder not in self._going:
            self.begin(folder, keep=keep)
        return self.finish_now(folder)

    def is_going(self, folder: Path) -> bool:
        """Return whether it is on its way out, by itself or with the folder that it lies in."""
        return folder in self._going or folder.parent in self._going

    def finish_now(self, folder: Path) -> bool:
        """Have a folder that is on its way out put away, at once; False if it is still there.

        What is not kept of it is removed later.
        """
        going = self._going.get(folder)
        if going is None:
            return True
        going.away.work()
        return self._settle(going)

    def finish_all_now(self) -> None:
        """Have all put away that is on its way out: the node stops."""
        for folder in list(self._going):
            self.finish_now(folder)

    async def finish(self, under: Path | None = None) -> None:
        """Have all put away that is on its way out, or a folder and what lies in it, in a thread."""
        if not self._under(under):
            return
        async with self._finishing_turn:
            found = self._under(under)

            def work() -> None:
                for going in found:
                    going.away.work()

            if found:
                await self.offload(work)
            for going in found:
                self._settle(going)

    def _under(self, under: Path | None) -> list["_Going"]:
        return [
            going
            for folder, going in self._going.items()
            if under is None or folder == under or under in folder.parents
        ]

    def _settle(self, going: "_Going") -> bool:
        """Take in what came of one, once."""
        if going.earlier is not None:
            self._settle(going.earlier)
        away = going.away
        if not going.is_left:
            going.is_left = True
            going.on_left()
        if not away.is_away or going.is_settled:
            return away.is_away
        going.is_settled = True
        if self._going.get(away.folder) is going:
            del self._going[away.folder]
        below = [each for each in list(self._marked) if away.folder in (each, each.parent)]
        self._marked.difference_update(below)
        if away.became is not None and away.became.name.endswith(KEPT_SUFFIX):
            self._kept.take(away.became)
        elif away.became is not None:
            self._trees.add(away.became)
            self._begun.set()
        going.on_gone()
        return True

    async def run(self) -> None:
        """Put away and remove what is on its way out, in threads, until cancelled (INV-RM7)."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            await self.finish()
            await self._remove_trees()

    def remove_now(self) -> None:
        """Remove what was put away, and is not kept: at a start."""
        self._remove_all(sorted(self._trees))
        self._trees.clear()

    async def _remove_trees(self) -> None:
        trees = sorted(self._trees - self._removing)
        if not trees:
            return
        self._removing.update(trees)
        try:
            await self.offload(partial(self._remove_all, trees))
        finally:
            self._removing.difference_update(trees)
            self._trees.difference_update(trees)

    # -- logs that are put aside -----------------------------------------------------------------

    def is_there(self, folder: Path) -> bool:
        """Return whether a folder has that name now, durably or not."""
        return self._disk.exists(folder)

    def set_aside(self, folder: Path, *, uncut: bool = False) -> Path:
        """Give a damaged log's folder another name, durably, under which nobody removes it; return that. Raises OSError."""
        kept = renamed(self._disk, folder, folder, UNCUT_SUFFIX if uncut else ASIDE_SUFFIX)
        self._disk.fsync_dir(kept.parent)
        return kept

    def uncut_under(self, folder: Path) -> list[Path]:
        """Return what was set aside uncut, of the logs of all topics under a folder. Raises OSError."""
        topics = [
            folder / name for name in self._disk.list_dir(folder) if len(name) == TOPIC_ID_CHARS
        ]
        return [
            topic / name
            for topic in topics
            if not self.is_going(topic)
            for name in self._disk.list_dir(topic)
            if name.endswith(UNCUT_SUFFIX)
        ]

    # -- what is removed -------------------------------------------------------------------------

    async def purge(self) -> None:
        """Try again what could not be put away, remove what was kept long enough (INV-KD1, INV-RM6), and learn how large the rest is."""
        await self.finish()
        unmeasured = self._kept.unmeasured()
        gone = self._last_names(self._kept.due())
        sizes_bytes: dict[Path, int] = {}
        expired: list[Path] = []

        def work() -> None:
            expired.extend(each for each, name in gone.items() if self._expired(each, name))
            sizes_bytes.update(self._kept.measured([e for e in unmeasured if e not in gone]))

        if gone or unmeasured:
            await self.offload(work)
            for folder in expired:
                self._kept.gone(folder)
            self._trees.update(gone[folder] for folder in expired)
            self._kept.note_sizes(sizes_bytes)
        await self._remove_trees()
        ages_ms = self._kept.worth_saving()
        if ages_ms is not None:
            await self.offload(partial(self._kept.write, ages_ms))

    def _last_names(self, folders: Sequence[Path]) -> dict[Path, Path]:
        names: dict[Path, Path] = {}
        for folder in folders:
            taken = self._trees.union(names.values())
            stem = folder.with_name(folder.name.partition(".")[0])
            names[folder] = free_name(self._disk, stem, DELETED_SUFFIX, taken.__contains__)
        return names

    def _expired(self, folder: Path, gone: Path) -> bool:
        """Give a folder that was kept long enough its last name; False if the disk fails."""
        try:
            self._disk.rename(folder, gone)
        except OSError as error:
            logger.warning("%s was kept long enough, and cannot be removed: %s", folder, error)
            return False
        logger.info("%s was kept long enough: it is removed", folder)
        return True

    def _remove_all(self, folders: Sequence[Path]) -> None:
        for gone in folders:
            if not self._disk.exists(gone):  # the folder that it lay in has gone since
                continue
            try:
                # The name first: a tree that is half removed must not come back under its old one.
                self._disk.fsync_dir(gone.parent)
                self._disk.remove_tree(gone)
            except OSError as error:
                logger.warning(_LEFT, gone, error)

    def is_free(self, folder: Path) -> bool:
        """Return whether nothing of what had that name is still to be put away; changes nothing."""
        return folder not in self._going and not self._disk.exists(folder / DELETED_NAME)

    def is_away(self, folder: Path) -> bool:
        """Put this folder away at once, if it should be; False if it is still there. Rare: who can wait has it put away by `finish`."""
        if self.is_free(folder):
            return True
        if folder not in self._going:
            self.begin(folder)
        return self.finish_now(folder)

    def sweep(self, parent: Path) -> None:
        """At a start: remove what was put away in `parent`, go on with what is kept."""
        names = self._disk.list_dir(parent)
        for name in names:
            if name.endswith(KEPT_SUFFIX):
                self._kept.found(parent / name)
        gone = [parent / name for name in names if name.endswith(DELETED_SUFFIX)]
        self._remove_all([each for each in gone if each not in self._trees])


class _Going:
    """A folder on its way out, and who is told of it on the loop; `earlier`: one of that name that the disk did not let go."""

    __slots__ = ("away", "earlier", "is_left", "is_settled", "on_gone", "on_left")

    def __init__(
        self, away: PuttingAway, on_left: OnGone, on_gone: OnGone, earlier: "_Going | None"
    ) -> None:
        self.away = away
        self.on_left = on_left
        self.on_gone = on_gone
        self.earlier = earlier
        self.is_left = False
        self.is_settled = False
