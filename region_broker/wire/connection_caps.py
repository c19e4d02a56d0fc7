"""How many connections may be open, in all and from one address, and how quickly one address may open them.

INV-CN1  an address opens CONNECTION_BURST_S times its rate at once, then as many a second as the rate says, whatever
         it did before
INV-CN3  where a quota says how many connections an address may open, a whole number, that counts in place of the node's own rate; that of the
         default address counts by INV-PAD1, too
INV-CN2  what is remembered of addresses is bounded: one that may open a full burst again is forgotten, then the one that came longest ago; a connection
         costs the same however many are remembered
INV-CN5  where a connection begins with a handshake, it is judged before that, and takes its token then: a handshake costs the loop more than
         all else of a connection
INV-CN4  a rate of any size is counted by, however small: one that lets nobody in refuses, as a quota of a mirrored region may say so
Addresses count as INV-PAD1 says, but where a quota names one. Pure: the time is handed in. Not here: sockets (`wire.server`), memory (`wire.memory_budget`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from region_broker import limits
from region_broker.ports.addresses import network_of
from region_broker.security.quotas.entities import AddressRate

_FORGOTTEN_AT_ONCE: Final = 2
_BURST_US: Final = limits.CONNECTION_BURST_S * 1_000_000


class Refused(StrEnum):
    """Why a connection is closed as soon as it comes."""

    TOO_MANY = "too_many"
    ADDRESS = "address"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class ConnectionCaps:
    """How many connections may be open, in all and from one address; `rate`: new ones a second, 0: any number."""

    in_all: int = limits.CONNECTIONS_MAX
    per_address: int = limits.CONNECTIONS_PER_ADDRESS_DEFAULT
    rate: int = limits.CONNECTION_RATE_DEFAULT

    @classmethod
    def fitting(cls, descriptors: int, per_address: int, rate: int) -> Self:
        """Return caps that leave the files of partitions their part of `descriptors`.

        A partition that cannot open a file stops for good, so a flood of connections must not come so far.
        """
        in_all = min(limits.CONNECTIONS_MAX, descriptors // limits.DESCRIPTORS_PER_CONNECTION)
        return cls(in_all=max(1, in_all)).for_addresses(per_address, rate)

    def for_addresses(self, per_address: int, rate: int) -> Self:
        """Return caps of the same whole for other shares of it."""
        return replace(self, per_address=min(per_address, self.in_all), rate=rate)


class Admission:
    """Counts connections by address, and says which may stay."""

    def __init__(self, caps: ConnectionCaps) -> None:
        """Admit within `caps`, which may be changed at any time: who is in stays."""
        self.caps = caps
        self.rate_of: Callable[[str], AddressRate | None] | None = None
        """What a quota says of an address; None where there are no such quotas."""
        self._open: Counter[str] = Counter()
        self._open_count = 0
        self._due_us: OrderedDict[str, int] = OrderedDict()
        """When an address may open a full burst again, who came last at the end."""

    def open_from(self, address: str) -> int:
        """Return how many connections of an address are open."""
        return self._open[network_of(address)]

    def knock(self, address: str, now_ms: int) -> Refused | None:
        """Say why a connection of `address` may not make its handshake; one that may is not open yet, and has its token (INV-CN5)."""
        refused = self._full_for(network_of(address))
        if refused is None and not self._takes_token(address, now_ms):
            return Refused.RATE
        return refused

    def admit(self, address: str, now_ms: int, *, has_knocked: bool = False) -> Refused | None:
        """Count a connection of `address`, or say why it may not stay."""
        host = network_of(address)
        refused = self._full_for(host) if has_knocked else self.knock(address, now_ms)
        if refused is not None:
            return refused
        self._open[host] += 1
        self._open_count += 1
        return None

    def _full_for(self, host: str) -> Refused | None:
        if self._open_count >= self.caps.in_all:
            return Refused.TOO_MANY
        # A look at a counter adds nothing to it.
        return Refused.ADDRESS if self._open[host] >= self.caps.per_address else None

    def left(self, address: str) -> None:
        """Note that a connection that was admitted has ended."""
        host = network_of(address)
        self._open[host] -= 1
        self._open_count -= 1
        if not self._open[host]:
            del self._open[host]

    def _takes_token(self, address: str, now_ms: int) -> bool:
        quota = None if self.rate_of is None else self.rate_of(address)
        if quota is None or not quota.is_named:
            address = network_of(address)
        rate = self.caps.rate if quota is None else quota.rate
        if not rate:
            return True
        now_us = now_ms * 1_000
        step_us = int(
            min(1_000_000 // rate, _BURST_US + 1)
        )  # INV-CN4: of the smallest rates it is infinite
        due_us = max(self._due_us.get(address, 0), now_us) + step_us
        if due_us - now_us > _BURST_US:
            return False
        self._due_us[address] = due_us
        self._due_us.move_to_end(address)
        self._forget(now_us)
        return True

    def _forget(self, now_us: int) -> None:
        """Forget who may open a full burst again, more than come; and who came longest ago, where there are too many (INV-CN2)."""
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._due_us))
            if self._due_us[oldest] > now_us and len(self._due_us) <= limits.CONNECTIONS_MAX:
                return
            del self._due_us[oldest]
            if not self._due_us:
                return
