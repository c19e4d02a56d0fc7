"""Asking other regions: one short connection per question, bounded in time.

INV-FP1  every question ends within its time-out: with an answer, `PeerRefused` or `PeerUnreachable`
INV-FP4  whoever does not make its handshake within `HANDSHAKE_TIMEOUT_MS` is silent; a question's own time-out is for
         its answer
A handshake is learnt from even if the peer then refuses to talk. Regions are asked side by side; `as_answered` tells
what came before the silent ones have run into their time-outs.

A region that makes a handshake is up, and may need seconds for a tidemark before it promises. One that stands still,
or lies behind a link that swallows everything, does not make its handshake: whoever takes over need not wait for it as
long.

Not here: what is asked (`failover.messages`), long-lived connections (the link, the forwarder).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from region_broker.ports.network import Network
from region_broker.region.peers.addresses import Entered, RegionAddresses, opened_region
from region_broker.region.peers.protocol import (
    NOT_LEADING,
    STALE_REGION_EPOCH,
    AnyMessage,
    Hello,
    PeerIdentity,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.ports import MetadataSide

HANDSHAKE_TIMEOUT_MS: Final = 2_500
"""Longer than a busy region's loop is held up."""


class FailoverPeers:
    """The other regions of the cluster, by name, as the metadata knows them."""

    def __init__(
        self, network: Network, metadata: MetadataSide, region: str, addresses: RegionAddresses
    ) -> None:
        """Ask as `region`, at `addresses`; `identity` must be set before the first question."""
        self._network = network
        self._metadata = metadata
        self._region = region
        self._addresses = addresses
        self._silent: set[str] = set()
        self._between_leaders: set[str] = set()
        self.identity: PeerIdentity | None = None

    def names(self) -> list[str]:
        """Return the other regions, in order."""
        return sorted(name for name in self._metadata.image.regions if name != self._region)

    async def ask(
        self, region: str, message: PeerMessage, answer_type: type[AnyMessage], *, timeout_ms: int
    ) -> AnyMessage:
        """Return the answer; raises `PeerRefused`, `PeerUnreachable` (INV-FP1)."""
        answer, _ = await self.ask_attached(region, message, answer_type, timeout_ms=timeout_ms)
        return answer

    async def ask_attached(
        self, region: str, message: PeerMessage, answer_type: type[AnyMessage], *, timeout_ms: int
    ) -> tuple[AnyMessage, bytes]:
        """Return the answer and what is attached to it; raises as `ask`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            async with (
                self._after_handshake(region, timeout_ms) as (client, _),
                asyncio.timeout_at(deadline_s),
            ):
                answer, attachment = await client.begin(message, answer_type)
                return answer, bytes(attachment)
        except TimeoutError as error:
            reason = f"region {region} did not answer within {timeout_ms} ms"
            raise PeerUnreachable(reason, sent=True) from error

    async def handshake(self, region: str, *, timeout_ms: int) -> Hello:
        """Exchange hellos, so that both sides know what the other knows; raises as `ask`."""
        async with self._after_handshake(region, timeout_ms) as (_, hello):
            return hello

    @asynccontextmanager
    async def _after_handshake(self, region: str, timeout_ms: int) -> AsyncIterator[Entered]:
        """Yield a connection after its handshake, and note who is silent (INV-FP4); raises as `ask`."""
        assert self.identity is not None, "the driver sets it at construction"
        bound_ms = min(timeout_ms, HANDSHAKE_TIMEOUT_MS)
        handshake = asyncio.timeout(bound_ms / 1000)
        try:
            async with (
                handshake,
                opened_region(self._network, self._addresses, region, self.identity) as both,
            ):
                handshake.reschedule(None)
                self._silent.discard(region)
                yield both
        except TimeoutError as error:
            if not handshake.expired():
                raise
            self._silent.add(region)
            reason = f"region {region} did not make its handshake within {bound_ms} ms"
            raise PeerUnreachable(reason, sent=True) from error

    async def ask_all(
        self, message: PeerMessage, answer_type: type[AnyMessage], *, timeout_ms: int
    ) -> tuple[Mapping[str, AnyMessage], Mapping[str, str]]:
        """Ask every other region at once; return (answers, reasons of those that gave none)."""
        names = self.names()
        results = await asyncio.gather(
            *(self._ask_one(name, message, answer_type, timeout_ms) for name in names)
        )
        answers = {
            name: result
            for name, result in zip(names, results, strict=True)
            if not isinstance(result, str)
        }
        missing = {
            name: result
            for name, result in zip(names, results, strict=True)
            if isinstance(result, str)
        }
        return answers, missing

    async def as_answered(
        self, message: PeerMessage, answer_type: type[AnyMessage], *, timeout_ms: int
    ) -> AsyncGenerator[Mapping[str, AnyMessage], None]:
        """Ask every other region at once; yield all answers so far whenever a region answered or gave none.

        Close it (`contextlib.aclosing`): what is still asked is given up then.
        """
        asked = {
            asyncio.get_running_loop().create_task(
                self._ask_one(name, message, answer_type, timeout_ms), name=f"ask-{name}"
            ): name
            for name in self.names()
        }
        answers: dict[str, AnyMessage] = {}
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    result = task.result()
                    if not isinstance(result, str):
                        answers[asked[task]] = result
                yield dict(answers)
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)

    async def _ask_one(
        self, region: str, message: PeerMessage, answer_type: type[AnyMessage], timeout_ms: int
    ) -> AnyMessage | str:
        self._between_leaders.discard(region)
        try:
            return await self.ask(region, message, answer_type, timeout_ms=timeout_ms)
        except (PeerRefused, PeerUnreachable) as error:
            if isinstance(error, PeerRefused) and error.code == NOT_LEADING:
                self._between_leaders.add(region)
            return str(error) or type(error).__name__

    def between_leaders(self, regions: Iterable[str]) -> bool:
        """Return whether one of these regions is up, and has said last that none of its nodes speaks for it: one will soon."""
        return not self._between_leaders.isdisjoint(regions)

    async def handshake_with(
        self, region: str, *, timeout_ms: int
    ) -> Hello | PeerRefused | PeerUnreachable:
        """Make a handshake with a region; return its hello, or why there is none."""
        try:
            return await self.handshake(region, timeout_ms=timeout_ms)
        except (PeerRefused, PeerUnreachable) as error:
            return error

    async def _handshakes_with(
        self, names: Sequence[str], timeout_ms: int
    ) -> Mapping[str, Hello | PeerRefused | PeerUnreachable]:
        asked = (self.handshake_with(name, timeout_ms=timeout_ms) for name in names)
        return dict(zip(names, await asyncio.gather(*asked), strict=True))

    async def handshakes(self, *, timeout_ms: int) -> tuple[Mapping[str, Hello], Mapping[str, str]]:
        """Make a handshake with every other region at once; return (their hellos, reasons of those that gave none)."""
        found = await self._handshakes_with(self.names(), timeout_ms)
        hellos = {name: hello for name, hello in found.items() if isinstance(hello, Hello)}
        silent = {
            name: str(why) or type(why).__name__
            for name, why in found.items()
            if not isinstance(why, Hello)
        }
        return hellos, silent

    async def further_on(self, *, timeout_ms: int) -> Sequence[str]:
        """Make a handshake with every other region at once; return those that refuse this one because they are at a
        later region epoch."""
        found = await self._handshakes_with(self.names(), timeout_ms)
        return [
            name
            for name, told in found.items()
            if isinstance(told, PeerRefused) and told.code == STALE_REGION_EPOCH
        ]

    async def answering(self, *, timeout_ms: int) -> Sequence[str]:
        """Make a handshake with every other region at once; return those that answer, if only with a refusal."""
        return await self._answering(self.names(), timeout_ms)

    async def handshake_with_all(self, *, timeout_ms: int) -> Sequence[str]:
        """Make a handshake with every other region at once; return the names of those that answered.

        Not those that were silent when they were asked last: nothing is begun that waits for them. They hear when they are
        back, from whoever acts then.
        """
        heard = [name for name in self.names() if name not in self._silent]
        return await self._answering(heard, timeout_ms)

    async def _answering(self, names: Sequence[str], timeout_ms: int) -> Sequence[str]:
        found = await self._handshakes_with(names, timeout_ms)
        return [name for name, told in found.items() if not isinstance(told, PeerUnreachable)]
