"""Passwords that come over HTTP: checked off the loop, a few at a time, and ever slower for whoever fails.

INV-HPC1  a check takes a thread, never the loop; `AT_ONCE` of them at once, `WAITING_MAX` more wait, others are refused at once
INV-HPC4  a password for a user who is not there is put through the work that it would be for one who is
INV-HPC2  a refusal comes later the more often its address has failed, and says the same for an unknown user as for a wrong password;
          whoever waits for one blocks no other address, and of one address `PENDING_MAX` are judged or wait; what is right all the same,
          a token or what was proved before, waits for nothing; one that is not judged is told of like any other refusal
INV-HPC3  what was proved a moment ago is known again without the work, while the user's keys are the same; the password is not kept
What is remembered is bounded: `ADDRESSES_MAX` addresses, `PROVED_MAX` proofs.
Not here: who is known, and what a password is judged by (`security.sasl`), what a caller may do (`doors`).
"""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from idempotency.ports import Chance, Clock
from region_broker.ports.addresses import network_of
from region_broker.ports.offload import Offload
from region_broker.security.access import ScramKeys
from region_broker.security.sasl.scram_keys import PASSWORD_BYTES_MAX, fits

AT_ONCE: Final = 2
WAITING_MAX: Final = 64
PENDING_MAX: Final = 16
ADDRESSES_MAX: Final = 10_000
PROVED_MAX: Final = 1_000
DELAY_MS_MIN: Final = 100
DELAY_MS_MAX: Final = 3_000
FORGIVEN_MS: Final = 60_000


KeysFor = Callable[[str], tuple[ScramKeys, bool]]
"""The keys of a user's name, and whether they are somebody's: of nobody, such as cost the same (`sasl.desk`)."""


class TooManyLogins(Exception):
    """More logins than are checked at once: nothing was checked."""


class _Failures:
    """How often an address has failed lately, and how many of its logins are judged or held back now."""

    __slots__ = ("count", "last_ms", "pending")

    def __init__(self) -> None:
        self.count = self.last_ms = self.pending = 0


class SlowRefusals:
    """Makes refusals slow, by address (INV-HPC2)."""

    def __init__(self, clock: Clock) -> None:
        """Nobody has failed yet."""
        self._clock = clock
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()

    async def judged(self, address: str, judge: Callable[[], Awaitable[bool]]) -> bool:
        """Return what `judge` does, a refusal when it may be told; raises `TooManyLogins`."""
        address = network_of(address)
        known = self._by_address.setdefault(address, _Failures())
        self._by_address.move_to_end(address)
        while len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        if known.pending >= PENDING_MAX:
            raise TooManyLogins
        known.pending += 1
        try:
            if await judge():
                return True
            await self._hold_back(known)
        finally:
            known.pending -= 1
        return False

    async def _hold_back(self, known: _Failures) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - known.last_ms > FORGIVEN_MS:
            known.count = 0
        known.count, known.last_ms = known.count + 1, now_ms
        await self._clock.sleep_ms(min(DELAY_MS_MIN << min(known.count - 1, 10), DELAY_MS_MAX))


class PasswordChecks:
    """Knows whether a password is a user's, by the users that the metadata have now."""

    def __init__(
        self, keys_for: KeysFor, chance: Chance, offload: Offload = asyncio.to_thread
    ) -> None:
        """`keys_for` is asked anew each time."""
        self._keys_for = keys_for
        self._offload = offload
        self._room = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._own_key = chance.randbits(256).to_bytes(32, "big")
        self._proved: OrderedDict[bytes, None] = OrderedDict()

    def knows(self, user: str, password: str) -> bool:
        """Return whether it was proved a moment ago (INV-HPC3)."""
        _, is_real, _, mark = self._looked_up(user, password)
        if not is_real or mark not in self._proved:
            return False
        self._proved.move_to_end(mark)
        return True

    def _looked_up(self, user: str, password: str) -> tuple[ScramKeys, bool, bytes, bytes]:
        keys, is_real = self._keys_for(user)
        secret = password.encode("utf-8", "surrogatepass")
        return keys, is_real, secret, self._mark(keys, secret)

    async def proves(self, user: str, password: str) -> bool:
        """Return whether it does; raises `TooManyLogins` (INV-HPC1)."""
        keys, is_real, secret, mark = self._looked_up(user, password)
        if self._waiting >= WAITING_MAX:
            raise TooManyLogins
        judged: list[bool] = []
        self._waiting += 1
        try:
            async with self._room:
                await self._offload(lambda: judged.append(fits(keys, secret)))
        finally:
            self._waiting -= 1
        if not (is_real and judged[0] and len(secret) <= PASSWORD_BYTES_MAX):
            return False
        self._proved[mark] = None
        if len(self._proved) > PROVED_MAX:
            self._proved.popitem(last=False)
        return True

    def _mark(self, keys: ScramKeys, secret: bytes) -> bytes:
        """Return what tells a proof from all others (INV-HPC3): a hash under a key that nothing but this process knows."""
        told = (keys.user.encode(), keys.stored_key, secret)
        parts = b"".join(len(part).to_bytes(8, "big") + part for part in told)
        return hmac.new(self._own_key, parts, hashlib.sha256).digest()
