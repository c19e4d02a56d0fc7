"""What the keys of a configuration must be together.

A relation is looked at where all of its keys are right by themselves: nothing is told twice.

Pure. Each relation takes the values that are right and yields the problems.
Not here: what one value may be (`config.rules`), which keys there are (`config`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from region_broker.config.rules import Problem, split
from region_broker.controller.near_words import nearest

REGION_COUNT_MAX: Final = 8
PORTS: Final = ("kafka", "peer", "http")

Values = Mapping[str, Any]
Regions = Sequence[Values]
"""The keys of each region that are right by themselves."""


def problems_together(values: Values, regions: Regions) -> Iterator[Problem]:
    """Yield what contradicts another key."""
    for relation in _OF_NODE:
        yield from relation(values)
    if regions:
        yield from _regions_told(values, regions)
        for key in ("name", "ordinal", "node_id"):
            yield from _unique(regions, key)
        yield from _addresses(regions)
        yield from _own_ports(values, regions)


def _heartbeat(values: Values) -> Iterator[Problem]:
    heartbeat_ms = values.get("group_consumer_heartbeat_interval_ms")
    session_ms = values.get("group_consumer_session_timeout_ms")
    if heartbeat_ms is not None and session_ms is not None and heartbeat_ms >= session_ms:
        yield Problem(
            f"group_consumer_heartbeat_interval_ms = {heartbeat_ms}",
            f"is not below group_consumer_session_timeout_ms = {session_ms}",
            "a member must be heard in time: at most a third of the session is usual",
        )


def _whole_wait(values: Values) -> Iterator[Problem]:
    wait_ms, interval_ms = values.get("mirror_whole_wait_ms"), values.get("tidemark_interval_ms")
    if wait_ms is not None and interval_ms is not None and 0 < wait_ms < interval_ms:
        yield Problem(
            f"mirror_whole_wait_ms = {wait_ms}",
            f"is below tidemark_interval_ms = {interval_ms}",
            "a wait that ends before the next tidemark can come is none: more, or 0 for no wait, -1 for ever",
        )


_OF_NODE: Final[tuple[Callable[[Values], Iterator[Problem]], ...]] = (_heartbeat, _whole_wait)


def _regions_told(values: Values, regions: Regions) -> Iterator[Problem]:
    if len(regions) > REGION_COUNT_MAX:
        yield Problem(
            "regions",
            f"are {len(regions)}",
            f"at most {REGION_COUNT_MAX}, as many as there are ordinals",
        )
    if not all("name" in region for region in regions):
        return
    names = [region["name"] for region in regions]
    for key in ("region", "initial_primary_region"):
        value = values.get(key)
        if value is not None and value not in names:
            yield Problem(
                f"{key} = {value!r}",
                "is none of the regions",
                f"one of {', '.join(names)}{nearest(value, names)}",
            )


def _unique(regions: Regions, key: str) -> Iterator[Problem]:
    first: dict[Any, int] = {}
    for at, region in enumerate(regions):
        if key not in region:
            continue
        value = region[key]
        same = value.lower() if isinstance(value, str) else value  # some file systems know no case
        if same in first:
            yield Problem(
                f"regions[{at}].{key} = {value!r}",
                f"is that of regions[{first[same]}], too",
                "each region has its own",
            )
        else:
            first[same] = at


def _addresses(regions: Regions) -> Iterator[Problem]:
    first: dict[tuple[str, int], str] = {}
    for at, region in enumerate(regions):
        for key in PORTS:
            if key not in region:
                continue
            host, port = split(region[key])
            place, name = (_same(host), port), f"regions[{at}].{key}"
            if place in first:
                yield Problem(
                    f"{name} = {region[key]!r}",
                    f"is the address of {first[place]}, too",
                    "each port of each region has an address of its own",
                )
            else:
                first[place] = name


def _same(host: str) -> str:
    """Return what is equal for hosts that are known to be the same."""
    if host.lower().rstrip(".") == "localhost":
        return "127.0.0.1"
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")


def _own_ports(values: Values, regions: Regions) -> Iterator[Problem]:
    """Where one host is bound for all, the three ports of this region must differ by themselves."""
    if not values.get("listen_host"):
        return
    own = next((region for region in regions if region.get("name") == values.get("region")), None)
    first: dict[int, tuple[str, str]] = {}
    for key in PORTS if own is not None else ():
        if own is None or key not in own:
            continue
        host, port = split(own[key])
        other_key, other_host = first.setdefault(port, (key, host))
        if other_key != key and _same(other_host) != _same(host):  # else `_addresses` has told it
            yield Problem(
                f"{key} of region {own['name']}",
                f"has port {port}, as {other_key} has",
                f"another port: all three are bound on listen_host = {values['listen_host']!r}",
            )
