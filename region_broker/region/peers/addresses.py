"""Where a region is met: at one of its nodes, whichever leads it. They are tried in order, until one lets this node in.

INV-RAD1  the node that let this one in last is tried first, the others in the order of the configuration
INV-RAD2  one that cannot be reached, or says that it does not lead, is no word of its region: the next one is tried. Any other
          refusal is one: nobody else is tried
INV-RAD3  one that keeps silent holds up the next one for `NEXT_AFTER_S` only; whoever lets this node in first is talked to, and no
          connection to another one is left open
INV-RAD4  who answers there and is another region's node is not taken for this one's: nothing is sent to it
A handshake changes nothing that matters whom it reached, so one whose answer was lost is no reason to stop.

Not here: who may speak for a region (`server`, `region.failover`), back-off (the link, the forwarder, who asks).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Final, NamedTuple, Self, TypeAlias

from region_broker.ports.network import Network
from region_broker.region.peers.client import PeerClient
from region_broker.region.peers.protocol import (
    LED_BY_ANOTHER,
    NOT_ACTING,
    NOT_LEADING,
    STARTS_WITH_HISTORY,
    STARTS_WITH_QUORUM,
    STARTS_WITHOUT_HISTORY,
    Hello,
    PeerIdentity,
    PeerRefused,
    PeerUnreachable,
)

Address: TypeAlias = tuple[str, int]
Serve: TypeAlias = Callable[[Coroutine[object, None, None]], object]
"""Runs a connection (`PeerClient.run`) until it ends."""

NEXT_AFTER_S: Final = 0.25
_NO_WORD_OF_ITS_REGION: Final = frozenset(
    {
        NOT_LEADING,
        NOT_ACTING,
        LED_BY_ANOTHER,
        STARTS_WITH_HISTORY,
        STARTS_WITHOUT_HISTORY,
        STARTS_WITH_QUORUM,
    }
)
"""Of a handshake, the second one and the last three are said by a node that starts. `LED_BY_ANOTHER` is said here, of a node that does
not know yet that it leads no more; where it is said of this node, the others say no more of it."""


class Entered(NamedTuple):
    """A connection after its handshake, and what was answered."""

    client: PeerClient
    hello: Hello


class RegionAddresses:
    """The addresses of the nodes of each other region."""

    def __init__(self, known: Mapping[str, Sequence[Address]]) -> None:
        """Go by `known`: region -> where its nodes are met, as the configuration says."""
        self._known = known
        self._let_in: dict[str, Address] = {}

    def of(self, region: str) -> Sequence[Address]:
        """Return where the region's nodes are met, in the order to try them (INV-RAD1); raises `PeerUnreachable`."""
        known = self._known.get(region)
        if not known:
            raise PeerUnreachable(f"no region is called {region}", sent=False)
        first = self._let_in.get(region)
        return sorted(known, key=lambda address: address != first)

    def last_let_in(self, region: str) -> Address | None:
        """Return which of several nodes of `region` let this one in last, None where none has yet."""
        return self._let_in.get(region)

    def let_in(self, region: str, address: Address) -> None:
        """Note that this node was let in there."""
        self._let_in[region] = address


@asynccontextmanager
async def opened_region(
    network: Network, addresses: RegionAddresses, region: str, identity: PeerIdentity
) -> AsyncIterator[Entered]:
    """Connect to who speaks for `region`, make the handshake, and yield (client, its Hello); close at the end.

    Raises `PeerUnreachable` or `PeerRefused`.
    """
    serving: list[asyncio.Task[None]] = []

    def serve(work: Coroutine[object, None, None]) -> None:
        serving.append(asyncio.get_running_loop().create_task(work, name="peer-client"))

    try:
        yield await enter_region(network, addresses, region, identity, serve)
    finally:
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)
        for task in serving:
            if not task.cancelled():
                task.result()


async def enter_region(
    network: Network,
    addresses: RegionAddresses,
    region: str,
    identity: PeerIdentity,
    serve: Serve,
) -> Entered:
    """Return a connection to who speaks for `region`, served by `serve`; it is the caller's to close.

    Raises `PeerUnreachable` or `PeerRefused`: of its only node as it is, else with what became of each.
    """
    known = addresses.of(region)
    if len(known) == 1:
        return await _enter(network, known[0], region, identity, serve)
    with ExitStack() as on_cancel:
        async with _Attempts(
            lambda each: _enter(network, each, region, identity, serve)
        ) as attempts:
            address, entered = await attempts.first(region, known)
            on_cancel.callback(entered.client.close)
        _ = on_cancel.pop_all()
    addresses.let_in(region, address)
    return entered


async def _enter(
    network: Network, address: Address, region: str, identity: PeerIdentity, serve: Serve
) -> Entered:
    client = await PeerClient.connect(network, address, identity)
    serve(client.run())
    is_let_in = False
    try:
        hello = await client.handshake()
        if hello.region != region:  # INV-RAD4
            where = f"{address[0]}:{address[1]}"
            reason = f"{where} is met as region {region}, and it is region {hello.region}: check the addresses of the regions"
            raise PeerUnreachable(reason, sent=False)
        is_let_in = True
    finally:
        if not is_let_in:
            client.close()
    return Entered(client, hello)


class _Attempts:
    """Attempts to enter, side by side; those that are left at the end are given up (INV-RAD3)."""

    def __init__(self, enter: Callable[[Address], Coroutine[object, None, Entered]]) -> None:
        self._enter = enter
        self._trying: dict[asyncio.Task[Entered], Address] = {}
        self._failed: dict[Address, PeerUnreachable | PeerRefused] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_why: object) -> None:
        for task in self._trying:
            task.cancel()
            task.add_done_callback(_close_unused)
        if self._trying:
            await asyncio.wait(self._trying)

    async def first(self, region: str, known: Sequence[Address]) -> tuple[Address, Entered]:
        """Return who lets this node in first; raises what ended the search."""
        untried = deque(known)
        while untried or self._trying:
            if untried:
                self._begin(untried.popleft())
            timeout_s = NEXT_AFTER_S if untried else None
            await asyncio.wait(self._trying, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if found := self._judge():
                return found
        raise _all_failed(region, self._failed)

    def _begin(self, address: Address) -> None:
        task = asyncio.get_running_loop().create_task(self._enter(address), name="enter-region")
        self._trying[task] = address

    def _judge(self) -> tuple[Address, Entered] | None:
        """Return who has let this node in, and note who has not; raises where that is a word of the region (INV-RAD2)."""
        ended = [task for task in self._trying if task.done()]  # in the order they were begun
        refusal: PeerRefused | None = None
        for task in ended:
            address = self._trying.pop(task)
            try:
                return address, task.result()
            except PeerUnreachable as error:
                self._failed[address] = error.with_traceback(None)
            except PeerRefused as error:
                self._failed[address] = error.with_traceback(None)
                if error.code not in _NO_WORD_OF_ITS_REGION:
                    refusal = refusal or error
        if refusal is not None:
            # Made anew, and kept without traceback above: that would keep all that was tried (INV-PN7).
            raise type(refusal)(refusal.code, refusal.reason, refusal.replacement)
        return None


def _close_unused(task: "asyncio.Task[Entered]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().client.close()


def _all_failed(
    region: str, failed: Mapping[Address, PeerUnreachable | PeerRefused]
) -> PeerUnreachable | PeerRefused:
    """Return the error for a region none of whose nodes speaks for it: a refusal where any node is up."""
    each = "; ".join(
        str(error) if f"{host}:{port}" in str(error) else f"{host}:{port}: {error}"
        for (host, port), error in failed.items()
    )
    reason = f"no node of region {region} speaks for it ({each})"
    refused = [error for error in failed.values() if isinstance(error, PeerRefused)]
    if refused:
        return PeerRefused(refused[-1].code, reason)
    lost = any(isinstance(error, PeerUnreachable) and error.sent for error in failed.values())
    return PeerUnreachable(reason, sent=lost)
