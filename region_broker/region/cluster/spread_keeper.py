"""What spreads and gathers the leaders of a region where that is due: the driver of `controller.cluster.spreading`.

INV-SPD1  a command is proposed by the node that leads the main group, one at a time; refused, or in doubt, it is decided anew by the
          next image
INV-SPD2  a node that leads a data group and has trouble with its logs, or no room for them, asks for gathering, whoever leads the main group: what is mended,
          is mended with one leader
INV-SPD3  while clients of another region change logs here, one node leads all of them: what they send is carried to one node, whole
          1. A client writes at a mirror, which carries its request to the main leader. 2. A partition in it is led by another node. 3. It
          would be refused, and the client, which knows the mirror's nodes only, would send it there again for ever.
INV-SPD4  leaders are spread once consumers that a takeover has left behind the end of a log are waited for no more (T26): data leaders do not
          know them, and would tell them that they are out of range. That this is waited for is what is told

Runs on each node, so that one that begins to lead knows how long spreads have lasted. Not here: when that is due.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from idempotency.fencing import EpochExhausted
from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.controller.cluster.spreading import (
    Gathering,
    KeeperCommand,
    SpreadFacts,
    SpreadKeeping,
    SpreadSettings,
    gathering,
    leads_a_data_group,
)
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused

AGAIN_MS: Final = 1_000
"""So long a data leader waits until it asks for gathering again."""

_log: Final = logging.getLogger("tidemark.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadParts:
    """What it is joined with. `apply`: of the metadata (`MetadataStore.apply`).

    `idle`: why this node does not lead a region that takes writes, and has its readers back; empty where it does. `trouble`: what is wrong
    with logs here that nobody but a leader mends; None where nothing is. Both as people read them.
    """

    me: Member
    image: Callable[[], MetadataImage]
    apply: Callable[[KeeperCommand], Awaitable[object]]
    idle: Callable[[], str]
    trouble: Callable[[], str | None]
    clock: Clock


def idle_because(*, leads: bool, acts: bool, awaits_readers: bool) -> str:
    """Return why a node does not lead a region that takes writes, and has its readers back, as people read it; empty where it does.

    Each has its own name: an operator waits for an election, makes the region act, or waits some minutes behind a takeover (INV-RR8).
    """
    if not leads:
        return "another node leads the region, or begins to, or none does now (tidemark cluster status)"
    if not acts:
        return (
            "this region takes no writes, and spreads leaders when it does (tidemark region status)"
        )
    if awaits_readers:
        return "this region took over from another one: its leading node gives readers five minutes to come back first"
    return ""


class SpreadKeeper:
    """It has no task; `gather` may be called by others."""

    def __init__(self, parts: SpreadParts, settings: SpreadSettings | None = None) -> None:
        """Nothing was seen yet."""
        self._parts = parts
        self._settings = settings or SpreadSettings()
        self._core = SpreadKeeping(self._settings)
        self._asking = asyncio.Lock()
        self._asks_again_ms = 0
        self._forwarded_ms: int | None = None

    def use(self, settings: SpreadSettings) -> None:
        """Go by other times from now on; what was seen is forgotten."""
        self._settings, self._core = settings, SpreadKeeping(settings)

    def note_forwarded(self) -> None:
        """Hear that another region's client changes a log here (INV-SPD3)."""
        self._forwarded_ms = self._parts.clock.monotonic_ms()

    def _trouble(self) -> str | None:
        now_ms, forwarded_ms = self._parts.clock.monotonic_ms(), self._forwarded_ms
        lasts_ms = self._settings.forwarded_ms
        if forwarded_ms is not None and now_ms - forwarded_ms < lasts_ms:
            left_s = (lasts_ms - now_ms + forwarded_ms) // 1000
            return f"clients of another region write here, through its nodes; leaders are spread when none has for {left_s} s more"
        return self._parts.trouble()

    def waits_for(self) -> str:
        """Return why leaders are not spread though they are to be, as people read it; empty where they are, or are not to be."""
        parts = self._parts
        facts = SpreadFacts(parts.me, parts.idle(), self._trouble())
        return self._core.waits_for(parts.image(), facts)

    async def look(self) -> None:
        """Propose what is due, if anything is; to be called now and then."""
        parts, image = self._parts, self._parts.image()
        concerns = image.spread is not None or image.spread_wanted
        facts = SpreadFacts(parts.me, parts.idle(), self._trouble() if concerns else None)
        command = self._core.step(image, facts, parts.clock.monotonic_ms())
        if command is not None:
            await self._propose(command, self._core.reason)
        elif facts.trouble is not None and leads_a_data_group(image, parts.me):
            await self._have_gathered(
                f"trouble with a log of node {parts.me}: {facts.trouble}"
            )  # INV-SPD2

    async def _have_gathered(self, why: str) -> None:
        now_ms = self._parts.clock.monotonic_ms()
        if now_ms < self._asks_again_ms:
            return
        self._asks_again_ms = now_ms + AGAIN_MS
        try:
            await self.gather(why)
        except EpochExhausted as error:
            _log.error("leaders are not gathered: %s", error)

    async def gather(self, why: str) -> bool:
        """Ask once that one node leads all logs again; return whether leaders are spread no more, as far as is known here.

        Raises `EpochExhausted`: no leader epoch is left, another region has to take over.
        """
        command = gathering(self._parts.image())
        if command is not None:
            await self._propose(command, why)
        return self._parts.image().spread is None

    async def _propose(self, command: KeeperCommand, why: str) -> None:
        async with self._asking:  # INV-SPD1
            what = "gathers" if isinstance(command, Gathering) else "spreads"
            _log.warning("this node %s the leaders of this region: %s", what, why)
            try:
                await self._parts.apply(command)
            except (CommandRefused, MetadataUnwritable) as error:
                _log.warning("that is judged anew: %s", error)
