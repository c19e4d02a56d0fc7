"""Names that users may have stored, beside what they are called today: the former ones are understood, or offered too.

INV-FMN1  a configuration with a former key means the same; both keys at once are refused
INV-FMN2  what a dashboard or a script reads under a former name is there with the value of today's name
Not here: names in files and between regions, which never change (ADR 40).
"""

from collections.abc import Mapping
from typing import Any, Final

CONFIG_KEYS: Final = {"home_region": "initial_primary_region"}
"""Former keys of the configuration, and today's."""

METRICS: Final = {"tidemark_region_primary_silent_ms": "tidemark_region_home_silent_ms"}
"""Today's metrics, and their former names, offered beside them."""

REGION_FIELDS: Final = {"primary_region": "acting_region"}
LINK_FIELDS: Final = {"primary": "home"}
"""Today's fields of `GET /v1/region`, and of its `lag`, and their former names."""


def with_former_fields(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a region says of itself with former names beside today's (INV-FMN2)."""
    both = dict(view) | _former(view, REGION_FIELDS)
    return both | {"lag": dict(view["lag"]) | _former(view["lag"], LINK_FIELDS)}


def _former(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {former: fields[name] for name, former in names.items() if name in fields}
