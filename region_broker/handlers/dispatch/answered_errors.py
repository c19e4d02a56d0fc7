"""Which error codes an answer carries, for the counters: found in the answer's fields, whatever the API.

An answer without errors costs one look at each of its rows, none at records.
Not here: choosing an error (each API's file), counting (`region_broker.metrics`).
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

ROWS_MAX = 2_000
"""Rows looked at in one answer (about 1 us each); what lies beyond is not counted."""


def error_names(fields: Mapping[str, Any]) -> list[str]:
    """Return the name of every error code other than none in `fields`, once per occurrence."""
    found: list[str] = []
    left = ROWS_MAX
    waiting: list[Mapping[str, Any]] = [fields]
    while waiting and left:
        left -= 1
        row = waiting.pop()
        for key, value in row.items():
            if key.endswith("error_code"):
                if value:
                    found.append(_name(value))
            elif isinstance(value, list | tuple):
                waiting.extend(islice(_rows(value), left))
    return found


def any_without_error(fields: Mapping[str, Any]) -> bool:
    """Return whether one of the rows that have no rows of their own has an error code, and that is none."""
    waiting: list[Mapping[str, Any]] = [fields]
    while waiting:
        row = waiting.pop()
        below = [each for value in row.values() if isinstance(value, list | tuple) for each in _rows(value)]  # fmt: skip
        waiting.extend(below)
        codes = [value for key, value in row.items() if key.endswith("error_code")]
        if not below and codes and not any(codes):
            return True
    return False


def _rows(values: list[Any] | tuple[Any, ...]) -> Iterator[Mapping[str, Any]]:
    if values and isinstance(values[0], Mapping):
        yield from values


def _name(code: Any) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(int(code))
