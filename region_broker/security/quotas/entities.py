"""Which limit a client has: Kafka's precedence of quota entities, and Kafka's rules for what may be configured.

INV-SQE1  the most specific entity that has the limit counts, for each limit by itself: user and client id, user and the default client
          id, user, default user and client id, default user and the default client id, default user, client id, default client id;
          for connections the address, then the default address
INV-SQE2  what one entity's limit is shared by is named by the kinds of that entity: a default stands for each name by itself, never
          for all of them together (`DefaultQuotaCallback` in ClientQuotaManager.java)
INV-SQE3  what is kept is sound: a limit is a finite number above 0, whole where Kafka's type is, of a key that its entity may have
Source: ClientQuotaManager.java, ClientQuotaControlManager.java, QuotaConfig.java.
Not here: how much of a limit is used (`buckets`), who may change quotas (the handlers).
"""

import math
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeAlias

from region_broker.security.access import Quota, QuotaEntity

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (CLIENT_ID, IP, USER)
"""In the order in which an entity names them."""
NAME_LENGTH_MAX: Final = 1_024
"""Kafka has no such limit: here a name is a row of the metadata, in all regions."""
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class QuotaKey(StrEnum):
    """What can be limited, by Kafka's names."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


_WHOLE_UP_TO: Final = {
    QuotaKey.PRODUCE: (_LONG_MAX, "LONG"),
    QuotaKey.FETCH: (_LONG_MAX, "LONG"),
    QuotaKey.CONNECTION: (_INT_MAX, "INT"),
}
_OF_ADDRESSES: Final = frozenset({QuotaKey.CONNECTION})


class QuotaRefused(Exception):
    """A change that may not be made; the text says why, in Kafka's words where Kafka refuses it, too."""


# --- what may be configured ------------------------------------------------------------------------


def checked_entity(pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return an entity in its one form; raises `QuotaRefused`."""
    named: dict[str, str | None] = {}
    for kind, name in pairs:
        if kind in named:
            raise QuotaRefused(f"Invalid client quota entity, duplicate entity entry {kind:.200}")
        if kind not in ENTITY_TYPES:
            raise QuotaRefused(f"Unhandled client quota entity type: {kind:.200}")
        if name is not None and not name:
            raise QuotaRefused(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_LENGTH_MAX:
            text = (
                f"The name of a {kind} has {len(name)} characters, {NAME_LENGTH_MAX} are the most"
            )
            raise QuotaRefused(text)
        named[kind] = name
    if not named:
        raise QuotaRefused("Invalid empty client quota entity")
    if IP in named:
        if len(named) > 1:
            raise QuotaRefused(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        address = named[IP]
        if address is not None and plain_address(address) is None:
            raise QuotaRefused(f"{address:.200} is not a valid IP or resolvable host.")
    return tuple((kind, named[kind]) for kind in ENTITY_TYPES if kind in named)


def checked_limit(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise `QuotaRefused` unless an entity may have this limit (INV-SQE3)."""
    known = {each.value: each for each in QuotaKey}.get(key)
    is_of_address = entity[0][0] == IP
    if known is None or (known in _OF_ADDRESSES) is not is_of_address:
        raise QuotaRefused(f"Invalid configuration key {key:.200}")
    if math.isnan(value):
        raise QuotaRefused(f"Quota {key} must be a number")
    if value <= 0.0:
        raise QuotaRefused(f"Quota {key} must be greater than 0")
    most = _WHOLE_UP_TO.get(known)
    if most is None:
        if math.isinf(value):
            raise QuotaRefused(f"Quota {key} must be finite: remove it for no limit")
        return
    if value > most[0]:
        raise QuotaRefused(f"Proposed value for {key} is too large for {_article(most[1])}.")
    if value < 1.0 or value % 1.0 > 1e-6:
        raise QuotaRefused(f"{key} cannot be a fractional value.")


def check_followed(quota: Quota) -> None:
    """Raise `QuotaRefused` unless another region's quota can be kept, read back and counted by: one of a newer version may say more."""
    for key, value in quota.limits.items():
        if not (math.isfinite(value) and value > 0.0):
            raise QuotaRefused(f"Quota {key:.200} must be a finite number greater than 0")


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "INT" else f"a {kind}"


def plain_address(text: str) -> str | None:
    """Return an address in its one form, an IPv4 address for one that is mapped to IPv6; None for what is none."""
    try:
        found = ip_address(text.strip("[]"))
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def altered(
    present: Mapping[str, float], entity: QuotaEntity, orders: Iterable[tuple[str, float | None]]
) -> dict[str, float]:
    """Return the limits of an entity after `orders`, None for a limit that goes; raises `QuotaRefused`."""
    limits = dict(present)
    named: set[str] = set()
    for key, value in orders:
        if key in named:
            raise QuotaRefused(
                f"Duplicate quota key {key:.200} not updating quota for this entity {told(entity)}"
            )
        named.add(key)
        if value is None:
            limits.pop(key, None)
            continue
        checked_limit(entity, key, value)
        limits[key] = value
    return limits


def told(entity: QuotaEntity) -> str:
    """Return an entity as people read it."""
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)


# --- which limit counts ----------------------------------------------------------------------------


class _Part(Enum):
    """How an entity names a user, or a client id."""

    NAMED = 0
    DEFAULT = 1
    ABSENT = 2


_PRECEDENCE: Final = (
    (_Part.NAMED, _Part.NAMED),
    (_Part.NAMED, _Part.DEFAULT),
    (_Part.NAMED, _Part.ABSENT),
    (_Part.DEFAULT, _Part.NAMED),
    (_Part.DEFAULT, _Part.DEFAULT),
    (_Part.DEFAULT, _Part.ABSENT),
    (_Part.ABSENT, _Part.NAMED),
    (_Part.ABSENT, _Part.DEFAULT),
)
"""(user, client id), the most specific first (INV-SQE1)."""
_Name: TypeAlias = str | _Part
Sharers: TypeAlias = tuple[QuotaKey, str | None, str | None]
"""Whose use counts together: the limit, the user and the client id, None where the entity does not name that kind (INV-SQE2)."""


class Limit(NamedTuple):
    """A limit as it counts for one client."""

    rate: float
    sharers: Sharers


class AddressRate(NamedTuple):
    """How many connections a second an address may open; `is_named`: a quota names that address, and not the default one."""

    rate: float
    is_named: bool


class Limits:
    """All limits that are configured, ready to be asked."""

    __slots__ = ("_addresses", "_by_key", "has_addresses", "has_clients")

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Take what is configured; keys that this version does not know limit nothing."""
        self._addresses: dict[str | None, float] = {}
        rates: dict[QuotaKey, dict[tuple[_Name, _Name], float]] = {}
        forms: dict[QuotaKey, set[tuple[_Part, _Part]]] = {}
        for entity, limits in quotas.items():
            named = dict(entity)
            if IP in named:
                self._take_address(named[IP], limits)
                continue
            place = (_name_in(named, USER), _name_in(named, CLIENT_ID))
            form = _form(place)
            for key in QuotaKey:
                if key in limits and key not in _OF_ADDRESSES:
                    rates.setdefault(key, {})[place] = limits[key]
                    forms.setdefault(key, set()).add(form)
        self._by_key = {
            key: ([form for form in _PRECEDENCE if form in forms[key]], by_place)
            for key, by_place in rates.items()
        }  # fmt: skip
        self.has_clients = bool(rates)
        self.has_addresses = bool(self._addresses)

    def _take_address(self, address: str | None, limits: Mapping[str, float]) -> None:
        rate = limits.get(QuotaKey.CONNECTION)
        if rate is not None:
            self._addresses[address and plain_address(address)] = rate

    def of(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client, None where it has none (INV-SQE1)."""
        found = self._by_key.get(key)
        if found is None:
            return None
        forms, rates = found
        for user_form, client_form in forms:
            rate = rates.get((_as(user_form, user), _as(client_form, client_id)))
            if rate is not None:
                whose = None if user_form is _Part.ABSENT else user
                which = None if client_form is _Part.ABSENT else client_id
                return Limit(rate, (key, whose, which))
        return None

    def of_address(self, address: str) -> AddressRate | None:
        """Return how many connections a second an address may open; None where nothing is said of it."""
        named = self._addresses.get(plain_address(address))
        if named is not None:
            return AddressRate(named, is_named=True)
        rate = self._addresses.get(None)
        return None if rate is None else AddressRate(rate, is_named=False)


def _name_in(named: Mapping[str, str | None], kind: str) -> _Name:
    if kind not in named:
        return _Part.ABSENT
    name = named[kind]
    return _Part.DEFAULT if name is None else name


def _form(place: tuple[_Name, _Name]) -> tuple[_Part, _Part]:
    user, client_id = (each if isinstance(each, _Part) else _Part.NAMED for each in place)
    return user, client_id


def _as(form: _Part, name: str) -> _Name:
    return name if form is _Part.NAMED else form
