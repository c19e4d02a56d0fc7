"""Whether a chain is sound: every record is there, once, in order, unchanged; and how far that can be known. Pure.

INV-AVF1  a chain is called sound only if each record has the hash of its bytes, the number behind the one before it and the hash of that
          one, the first is the beginning of a chain, or stands behind a head that was expected, and every expected head is in it
INV-AVF2  what is wrong is told at its first place, and looking goes on behind it
A chain alone cannot tell that its end was cut off, or that it was written anew from some record on: a head that was kept elsewhere can.
Not here: reading files and printing (`cli.audit`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from region_broker.security.audit.chain import NO_HEAD, Head, Link, NotALink, read_line
from region_broker.security.audit.chain_files import CONTINUED, OPENED, TORN
from region_broker.security.audit.events import Kind, Outcome

FINDINGS_MAX: Final = 100


class Finding(NamedTuple):
    """What is wrong, and where: `line` counts from one, 0 means none."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        """Return it as one line."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.what}" if place else self.what


@dataclass(slots=True)
class Report:
    """What was found. `notes`: what is no fault of the chain, and worth knowing."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    owner: Mapping[str, Any] | None = None
    first_seq: int = 0
    head: Head = NO_HEAD
    record_count: int = 0
    lost_count: int = 0

    @property
    def is_sound(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.findings


class Verifier:
    """Give it the lines of all files of one chain, in their order, then `end`."""

    def __init__(self, expected: Sequence[Head] = ()) -> None:
        """Hold the chain against heads that were kept elsewhere."""
        self.report = Report()
        self._expected = {head.seq: head.digest for head in expected}
        self._met: set[int] = set()
        self._open: dict[int, str] = {}
        self._follows: Head | None = None
        """What the next record stands behind; None where that cannot be known."""
        self._is_first = True

    def file(self, name: str, lines: Iterable[bytes]) -> None:
        """Look at the lines of a file, with their line feeds."""
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                self._find(
                    name, number,
                    f"it ends in the middle of a record ({len(line)} bytes): the node has ended there, and notes it when it is started"
                    " again; or somebody has cut it",
                )  # fmt: skip
                self._follows = None
                continue
            try:
                link = read_line(line[:-1])
            except NotALink as error:
                expected = "" if self._follows is None else f"record {self._follows.seq + 1}: "
                self._find(name, number, f"{expected}{error}")
                self._follows = None
                continue
            self._take(name, number, link)

    def end(self) -> Report:
        """Return what was found in all."""
        report = self.report
        if report.record_count == 0:
            self._find("", 0, "there is no record of an audit trail")
        for seq in sorted(self._expected.keys() - self._met):
            if seq > report.head.seq:
                what = f"record {seq} was there once, and the chain ends with record {report.head.seq}: its end was cut off"
                self._find("", 0, what)
            elif seq != report.first_seq - 1:
                self._find("", 0, f"record {seq}, which is expected, is not there")
        for seq, what in list(self._open.items())[:FINDINGS_MAX]:
            report.notes.append(f"record {seq} intends {what}, and no record says what came of it")
        if report.lost_count:
            report.notes.append(f"{report.lost_count} refusals, logins or steps were only counted")
        return report

    def _find(self, file: str, line: int, what: str) -> None:
        if len(self.report.findings) < FINDINGS_MAX:
            self.report.findings.append(Finding(file, line, what))

    def _take(self, file: str, line: int, link: Link) -> None:
        seq = link.head.seq
        if self._is_first:
            self._take_first(file, line, link)
        elif self._follows is None:
            if seq <= self.report.head.seq:
                self._find(file, line, f"record {seq} stands behind record {self.report.head.seq}")
        else:
            self._check_follows(file, line, link, self._follows)
        if self._expected.get(seq, link.head.digest) != link.head.digest:
            what = f"record {seq} has the hash {link.head.digest}, and {self._expected[seq]} is expected: the chain was written anew"
            self._find(file, line, what)
        if seq in self._expected:
            self._met.add(seq)
        self._follows = link.head
        self.report.head = link.head
        self.report.record_count += 1
        self._read(file, line, link)

    def _take_first(self, file: str, line: int, link: Link) -> None:
        self._is_first = False
        self.report.first_seq = seq = link.head.seq
        before = self._expected.get(seq - 1)
        if before is None and (seq, link.prev) != NO_HEAD_FOLLOWED:
            what = (
                f"the chain begins with record {seq}: what came before is not here (give its last head with --expect"
                f" {seq - 1}:{link.prev}, if that is what was kept)"
            )
            self._find(file, line, what)
        elif before is not None and link.prev != before:
            self._find(file, line, f"record {seq} does not stand behind the head that is expected")

    def _check_follows(self, file: str, line: int, link: Link, before: Head) -> None:
        seq = link.head.seq
        if seq > before.seq + 1:
            missing = (
                f"record {before.seq + 1} is"
                if seq == before.seq + 2
                else f"records {before.seq + 1} to {seq - 1} are"
            )
            self._find(file, line, f"{missing} missing before record {seq}")
        elif seq <= before.seq:
            self._find(file, line, f"record {seq} stands behind record {before.seq}")
        elif link.prev != before.digest:
            what = f"record {seq} does not follow the record {before.seq} that stands before it: one of the two is of another chain, or was changed"
            self._find(file, line, what)

    def _read(self, file: str, line: int, link: Link) -> None:
        """Look at what the trail says of itself, and at intents without an outcome."""
        fields, seq = link.fields, link.head.seq
        if fields.get("kind") == Kind.TRAIL:
            self._read_trail(file, line, seq, fields)
        elif fields.get("outcome") == Outcome.INTENDED:
            self._open[seq] = str(fields.get("operation"))
        self._open.pop(fields.get("answers", 0), None)

    def _read_trail(self, file: str, line: int, seq: int, fields: Mapping[str, Any]) -> None:
        report, details = self.report, fields.get("details") or {}
        operation = fields.get("operation")
        if operation in {OPENED, CONTINUED}:
            if report.owner is None:
                report.owner = details
            elif _whose(details) != _whose(report.owner):
                self._find(
                    file,
                    line,
                    f"record {seq} begins a file of another node's chain ({', '.join(map(str, _whose(details)))}):"
                    " each node has its own, so verify one at a time",
                )
            elif details.get("folder") != report.owner.get("folder"):
                report.notes.append(f"from record {seq} on the node has another data folder")
                report.owner = details
        elif operation == TORN and details.get("lines"):
            what = (
                f"before record {seq} a start found {details['bytes']} bytes with {details['lines']} line ends that were no records"
                f" (kept in {details['kept_in']}): a power loss may leave that, and so does a change by hand. Hold the chain against a"
                " head from before"
            )
            self._find(file, line, what)
        elif operation == TORN:
            report.notes.append(
                f"before record {seq} a crash left {details.get('bytes')} bytes of a record (kept in {details.get('kept_in')})"
            )
        elif operation == "lost":
            report.lost_count += sum(each for each in details.values() if isinstance(each, int))


NO_HEAD_FOLLOWED: Final = (1, NO_HEAD.digest)
"""Number and `prev` of the first record of a chain."""


def _whose(details: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(details.get(key) for key in ("cluster_id", "region", "node_id"))
