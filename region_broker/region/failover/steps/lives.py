"""Two nodes that run as one region: who is let in here, and whether this node was told to stand aside (T36).

INV-LV1  whoever is not the known start of its region is answered nothing but why (INV-KL1), and nothing is learnt of it
INV-LV2  a start that comes is looked for at its region's address before it is let in: who answers there runs
INV-LV3  the known start of each region is remembered over a restart of this node
INV-LV4  a node that another region refused takes no writes, and answers no region, until that one lets it in; so does
         one that starts, while any region that answers is not sure
INV-LV5  a node that is told that another one was elected to lead its region acts no more and lets no region in, as long as it knows of
         no later election than its own, and whoever told it so does not let it in. It asks nobody for that
Whoever refused this node is asked again until it lets it in, whatever this node does meanwhile; one that answers no
more is named, with what an operator can do.

Not here: the judgement (`geo_replicator.known_lives`), who calls at each handshake and request (`failover.driver`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from geo_replicator.folder_life import HeardLives, Shown
from geo_replicator.known_lives import KnownLives, Standing
from idempotency.ports import Clock
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.peers.protocol import (
    ASK_AGAIN,
    LED_BY_ANOTHER,
    NOT_LEADING,
    RUNS_ELSEWHERE,
    STANDS_ASIDE,
    Hello,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.ports import FolderSide

_log: Final = logging.getLogger("tidemark.failover")


class Lives:
    """What one node knows of the starts of other regions, and hears of its own."""

    def __init__(
        self,
        clock: Clock,
        folder: FolderSide,
        peers: FailoverPeers,
        *,
        ask_timeout_ms: int,
        refused_pause_ms: int,
    ) -> None:
        """Go on with what the folder remembers."""
        self._clock = clock
        self._folder = folder
        self._peers = peers
        self._ask_timeout_ms = ask_timeout_ms
        self._refused_pause_ms = refused_pause_ms
        self._heard = HeardLives()
        self._known = KnownLives(folder.identity.met)
        self._twice: dict[str, str] = {}
        self._asked: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._deposed_by: dict[str, tuple[str, str]] = {}
        """Who said so, of which start of this region, and why."""
        self._mute: set[str] = set()
        self._asking: set[str] = set()
        self._unsure: dict[str, str] = {}
        self._told = asyncio.Event()
        self.spawn: Callable[[Coroutine[object, None, None], str], bool] = _nobody_runs
        self.on_elected: Callable[[str], None] = _nobody_asks
        """Told of a region that another node leads than was known so far."""

    def twice(self) -> dict[str, str]:
        """Return the other regions that two nodes run as, with what is known of both (INV-FX4)."""
        return self._heard.twice(self._clock.monotonic_ms())

    def judge(self, hello: Hello) -> None:
        """Take note of a handshake; raises `PeerRefused` where its node may not talk (INV-LV1), or is not let in here (INV-LV5)."""
        now_ms = self._clock.monotonic_ms()
        self._heard.hear(hello.region, hello.folder, now_ms)
        told, self._twice = self._twice, self._heard.twice(now_ms)
        for region in sorted(self._twice.keys() - told.keys()):
            _log.error("%s", self._twice[region])
        self._admit(hello, now_ms, is_handshake=True)
        if not hello.answers and (deposed := self._deposed()):
            raise PeerRefused(NOT_LEADING, "; ".join(deposed))

    def admit(self, hello: Hello) -> None:
        """Take note of a request of the node with that hello; raises `PeerRefused` as `judge`, and where this one
        stands aside."""
        if aside := self.aside():
            raise PeerRefused(NOT_LEADING if self._deposed() else STANDS_ASIDE, aside)
        now_ms = self._clock.monotonic_ms()
        if self._known.is_contested(hello.region):
            self._heard.hear(hello.region, hello.folder, now_ms)
        self._admit(hello, now_ms, is_handshake=False)

    def _admit(self, hello: Hello, now_ms: int, *, is_handshake: bool) -> None:
        region, before = hello.region, self._known.known(hello.region)
        standing = self._known.hear(
            region, hello.folder, now_ms, at_address=hello.answers, is_handshake=is_handshake
        )
        after = self._known.known(region)
        if after is not None and _start_of(before) != _start_of(after):
            self.spawn(self._remember(region, after), f"remember-{region}")
            if before is not None and after.elected:
                self.on_elected(region)
        if standing is Standing.KNOWN or self.aside():
            return  # who stands aside judges nobody
        assert before is not None, region
        if standing is Standing.DEPOSED:
            raise PeerRefused(LED_BY_ANOTHER, _deposed_text(region, before, hello.folder))
        if region not in self._asked and self.spawn(self._look(region), f"look-for-{region}"):
            self._asked.add(region)
        if standing is Standing.UNDECIDED:
            raise PeerRefused(
                ASK_AGAIN,
                f"another start of region {region} was heard here before this one, and it is looked for now: ask again",
            )
        raise PeerRefused(
            RUNS_ELSEWHERE,
            f"another node runs as region {region}: start {_start_of(before)} (number {before.incarnation_count} of folder"
            f" {before.folder_id}) was known before this one came, and is heard still. Stop one of the two. If this one"
            " runs on a copy of the other's data folder, remove the copy: a second node for a region can only take the"
            " other's place once that is stopped, with its folder or an empty one",
        )

    async def _look(self, region: str) -> None:
        """Ask at the region's address who runs there: the answer is heard like any handshake (INV-LV2)."""
        try:
            await self._peers.handshake(region, timeout_ms=self._ask_timeout_ms)
        except (PeerRefused, PeerUnreachable) as error:
            _log.info("nothing new of region %s: %s", region, error)
        finally:
            self._asked.discard(region)

    async def _remember(self, region: str, shown: Shown) -> None:
        try:
            await self._folder.note_met(region, shown)
        except OSError as error:
            _log.warning("the start of region %s is not remembered: %s", region, error)

    def heed(self, hello: Hello) -> None:
        """Take note of what the answer of another region says of this node (INV-LV4).

        One of its nodes that does not lead says nothing: it lets nobody in.
        """
        if not hello.answers or hello.refused_code == NOT_LEADING:
            return
        self._unsure.pop(hello.region, None)
        self._mute.discard(hello.region)
        if hello.refused_code == LED_BY_ANOTHER:
            self._heed_deposed(hello)
            return
        if self._deposed_by.pop(hello.region, None) is not None:
            _log.warning("region %s lets this node in again", hello.region)
        if hello.refused_code == RUNS_ELSEWHERE:
            if hello.region not in self._refusals:
                _log.error("region %s refuses this node: %s", hello.region, hello.refused)
                self._ask_until_let_in(hello.region)
            self._refusals[hello.region] = hello.refused
            self._told.set()
            return
        if hello.refused_code == ASK_AGAIN:
            self._unsure[hello.region] = hello.refused
        elif self._refusals.pop(hello.region, None) is not None:
            _log.warning("region %s lets this node in again", hello.region)

    def _heed_deposed(self, hello: Hello) -> None:
        """Take note that another node was elected after this one.

        1. This node leads, and is cut off from its own region. 2. Another one is elected, and met by a third region. 3. This one meets
        that region, and is refused. Its own region tells it what to do next, once it is heard: nobody is asked until then, and an
        election that it wins later ends the refusal, which was of an earlier one.
        """
        told = (self._folder.identity.chain.last, hello.refused)
        if self._deposed_by.get(hello.region) != told:
            _log.warning("region %s does not let this node in: %s", hello.region, hello.refused)
        self._deposed_by[hello.region] = told
        self._told.set()

    def _deposed(self) -> list[str]:
        """Return who says that another node was elected after this one, and why; empty where no region does (INV-LV5)."""
        present = self._folder.identity.chain.last
        return [
            f"region {region} says that {why}"
            for region, (start, why) in sorted(self._deposed_by.items())
            if start == present
        ]

    def _ask_until_let_in(self, region: str) -> None:
        if region in self._asking:
            return
        if self.spawn(self._until_let_in(region), f"refused-by-{region}"):
            self._asking.add(region)

    async def _until_let_in(self, region: str) -> None:
        try:
            while region in self._refusals:
                await self._clock.sleep_ms(self._refused_pause_ms)
                try:
                    await self._peers.handshake(region, timeout_ms=self._ask_timeout_ms)
                except PeerUnreachable:
                    self._mute.add(region)
                except PeerRefused as error:
                    _log.debug("region %s refuses this node still: %s", region, error)
        finally:
            self._asking.discard(region)

    def aside(self) -> str:
        """Return why this node stands aside, empty where no region has refused it."""
        told = sorted(self._refusals.items())
        refused = [
            f"region {region} {self._says(region)} {why}{self._way_out(region)}"
            for region, why in told
        ]
        return "; ".join(self._deposed() + refused)

    def _says(self, region: str) -> str:
        return "said last that" if region in self._mute else "says that"

    def _way_out(self, region: str) -> str:
        if region not in self._mute:
            return ""
        return (
            f". Region {region} does not answer now: this node goes on by itself once it answers, and lets it in. Where"
            " no other node runs as this region, restart this one: it then asks those that answer"
        )

    def unsure(self) -> str:
        """Return which region is not sure of this node yet, empty where none is, and forget it: it is asked again."""
        told, self._unsure = self._unsure, {}
        return "; ".join(f"region {region} says that {why}" for region, why in told.items())

    async def until_aside(self) -> None:
        """Return once this node must stand aside."""
        while not self.aside():
            self._told.clear()
            await self._told.wait()


def _deposed_text(region: str, known: Shown, shown: Shown | None) -> str:
    return (
        f"another node leads region {region} now: its election {_start_of(known)} (number {known.incarnation_count}) came after"
        f" {_start_of(shown)}. Nothing is to be done: this node hears of it from its own region, and follows the other one"
    )


def _start_of(shown: Shown | None) -> str:
    return shown.incarnations[-1] if shown is not None and shown.incarnations else ""


def _nobody_asks(_region: str) -> None:
    """Nothing is under way to a region before there is a forwarder."""


def _nobody_runs(work: Coroutine[object, None, None], _name: str) -> bool:
    work.close()
    return False
