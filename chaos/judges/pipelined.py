"""The judge of producers with several requests in flight: values "<name>/<producer id>/<epoch> <number>", or of
transactions "<name> <number>".

JPL1  what a producer id wrote in one epoch follows its sequences from 0: nothing twice, nothing out of order; a gap of
      what was acknowledged only where an operator's word let a region act that lacked it, one at most each time. What
      was never acknowledged may be missing: a region that took over, by a switch, too, accepts one gap (T22)
JPL2  in a partition the epochs of a producer id never go back
JPL3  what was refused each time that it was sent is not there
JPL4  the first copies of a producer's numbers rise, over all of its epochs
JPL5  of a transaction all is there, or nothing; nothing of one that was not committed

What `chaos.judges.numbered` says holds as well. A number may be there in two epochs: a client that takes its next epoch
by itself sends again what may be in the log.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from chaos.history import Outcome
from chaos.judges.excuse import Excuse
from chaos.judges.numbered import NumberedHistory, judge_numbered
from chaos.story import Place, Sighting


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a transaction wrote: (partition, value) each."""

    name: str
    outcome: Outcome
    written: frozenset[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class PipelinedHistory:
    """One topic of one run. `final`: region -> all that is there at the end; `sent`: (partition, writer) -> number by
    sequence; `refused`: (partition, value) of what was refused whenever it was sent; `words`: how many an operator gave."""

    acked: Sequence[Sighting]
    final: Mapping[str, frozenset[Place]]
    sent: Mapping[tuple[int, str], Mapping[int, int]]
    refused: Set[tuple[int, str]]
    transactions: Sequence[Transaction]
    words: int = 0


def judge_pipelined(run: PipelinedHistory, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    found = judge_numbered(NumberedHistory(run.acked, run.final), excuse)
    for region, places in run.final.items():
        for partition, line in _lines(places):
            where = f"partition {partition} of {region}"
            found += (f"{text} in {where}" for text in _gaps(run, partition, line))
            found += (f"{text} in {where}" for text in _older_epochs(line))
            found += (f"{text} in {where}" for text in _disorder(line))
        there = {(each.partition, each.value) for each in places}
        found += (
            f"{value} was refused and is in partition {partition} of {region}"
            for partition, value in sorted(run.refused & there)
        )
        found += (f"{text} at {region}" for each in run.transactions for text in _torn(each, there))
    return found


@dataclass(frozen=True, slots=True)
class _Seen:
    writer: str
    number: int

    @property
    def name(self) -> str:
        return self.writer.split("/")[0]


def _lines(places: frozenset[Place]) -> Iterator[tuple[int, Sequence[_Seen]]]:
    """Return the log of each partition."""
    lines: dict[int, list[_Seen]] = defaultdict(list)
    for place in sorted(places):
        writer, number = place.value.rsplit(" ", 1)
        lines[place.partition].append(_Seen(writer, int(number)))
    yield from sorted(lines.items())


def _gaps(run: PipelinedHistory, partition: int, line: Sequence[_Seen]) -> Iterator[str]:
    """JPL1."""
    gaps: Counter[str] = Counter()
    expected: dict[str, int] = {}
    sequences = {
        writer: {number: sequence for sequence, number in sent.items()}
        for (where, writer), sent in run.sent.items()
        if where == partition
    }
    acked = {(said.place.partition, said.place.value) for said in run.acked}
    for each in line:
        if each.writer not in sequences:
            continue
        sent = run.sent[partition, each.writer]
        ahead = expected.get(each.writer, 0)
        sequence = sequences[each.writer].get(each.number, -1)
        producer = each.writer.rsplit("/", 1)[0]
        behind = [sent.get(n) for n in range(ahead, sequence)]
        gaps[producer] += any((partition, f"{each.writer} {number}") in acked for number in behind)
        if sequence < ahead or gaps[producer] > run.words:
            yield f"{each.writer} {each.number} has sequence {sequence} for {ahead}, without {behind}"
        expected[each.writer] = sequence + 1


def _older_epochs(line: Sequence[_Seen]) -> Iterator[str]:
    """JPL2."""
    newest: dict[str, int] = {}
    for each in line:
        if "/" in each.writer:
            producer, epoch = each.writer.rsplit("/", 1)
            if int(epoch) < newest.get(producer, -1):
                yield f"{each.writer} {each.number} stands behind epoch {newest[producer]}"
            newest[producer] = max(newest.get(producer, -1), int(epoch))


def _disorder(line: Sequence[_Seen]) -> Iterator[str]:
    """JPL4."""
    firsts: dict[str, dict[int, None]] = defaultdict(dict)
    for each in line:
        firsts[each.name].setdefault(each.number)
    for name, numbers in firsts.items():
        for before, after in pairwise(numbers):
            if after < before:
                yield f"{name} {after} stands behind {before}"


def _torn(transaction: Transaction, there: Set[tuple[int, str]]) -> Iterator[str]:
    """JPL5."""
    shown = transaction.written & there
    if shown and transaction.outcome is Outcome.NOT_COMMITTED:
        yield f"{transaction.name} was not committed, and shows {sorted(shown)}"
    elif shown and shown != transaction.written:
        yield f"{transaction.name} lacks {sorted(transaction.written - shown)}"
