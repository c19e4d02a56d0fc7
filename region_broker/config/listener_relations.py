"""What listeners must be together, with each other and with the nodes of the region; a part of `config.relations`.

INV-CFT2  each listener has a name and a port of its own
INV-CFT3  by each listener of this node every node of its region is met, each at an address of its own, and this one as it says itself: else
          the configuration is refused. Nobody is looked for where another listener, which may speak otherwise, is met

Pure. Not here: what TLS needs (`tls_relations`), who is told of what (`wire.listening`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from region_broker.config.rules import WILDCARDS, Problem, same_host, split
from region_broker.config.tls_relations import ListenerTable
from region_broker.controller.near_words import nearest

_PORTS: Final = ("kafka", "peer", "http")

Values = Mapping[str, Any]
Listeners = Sequence[ListenerTable]


class NodeKeys(Protocol):
    """What is right by itself of a node's keys, and where they stand (`regions[0].nodes[1]`)."""

    @property
    def path(self) -> str:
        """Return where they stand."""
        ...

    @property
    def values(self) -> Values:
        """Return the keys."""
        ...


def listener_problems(
    listeners: Listeners, own: NodeKeys | None, nodes: Sequence[NodeKeys], *, listen_host: str
) -> Iterator[Problem]:
    """Yield where listeners are in each other's way, or nobody could be told where `nodes`, the region's, are met by them.

    `own`: the one of those that this file is for, None where that is not told.
    """
    yield from _names_twice(listeners)
    yield from _ports_twice(listeners, own, listen_host)
    if own is None:
        return
    yield from _told_otherwise(listeners, own)
    for listener in listeners:
        if {"name", "advertised"} <= listener.values.keys():
            yield from _not_met(listener, own, nodes)


def _names_twice(listeners: Listeners) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for each in listeners:
        name = each.values.get("name")
        if name is None:
            continue
        other = names.setdefault(name.lower(), each.path)
        if other != each.path:
            yield Problem(
                f"{each.path}.name = {name!r}", f"is that of {other}, too", "each has its own"
            )


def _ports_twice(listeners: Listeners, own: NodeKeys | None, listen_host: str) -> Iterator[Problem]:
    taken: list[tuple[str, str, int]] = []
    for key in _PORTS:
        if own is not None and key in own.values:
            host, port = split(own.values[key])
            taken.append((f"{key} = {own.values[key]!r}", listen_host or host, port))
    for each in listeners:
        bind = each.values.get("bind")
        if bind is None:
            continue
        host, port = split(bind)
        for what, other_host, other_port in taken:
            if port == other_port and _may_meet(host, other_host):
                wrong = f"is taken by {what}"
                yield Problem(f"{each.path}.bind = {bind!r}", wrong, "a port of its own")
                break
        taken.append((f"{each.path}.bind", host, port))


def _may_meet(host: str, other: str) -> bool:
    known = {same_host(host), same_host(other.removeprefix("[").removesuffix("]"))}
    return len(known) == 1 or bool(known & WILDCARDS)


def _told_otherwise(listeners: Listeners, own: NodeKeys) -> Iterator[Problem]:
    """Yield where the other nodes are told another address of this one than it tells itself."""
    if any("name" not in each.values for each in listeners):
        return
    known = {each.values["name"]: each for each in listeners}
    for name, address in own.values.get("advertised", {}).items():
        key = f"{own.path}.advertised.{name} = {address!r}"
        if name not in known:
            right = f"[[listeners]] of that name, or no such address{nearest(name, known)}"
            yield Problem(key, "is where this node is met by a listener that it has not", right)
            continue
        advertised = known[name].values.get("advertised", address)
        if advertised != address:
            wrong = f"is not {known[name].path}.advertised = {advertised!r}"
            yield Problem(key, wrong, "one address: clients hear of the one here, and of the other elsewhere")  # fmt: skip


def _not_met(
    listener: ListenerTable, own: NodeKeys, nodes: Sequence[NodeKeys]
) -> Iterator[Problem]:
    name = listener.values["name"]
    met = {_place(listener.values["advertised"]): f"{listener.path}.advertised"}
    for node in nodes:
        if node.path == own.path or "advertised" not in node.values:
            continue
        addresses: Mapping[str, str] = node.values["advertised"]
        key = f"{node.path}.advertised.{name}"
        if name not in addresses:
            yield Problem(
                key, f"is missing: who comes to this node by listener {name} could not be told where that node is met by it",
                f'advertised = {{ {name} = "host:port" }} at that node, which has such a listener; or no listener {name} here'
                + nearest(name, addresses),
            )  # fmt: skip
            continue
        other = met.setdefault(_place(addresses[name]), key)
        if other != key:
            yield Problem(
                f"{key} = {addresses[name]!r}", f"is that of {other}, too",
                "each node has its own: a client must reach the very node that it means, so it is no load balancer's",
            )  # fmt: skip


def _place(address: str) -> tuple[str, int]:
    """Return what is equal for addresses that lead to one place, however they are written."""
    host, port = split(address)
    return same_host(host), port
