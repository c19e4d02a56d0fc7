"""The chain against a verifier that knows only the reference, and against each way to tamper with it (INV-ACH1, INV-AVF1)."""

import hashlib
import json
import re
import string

import pytest

from region_broker.security.audit.chain import NO_HEAD, Head, NotALink, make_line, read_line
from region_broker.security.audit.chain_files import TORN, trail_fields
from tests.simulation.disk import SimulatedDisk
from tests.unit.region_broker.security.audit.chains import (
    OWNER,
    is_sound_by_hand,
    lines_on,
    opened,
    record,
    verified,
    verified_on,
)


def chain_of(count: int) -> list[bytes]:
    disk = SimulatedDisk()
    chain = opened(disk)
    chain.write([record(f"op{number}") for number in range(count)], 5)
    return lines_on(disk)


def head_of(lines: list[bytes]) -> Head:
    return read_line(lines[-1].rstrip(b"\n")).head


def findings(lines: list[bytes], *expected: Head) -> str:
    return "\n".join(map(str, verified(lines, *expected).findings))


def test_a_chain_is_sound_by_the_reference_and_by_ours() -> None:
    """INV-ACH1."""
    lines = chain_of(10)
    assert len(lines) == 11
    assert is_sound_by_hand(lines)
    report = verified(lines)
    assert report.is_sound, report.findings
    assert (report.record_count, report.first_seq, report.head) == (11, 1, head_of(lines))
    assert report.owner is not None
    assert (report.owner["region"], report.owner["folder"]) == ("eu", OWNER.folder)


def test_an_edited_record_is_found_at_its_line() -> None:
    lines = chain_of(10)
    lines[4] = lines[4].replace(b"op3", b"op7")
    assert not is_sound_by_hand(lines)
    assert re.search(r"^a:5: record 5: its hash is not that of its bytes", findings(lines))
    assert findings(lines).count("\n") == 0, "INV-AVF2: at its first place, and nowhere else"


def test_an_edited_record_with_a_hash_of_its_own_is_found_at_the_next_one() -> None:
    lines = chain_of(10)
    before = read_line(lines[3].rstrip(b"\n")).head
    lines[4], _ = make_line(before, record("op7"))
    assert not is_sound_by_hand(lines)
    assert "record 6 does not follow the record 5" in findings(lines)


@pytest.mark.parametrize("at", [0, 1, 5, 9])
def test_a_deleted_record_is_missing(at: int) -> None:
    lines = chain_of(10)
    del lines[at]
    assert not is_sound_by_hand(lines)
    expected = "begins with record 2" if at == 0 else f"record {at + 1} is missing"
    assert expected in findings(lines)


def test_moved_and_doubled_records_are_found() -> None:
    """INV-AVF2: at the first place, and behind it."""
    lines = chain_of(10)
    lines[4], lines[5] = lines[5], lines[4]
    assert "record 5 is missing before record 6" in findings(lines)
    assert "record 5 stands behind record 6" in findings(lines)
    doubled = chain_of(3)
    doubled.insert(2, doubled[1])
    assert "record 2 stands behind record 2" in findings(doubled)


def test_a_cut_tail_shows_against_a_head_only() -> None:
    """INV-AVF1: without one it cannot show, and that is said by the command."""
    lines = chain_of(10)
    head = head_of(lines)
    cut = lines[:-2]
    assert verified(cut).is_sound
    for some in (cut, lines[:-1]):
        assert "its end was cut off" in findings(some, head)
    assert verified(lines, head).is_sound
    half = [*lines[:-1], lines[-1][:20]]
    assert "ends in the middle of a record" in findings(half)


def test_a_chain_that_was_written_anew_shows_against_a_head_only() -> None:
    lines = chain_of(10)
    kept = read_line(lines[6].rstrip(b"\n")).head
    forged, head = lines[:3], read_line(lines[2].rstrip(b"\n")).head
    for number in range(8):
        line, head = make_line(head, record(f"forged{number}"))
        forged.append(line)
    assert is_sound_by_hand(forged)
    assert verified(forged).is_sound
    assert "the chain was written anew" in findings(forged, kept)


def test_spliced_files_of_two_chains_are_found() -> None:
    mine, theirs = SimulatedDisk(), SimulatedDisk()
    for disk, owner in ((mine, OWNER), (theirs, OWNER.__class__("world", "us", 2, "cd" * 16))):
        chain = opened(disk, owner)
        chain.write([record(f"op{number}") for number in range(5)], 5)
    spliced = lines_on(mine)[:4] + lines_on(theirs)[4:]
    assert "record 5 does not follow the record 4" in findings(spliced)
    both = lines_on(mine) + lines_on(theirs)
    assert "record 1 stands behind record 6" in findings(both)
    assert "begins a file of another node's chain" in findings(both)


def test_behind_a_broken_line_records_do_not_go_back() -> None:
    """INV-AVF2."""
    lines = chain_of(5)
    again = [*lines[:3], b"broken\n", lines[1]]
    assert "a:5: record 2 stands behind record 3" in findings(again)
    kept = read_line(lines[3].rstrip(b"\n")).head
    broken = [*lines[:3], b"broken\n", *lines[4:]]
    assert "record 4, which is expected, is not there" in findings(broken, kept)


def test_a_first_record_that_follows_something_is_no_beginning() -> None:
    line, head = make_line(Head(0, "f" * 64), record("op"))
    assert head.seq == 1
    assert "begins with record 1: what came before is not here" in findings([line])
    early, _ = make_line(Head(-1, "f" * 64), record("op"))
    with pytest.raises(NotALink, match="seq or prev"):
        read_line(early[:-1])


@pytest.mark.parametrize(("line_count", "is_sound"), [(0, True), (1, False)])
def test_whole_lines_that_were_no_records_are_a_finding(line_count: int, is_sound: bool) -> None:
    """A crash cuts a record; lines that end were written by somebody, or lost by the disk."""
    disk = SimulatedDisk()
    details = {"bytes": 10, "lines": line_count, "kept_in": "torn-1.bin"}
    opened(disk).write([trail_fields(5, "eu/1", TORN, details)], 5)
    report = verified_on(disk)
    assert report.is_sound is is_sound
    assert "torn-1.bin" in str(report.findings or report.notes)


def test_a_missing_first_part_is_right_behind_its_head() -> None:
    lines = chain_of(10)
    anchor = read_line(lines[3].rstrip(b"\n")).head
    assert not verified(lines[4:]).is_sound
    assert verified(lines[4:], anchor).is_sound
    other = Head(anchor.seq, "0" * 64)
    assert "does not stand behind the head" in findings(lines[4:], other)


def test_nothing_is_no_chain() -> None:
    assert not verified([]).is_sound
    assert "no JSON" not in findings([b"{}\n"])
    assert "does not end with a hash" in findings([b"{}\n"])


def test_names_begin_no_line_and_speak_to_no_terminal() -> None:
    """INV-ACH2: line feeds, escapes, DEL, C1 controls, other line ends, directions, halves of surrogates."""
    name = 'a\n{"seq":9}\r\x1b[31m\x00\x7f\x85\u2028\u202e\ud800"\\é'
    line, _ = make_line(NO_HEAD, record("login", principal=name))
    assert set(line[:-1].decode()) <= set(string.printable) - set("\t\n\r\x0b\x0c")
    assert line.count(b"\n") == 1
    assert json.loads(line)["principal"] == name
    assert read_line(line[:-1]).fields["principal"] == name


def test_a_line_that_no_parser_goes_through_is_a_finding() -> None:
    """Whoever writes the file can give it a hash that is right."""
    deep = b'{"seq":2,"prev":' + b"[" * 200_000
    digest = hashlib.sha256(b"tidemark-audit-1\0" + deep).hexdigest().encode()
    lines = [*chain_of(0), deep + b',"hash":"' + digest + b'"}\n', *chain_of(0)]
    assert "it is no JSON object with seq, prev and hash" in findings(lines)


def test_heads_are_read_as_they_are_told() -> None:
    head = Head(17, "ab" * 32)
    assert Head.parse(f" {head}\n") == head
    for wrong in ("", "17", "x:" + "a" * 64, "1:ab", "-1:" + "a" * 64, "1:" + "g" * 64):
        with pytest.raises(ValueError, match="SEQ:HASH"):
            Head.parse(wrong)


def test_intents_without_an_outcome_are_told() -> None:
    disk = SimulatedDisk()
    chain = opened(disk)
    [first] = chain.write([record("CreateTopic", outcome="intended")], 5)
    [second] = chain.write([record("DeleteTopic", outcome="intended")], 5)
    chain.write([record("CreateTopic", answers=first)], 5)
    report = verified_on(disk)
    assert report.is_sound
    assert report.notes == [
        f"record {second} intends DeleteTopic, and no record says what came of it"
    ]
