"""What a key of the configuration may be, said beside the key: its range and the reason, or its kind of text.

A problem names the key, says what is wrong with it, and what would be right. A check looks at one value; what several
keys must be together is a relation (`config.relations`).

The types of `node_config.NodeConfig` carry these rules (`Annotated`), and the checks, the texts of errors and the table in
docs/reference/config.md are all made from them. Pure.
Not here: which keys there are (`node_config`).
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, get_args, get_origin

import msgspec

from region_broker.controller.near_words import nearest
from region_broker.security.authorizer import PrincipalRefused, principals_of

NAME_LENGTH_MAX: Final = 64
TEXT_LENGTH_MAX: Final = 1_024
HOST_LENGTH_MAX: Final = 253  # RFC 1035
PORT_MAX: Final = 65_535
MAPPING_LENGTH_MAX: Final = 4_096
WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 -- refused where it is no address to reach
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_NUMBERS: Final = re.compile(r"[0-9.]+")
_LABEL_LENGTH_MAX: Final = 63  # RFC 1035
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")


class Problem(NamedTuple):
    """One thing that is wrong: a key (or a file, or a folder), what is the matter with it, and what would be right."""

    key: str
    wrong: str
    right: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.key} {self.wrong}: {self.right}"


class Rule(Protocol):
    """What a value must be, beside its type."""

    def wrong(self, value: Any) -> str | None:
        """Return what is the matter with a value of the right type, or None."""
        ...

    def right(self) -> str:
        """Return what would be right, in words that begin small."""
        ...

    def brief(self) -> str:
        """Return the same for a table."""
        ...


@dataclass(frozen=True, slots=True)
class Within:
    """A whole number from `low` to `high`; `why` says why these, or what a special value means."""

    low: int
    high: int
    why: str

    def wrong(self, value: int) -> str | None:
        """See `Rule`."""
        return None if self.low <= value <= self.high else f"is not in {self.low}..{self.high}"

    def right(self) -> str:
        """See `Rule`."""
        return f"a whole number from {self.low} to {self.high} ({self.why})"

    def brief(self) -> str:
        """See `Rule`."""
        return f"{self.low} to {self.high} ({self.why})"


class SafeName:
    """A name that is safe in paths, in the names of metrics and on a command line."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        if not value:
            return "is empty"
        if len(value) > NAME_LENGTH_MAX:
            return f"has {len(value)} characters"
        return None if _NAME.fullmatch(value) else "is not safe as the name of a file"

    def right(self) -> str:
        """See `Rule`."""
        return (
            f"1 to {NAME_LENGTH_MAX} of a-z, A-Z, 0-9, '_', '-' and '.', none of the last two at its beginning"
            " (it becomes part of file names, metrics and commands)"
        )

    def brief(self) -> str:
        """See `Rule`."""
        return "a name"


class NameOrNone(SafeName):
    """Such a name, or none: the empty text."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        return super().wrong(value) if value else None

    def right(self) -> str:
        """See `Rule`."""
        return f'{super().right()}; or "" for none'

    def brief(self) -> str:
        """See `Rule`."""
        return 'a name; `""`: none'


class Folder:
    """The path of a folder."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        if not value.strip():
            return "is empty"
        if any(ord(letter) < ord(" ") for letter in value) or not _is_text(value):
            return "holds characters that no path may have"
        return "begins with '~', which nobody expands here" if value.startswith("~") else None

    def right(self) -> str:
        """See `Rule`."""
        return "the path of a folder that this node may write"

    def brief(self) -> str:
        """See `Rule`."""
        return "a path"


class Principals:
    """Principals with semicolons between them, as in Kafka's `super.users`; empty: none."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        try:
            principals_of(value)
        except PrincipalRefused:
            return "names what is no principal"
        return None

    def right(self) -> str:
        """See `Rule`."""
        return 'principals, as TYPE:NAME with ";" between them, such as "User:admin;User:ops"'

    def brief(self) -> str:
        """See `Rule`."""
        return '`User:NAME`, with ";" between; `""`: none'


class FolderOrNone(Folder):
    """The path of a folder, or none: the empty text."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        return super().wrong(value) if value else None

    def right(self) -> str:
        """See `Rule`."""
        return f'{super().right()}; or "" for none'

    def brief(self) -> str:
        """See `Rule`."""
        return 'a path; `""`: none'


class FileOrNone(FolderOrNone):
    """The path of a file, or none: the empty text."""

    def right(self) -> str:
        """See `Rule`."""
        return 'the path of a file that this node may read; or "" for none'


class HttpsOrFile(FileOrNone):
    """An https address, the path of a file, or none."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        if "://" not in value:
            return super().wrong(value)
        scheme, _, rest = value.partition("://")
        if scheme != "https" or not rest or "@" in rest or not value.isprintable() or " " in value:
            return "is no https address"
        return None if len(value) <= TEXT_LENGTH_MAX else f"has {len(value)} characters"

    def right(self) -> str:
        """See `Rule`."""
        return 'https://host/path, without a user; or the path of a file; or "" for none'

    def brief(self) -> str:
        """See `Rule`."""
        return 'an https address, or a path; `""`: none'


@dataclass(frozen=True, slots=True)
class SomeOf:
    """Some of `names`, with commas between them; one at least."""

    names: tuple[str, ...]

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        found = listed(value)
        if not found:
            return "names none"
        unknown = next((name for name in found if name not in self.names), None)
        if unknown is not None:
            return f"names {unknown!r}, which is unknown"
        return "names one twice" if len(set(found)) < len(found) else None

    def right(self) -> str:
        """See `Rule`."""
        return f"some of {', '.join(self.names)}, with commas between them"

    def brief(self) -> str:
        """See `Rule`."""
        return f"some of {', '.join(self.names)}"


class TextOrNone:
    """A text of one line, or none."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        if len(value) > TEXT_LENGTH_MAX:
            return f"has {len(value)} characters"
        return None if value.isprintable() else "holds characters that no line may have"

    def right(self) -> str:
        """See `Rule`."""
        return f'a text of {TEXT_LENGTH_MAX} characters at most; or "" for none'

    def brief(self) -> str:
        """See `Rule`."""
        return 'a text; `""`: none'


class MappingRules:
    """Kafka's `ssl.principal.mapping.rules`; what stands in them is looked at as a node starts."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        return None if len(value) <= MAPPING_LENGTH_MAX else f"has {len(value)} characters"

    def right(self) -> str:
        """See `Rule`."""
        return (
            f"DEFAULT, or RULE:pattern/replacement/[LU], ..., up to {MAPPING_LENGTH_MAX} characters"
        )

    def brief(self) -> str:
        """See `Rule`."""
        return "`DEFAULT` or `RULE:pattern/replacement/[LU]`, divided by commas"


class Host:
    """A host name or an address to bind, without a port; empty: none is given."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        if not value or value in WILDCARDS - {"*"}:
            return None
        if value.count(":") == 1:
            return "has a port"
        return _host_problem(value.removeprefix("[").removesuffix("]"))

    def right(self) -> str:
        """See `Rule`."""
        return 'a host name or an IP address without a port; "0.0.0.0" and "::" bind all, "" the hosts of this region'

    def brief(self) -> str:
        """See `Rule`."""
        return "a host, without a port"


class Address:
    """``host:port`` as others reach it; an IPv6 address stands in brackets."""

    def wrong(self, value: str) -> str | None:
        """See `Rule`."""
        host, colon, port = value.rpartition(":")
        if not colon or not host:
            return "is not host:port"
        is_number = port.isascii() and port.isdigit() and len(port) <= len(str(PORT_MAX))
        if not is_number or not 0 < int(port) <= PORT_MAX:
            return f"has no port in 1..{PORT_MAX}"
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            return "has colons in its host"
        return self._wrong_host(host.removeprefix("[").removesuffix("]"))

    def _wrong_host(self, host: str) -> str | None:
        if host in WILDCARDS:
            return "is an address that nobody can reach"
        return _host_problem(host)

    def right(self) -> str:
        """See `Rule`."""
        return (
            "host:port as clients and other regions reach it, such as eu.example.org:9092 or [2001:db8::1]:9092"
            " (what this node binds instead is `listen_host`)"
        )

    def brief(self) -> str:
        """See `Rule`."""
        return "host:port"


class BoundAddress(Address):
    """``host:port`` to bind; `0.0.0.0` and `[::]` are all addresses of this machine."""

    def _wrong_host(self, host: str) -> str | None:
        return None if host in WILDCARDS - {"*"} else super()._wrong_host(host)

    def right(self) -> str:
        """See `Rule`."""
        return "host:port of this machine to bind, such as 0.0.0.0:9094 or [::]:9094"


class AddressByListener:
    """Addresses by the names of listeners, none to begin with."""

    def wrong(self, value: dict[str, str]) -> str | None:
        """See `Rule`."""
        for name, address in value.items():
            wrong = SafeName().wrong(name)
            if wrong is not None:
                return f"has a name that {wrong}"
            wrong = Address().wrong(address)
            if wrong is not None:
                return f"has an address for {name} that {wrong}"
        return "names one listener twice" if len({n.lower() for n in value}) < len(value) else None

    def right(self) -> str:
        """See `Rule`."""
        return (
            'the address by each listener of the node, such as { OUTSIDE = "eu1.example.org:9095" }'
        )

    def brief(self) -> str:
        """See `Rule`."""
        return "name = host:port, for each listener"


def listed(value: str) -> tuple[str, ...]:
    """Return what stands between the commas of a value."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


ReachableAddress = Annotated[str, Address()]
Name = Annotated[str, SafeName()]


def split(address: str) -> tuple[str, int]:
    """Return (host, port) of an address without problems."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def same_host(host: str) -> str:
    """Return what is equal for hosts that are known to be the same."""
    if host.lower().rstrip(".") == "localhost":
        return "127.0.0.1"
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")


def _host_problem(host: str) -> str | None:
    if ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            return "is no IPv6 address"
        return None
    if _NUMBERS.fullmatch(host):
        try:
            IPv4Address(host)
        except ValueError:
            return "is no IPv4 address"
    if len(host) > HOST_LENGTH_MAX:
        return f"has a host of {len(host)} characters"
    labels = host.removesuffix(".").split(".")
    is_name = _HOST.fullmatch(host) and all(0 < len(label) <= _LABEL_LENGTH_MAX for label in labels)
    return None if is_name else "has no host name or IP address"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON may have it
        return False
    return True


# --- one value -----------------------------------------------------------------------------------


def plain_type(kind: Any) -> Any:
    """Return the type without its rule."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def rule_of(kind: Any) -> Rule | None:
    """Return the rule that a key's type carries, if any."""
    return get_args(kind)[1] if get_origin(kind) is Annotated else None


def choices_of(kind: Any) -> tuple[Any, ...]:
    """Return the values to choose from, of a key that has such."""
    plain = plain_type(kind)
    if plain is bool:
        return ("true", "false")
    return get_args(plain) if get_origin(plain) is Literal else ()


def checked(key: str, kind: Any, value: Any) -> tuple[Any, Problem | None]:
    """Return the value as the key's type, and what is wrong with it (then it counts for nothing)."""
    try:
        found = msgspec.convert(value, plain_type(kind), strict=False)
    except msgspec.ValidationError:
        return None, Problem(f"{key} = {_shown(value)}", *_wrong_type(kind, value))
    rule = rule_of(kind)
    wrong = rule.wrong(found) if rule is not None else None
    if rule is None or wrong is None:
        return found, None
    return None, Problem(f"{key} = {_shown(value)}", wrong, rule.right())


_LOOKED_AT: Final = 64
"""Characters of a value that is none: what is near it takes the longer to find the longer it is."""
_KINDS: Final = {int: "whole number", dict[str, str]: "table of texts"}


def _wrong_type(kind: Any, value: Any) -> tuple[str, str]:
    choices = choices_of(kind)
    if choices:
        meant = nearest(value[:_LOOKED_AT], choices) if isinstance(value, str) else ""
        return "is none of the values to choose from", " or ".join(map(str, choices)) + meant
    rule = rule_of(kind)
    assert rule is not None, kind
    return f"is no {_KINDS.get(plain_type(kind), 'text')}", rule.right()


def _shown(value: Any) -> str:
    if isinstance(value, str):
        value = value[: 2 * NAME_LENGTH_MAX + 1]  # it may have megabytes
    text = repr(value)
    return text if len(text) <= 2 * NAME_LENGTH_MAX else text[: 2 * NAME_LENGTH_MAX] + "..."
