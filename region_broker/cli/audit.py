"""`tidemark audit`: the audit trail of a node, from its files: verify, list, tail, head.

INV-CLA1  what `verify` calls sound is sound by `security.audit.verifying`, of all files that were named, in the order of their names;
          whatever cannot be read is no sound chain
INV-CLA2  what names of clients hold never reaches a terminal as it is (`output.printable`); `-o json` prints the lines of the files
No node is asked, and no file is written: the trail of a node that is down, or of a copy elsewhere.
Not here: what a record says (docs/reference/security.md), how it came there (`security.audit.recorder`).
"""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_json,
    print_pairs,
    print_rows,
    printable,
)
from region_broker.ports.system.clock import SystemClock
from region_broker.security.audit.chain import Head, NotALink, read_line
from region_broker.security.audit.chain_files import FILE_SUFFIX, chain_names
from region_broker.security.audit.events import Kind, Outcome
from region_broker.security.audit.verifying import Report, Verifier

_LOOK_S: Final = 0.5
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PATHS: Final = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER|FILE..."
)


@click.group(
    epilog="""\b
Examples:
  tidemark audit list /srv/tidemark/audit --since 1h
  tidemark audit verify /srv/tidemark/audit
"""
)
def audit() -> None:
    """The audit trail of a node: who did what, from where, and what came of it.

    It lies in the folder `audit` of the data folder, or in `audit_dir`.
    """


@audit.command(
    epilog="""\b
Examples:
  tidemark audit verify /var/lib/tidemark/eu/audit
  tidemark audit verify /var/lib/tidemark/eu/audit --expect 1041:4f0c...9a
""",
)
@_PATHS
@click.option(
    "--expect",
    "expected",
    multiple=True,
    metavar="SEQ:HASH",
    help="A head that was kept elsewhere, as `audit head` and the node's log tell it; may be given several times.",
)
@output_option
def verify(paths: tuple[Path, ...], expected: tuple[str, ...], output: str) -> None:
    """Say whether the chain is whole and unchanged: exit code 0, or 1 with what is wrong.

    Without --expect nobody can tell that its end was cut off, or that all of it was written anew.
    """
    try:
        heads = [Head.parse(text) for text in expected]
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    verifier = Verifier(heads)
    for file in files_of(paths):
        verifier.file(file.name, lines_of(file))
    report = verifier.end()
    if output == "json":
        print_json(_as_json(report))
    else:
        _tell(report, anchored=bool(heads))
    if not report.is_sound:
        raise SystemExit(EXIT_FAILED)


@audit.command(
    "list",
    epilog="""\b
Examples:
  tidemark audit list ./audit --since 2h
  tidemark audit list ./audit --principal User:alice --operation CreateTopic -o json
  tidemark audit list ./audit --kind login --outcome refused
""",
)
@_PATHS
@click.option("--since", help="A time as 2026-11-26T12:00:00Z, or how long ago: 90s, 15m, 2h, 7d.")
@click.option("--principal", help="Who, as User:alice.")
@click.option("--operation", help="What, as CreateTopic; the case of letters does not count.")
@click.option("--kind", type=click.Choice([each.value for each in Kind]), help="What it is of.")
@click.option(
    "--outcome", type=click.Choice([each.value for each in Outcome]), help="How it ended."
)
@click.option("--limit", type=click.IntRange(1), help="The last ones only.")
@output_option
def list_records(
    paths: tuple[Path, ...], since: str | None, principal: str | None, operation: str | None,
    kind: str | None, outcome: str | None, limit: int | None, output: str,
) -> None:  # fmt: skip
    """Print records, the oldest first; -o json: as they lie in the file, one a line. It does not verify."""
    since_ms = None if since is None else _since_ms(since)
    wanted = {"principal": principal, "kind": kind, "outcome": outcome}

    def is_wanted(found: Mapping[str, Any]) -> bool:
        if since_ms is not None and int(found.get("at_ms", 0)) < since_ms:
            return False
        if operation is not None and str(found.get("operation", "")).lower() != operation.lower():
            return False
        return all(value is None or found.get(key) == value for key, value in wanted.items())

    chosen = ((line, found) for line, found in _records(paths) if is_wanted(found))
    _print(chosen if limit is None else deque(chosen, maxlen=limit), output)


@audit.command(
    epilog="""\b
Examples:
  tidemark audit tail ./audit
  tidemark audit tail ./audit --follow -o json >> /mnt/elsewhere/audit.jsonl
""",
)
@_PATHS
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="So many of the last ones.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@output_option
def tail(paths: tuple[Path, ...], count: int, follow: bool, output: str) -> None:
    """Print the last records, and with --follow those that come."""
    last: deque[tuple[bytes, Mapping[str, Any]]] = deque(_records(paths), maxlen=max(count, 1))
    after = last[-1][1]["seq"] if last else 0
    _print(last if count else [], output)
    with suppress(KeyboardInterrupt):  # which is how it is meant to end
        while follow:
            time.sleep(_LOOK_S)  # a file is looked at again: nobody tells of it
            news = [(line, found) for line, found in _records(paths, after) if found["seq"] > after]
            if news:
                after = news[-1][1]["seq"]
                _print(news, output, with_head=False)


@audit.command(epilog="Example: tidemark audit head ./audit >> /mnt/elsewhere/heads")
@_PATHS
def head(paths: tuple[Path, ...]) -> None:
    """Print the last record's SEQ:HASH, to be kept where who may write the trail cannot: `verify --expect` takes it."""
    last: bytes | None = None
    for line, _ in _records(paths):
        last = line
    if last is None:
        fail("there is no record", EXIT_NOT_FOUND)
    click.echo(str(read_line(last).head))


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files of the chain that paths name: of a folder all of them, in their order."""
    files: list[Path] = []
    for path in paths:
        folder = path / "audit" if (path / "audit").is_dir() and path.is_dir() else path
        if folder.is_dir():
            files += [
                folder / name for name in chain_names([each.name for each in folder.iterdir()])
            ]
        elif path.is_file():
            files.append(path)
        else:
            fail(f"there is no file or folder {path}", EXIT_NOT_FOUND)
    if not files:
        fail(f"no file audit-*{FILE_SUFFIX} is in {', '.join(map(str, paths))}", EXIT_NOT_FOUND)
    return sorted(files, key=lambda file: file.name)


def lines_of(file: Path) -> Iterator[bytes]:
    """Return the lines of a file, with their line feeds; ends the command where it cannot be read."""
    try:
        with file.open("rb") as opened:
            yield from opened
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror or error}")


def _records(paths: Sequence[Path], after: int = 0) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Return records as lines and as fields; what is none is left to `verify`. `after`: only files that may hold later ones are read."""
    files = files_of(paths)
    for file in files[-2:] if after else files:
        for line in lines_of(file):
            try:
                link = read_line(line.rstrip(b"\n"))
            except NotALink:
                continue
            fields = {"seq": link.head.seq, **link.fields}
            yield line.rstrip(b"\n"), fields


def _print(
    rows: Iterator[tuple[bytes, Mapping[str, Any]]] | Sequence[tuple[bytes, Mapping[str, Any]]] | deque[tuple[bytes, Mapping[str, Any]]],
    output: str, *, with_head: bool = True,
) -> None:  # fmt: skip
    if output == "json":
        for line, _ in rows:
            click.echo(line.decode("ascii"))
        return
    shown = [_row(fields) for _, fields in rows]
    if with_head:
        print_rows(shown, output, title="audit records")
        return
    for row in shown:
        click.echo("  ".join(printable(value) for value in row.values() if value != ""))


def _row(fields: Mapping[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(int(fields.get("at_ms", 0)) / 1000, UTC)
    times = fields.get("count", 1)
    what = " ".join(
        part
        for part in (str(fields.get("resource_type", "")), str(fields.get("resource", "")))
        if part
    )
    details = fields.get("details")
    return {
        "seq": fields["seq"],
        "time": at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}Z",
        "who": fields.get("principal", ""),
        "from": fields.get("host", ""),
        "operation": fields.get("operation", ""),
        "on": what,
        "outcome": f"{fields.get('outcome', '')}{f' x{times}' if times != 1 else ''}",
        "reason": fields.get("reason", ""),
        "details": json.dumps(details) if details else "",
    }


def _since_ms(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if number.isascii() and number.isdigit() and unit in _UNITS:
        return SystemClock().wall_ms() - int(number) * _UNITS[unit] * 1_000
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"--since {text!r} is neither a time nor as long ago as 90s, 15m, 2h or 7d",
            EXIT_USAGE,
        )
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "sound": report.is_sound,
        "records": report.record_count,
        "first": report.first_seq,
        "head": str(report.head),
        "owner": report.owner,
        "findings": [finding._asdict() for finding in report.findings],
        "notes": report.notes,
    }


def _tell(report: Report, *, anchored: bool) -> None:
    for finding in report.findings:
        click.echo(f"WRONG  {printable(finding)}")
    for note in report.notes:
        click.echo(f"note   {printable(note)}")
    owner = report.owner or {}
    whose = f"node {owner.get('node_id')} of region {owner.get('region')}, cluster {owner.get('cluster_id')}"
    print_pairs(
        "the chain is sound" if report.is_sound else "THE CHAIN IS NOT SOUND",
        [
            ("records", report.record_count),
            ("of", whose),
            ("head", str(report.head)),
        ],
    )
    if report.is_sound and not anchored:
        click.echo(
            "  Whether its end was cut off, or all of it written anew, shows only against a head that was kept elsewhere: --expect SEQ:HASH"
        )
