"""How failed logins are held back, by the address that they come from.

INV-SAT1  the answer to a failed login waits, longer where its address failed often before; no other address waits for that
INV-SAT2  of one address at most WAITING_MAX refusals of judged logins wait: more of it are refused unjudged until some have left, so it guesses no
          faster, by however many connections at once; those that were refused unjudged keep no other one from being judged
INV-SAT3  what is remembered is bounded, however many addresses fail: those that are forgiven go first, and who finds no place shares one
Addresses of IPv6 count by their network (INV-PAD1).
Pure: the time is handed in. Not here: waiting itself (`desk`).
"""

from dataclasses import dataclass
from typing import Final

from region_broker.ports.addresses import network_of

FREE_FAILURES: Final = 20
FAILURES_MAX: Final = 3 * FREE_FAILURES
"""More are not counted: all are forgiven within a minute."""
FORGIVEN_AFTER_MS: Final = 1_000
"""One failure of an address is forgiven in that time."""
LONG_DELAY_MS: Final = 1_000
WAITING_MAX: Final = 200
ADDRESSES_MAX: Final = 10_000
_SHARED: Final = ""


@dataclass(slots=True)
class _Address:
    failures: float = 0.0
    counted_ms: int = 0
    waiting: int = 0

    def settle(self, now_ms: int) -> None:
        """Forgive what time has passed for."""
        self.failures = max(0.0, self.failures - (now_ms - self.counted_ms) / FORGIVEN_AFTER_MS)
        self.counted_ms = now_ms


@dataclass(frozen=True, slots=True)
class Held:
    """A refusal that waits; `left` is called once it has gone."""

    delay_ms: int
    address: _Address
    is_judged: bool

    def left(self) -> None:
        """Note that it waits no more."""
        self.address.waiting -= self.is_judged


class FailedAttempts:
    """Counts failures by address."""

    def __init__(self, delay_ms: int) -> None:
        """Hold back each failure for `delay_ms` at least; 0: none is held back before its address failed often."""
        self._delay_ms = delay_ms
        self._by_address: dict[str, _Address] = {}
        self._forgave_ms = -FORGIVEN_AFTER_MS

    def is_full(self, host: str) -> bool:
        """Return whether a login of that host is refused unjudged (INV-SAT2)."""
        found = self._by_address.get(network_of(host))
        return found is not None and found.waiting >= WAITING_MAX

    def failed(self, host: str, now_ms: int, *, is_judged: bool = True) -> Held:
        """Count a failure, and return for how long its answer waits."""
        address = self._of(network_of(host), now_ms)
        address.settle(now_ms)
        address.failures = min(address.failures + 1, FAILURES_MAX)
        address.waiting += is_judged
        often = address.failures > FREE_FAILURES
        return Held(max(self._delay_ms, LONG_DELAY_MS if often else 0), address, is_judged)

    def _of(self, key: str, now_ms: int) -> _Address:
        found = self._by_address.get(key)
        if found is not None:
            return found
        is_full = len(self._by_address) >= ADDRESSES_MAX
        if is_full and now_ms >= self._forgave_ms + FORGIVEN_AFTER_MS:  # it looks at all of them
            self._forgive(now_ms)
        if len(self._by_address) >= ADDRESSES_MAX:
            key = _SHARED
        return self._by_address.setdefault(key, _Address(counted_ms=now_ms))

    def _forgive(self, now_ms: int) -> None:
        self._forgave_ms = now_ms
        for address in self._by_address.values():
            address.settle(now_ms)
        self._by_address = {
            key: address
            for key, address in self._by_address.items()
            if address.failures or address.waiting
        }
