"""What is looked at: instances of the model by name, small for every test run and large by command; and its mutants.

A mutant leaves one rule out, as a plausible implementation would; its `hole` is the one in `tidemarks.md` that it digs
again. It must break `breaks` and nothing else first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.model import adoption, compaction, deletions, groups, mirror, takeover, topics
from tests.model.explore import Instance
from tests.model.primary import Primary
from tests.model.primary_states import Size, Txn

Made = Callable[[frozenset[str]], Instance[Any]]


@dataclass(frozen=True, slots=True)
class Named:
    """One instance: what is in it, and how it is made."""

    name: str
    text: str
    small: Made
    large: Made
    liveness: bool = True
    """Whether something good can be reached from every state of it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is left out of an instance, and the invariant that it breaks; its name begins with the rule."""

    name: str
    instance: str
    breaks: str
    hole: str = ""

    @property
    def rule(self) -> str:
        """Return the rule that is left out."""
        return self.name.split(maxsplit=1)[0]


def _primary(size: Size) -> Made:
    return lambda mutants: Primary(size, mutants)


def _takeover(size: takeover.Size) -> Made:
    return lambda mutants: takeover.Takeover(size, mutants)


def _mirror(size: mirror.Size) -> Made:
    return lambda mutants: mirror.Mirror(size, mutants)


def _adoption(size: adoption.Size) -> Made:
    return lambda mutants: adoption.Adoption(size, mutants)


def _compaction(size: compaction.Size) -> Made:
    return lambda mutants: compaction.Compaction(size, mutants)


def _deletions(size: deletions.Size) -> Made:
    return lambda mutants: deletions.Deletions(size, mutants)


def _topics(size: topics.Size) -> Made:
    return lambda mutants: topics.Topics(size, mutants)


def _groups(size: groups.Size) -> Made:
    return lambda mutants: groups.Groups(size, mutants)


THREE: Final = ((0, 1), (1,), (0, 1))
OLD_PROTOCOL: Final = (mirror.Txn(1, writes=(0,)), mirror.Txn(1, writes=(1,)))
ONE_LOG: Final = (Txn(0, (0,)), Txn(1, (0,)))
INSTANCES: Final = {
    each.name: each
    for each in (
        Named(
            "rounds",
            "two shards, two partitions, two transactions of which the smaller one may abort, one round",
            _primary(Size(txns=(Txn(0), Txn(1, (0,), aborts=True)))),
            _primary(Size(txns=(Txn(0), Txn(1, (0,), aborts=True)), rounds=2)),
        ),
        Named(
            "two rounds",
            "the same with one partition, and a second round",
            _primary(Size(txns=ONE_LOG, partitions=1, rounds=2)),
            _primary(Size(txns=(*ONE_LOG, Txn(1, (0,))), partitions=1, rounds=2)),
        ),
        Named(
            "shard crash",
            "a ledger shard loses what was not durable, and is loaded again",
            _primary(Size(txns=ONE_LOG, partitions=1, crashes=1)),
            _primary(Size(crashes=2)),
        ),
        Named(
            "shard death",
            "a ledger shard dies for ever",
            _primary(Size(txns=ONE_LOG, partitions=1, deaths=1)),
            _primary(Size(deaths=1, rounds=2)),
        ),
        Named(
            "cut leaders",
            "a second cut leader, while the first one goes on",
            _primary(Size(txns=(Txn(0, (0,)),), partitions=1, terms=2)),
            _primary(Size(txns=ONE_LOG, partitions=1, terms=2)),
        ),
        Named(
            "partition leaders",
            "a lagging high watermark, a new partition leader beside the deposed one, a partition made late",
            _primary(Size(txns=(Txn(0),), elections=1, lags=True, grows=True)),
            _primary(Size(txns=(Txn(0), Txn(1, (0,))), elections=1, lags=True, grows=True)),
        ),
        Named(
            "takeover",
            "three regions, two records, one takeover by any of them, slow and unheard ones, returns",
            _takeover(takeover.Size(writes=2, takeovers=1)),
            _takeover(takeover.Size(writes=3, takeovers=1)),
        ),
        Named(
            "two candidates",
            "three regions, one record, two takeovers that may cross each other",
            _takeover(takeover.Size(writes=1, takeovers=2)),
            _takeover(takeover.Size(writes=2, takeovers=2)),
        ),
        Named(
            "takeover in steps",
            "three regions, one record, a region that may crash while it cuts its logs",
            _takeover(takeover.Size(writes=1, takeovers=1, steps=True)),
            _takeover(takeover.Size(writes=1, takeovers=2, steps=True)),
        ),
        Named(
            "planned switch",
            "three regions, one record, a planned switch to one of them that a takeover by any of them may cross",
            _takeover(takeover.Size(writes=1, takeovers=1, switches=1, switched_to=2)),
            _takeover(takeover.Size(writes=2, takeovers=1, switches=1)),
            liveness=False,
        ),
        Named(
            "mirror",
            "two partitions, a transaction over both and one in front of it, two tidemarks, a mirror that copies",
            _mirror(mirror.Size(txns=(mirror.Txn(1), mirror.Txn(2, writes=(1,))))),
            _mirror(mirror.Size(txns=(mirror.Txn(1), mirror.Txn(2, writes=(1, 0))))),
        ),
        Named(
            "mirror crash",
            "a mirror loses what was not durable of a partition, and shows again what it had reached",
            _mirror(mirror.Size(txns=(mirror.Txn(1, aborts=True),), tidemarks=2, crashes=1)),
            _mirror(mirror.Size(txns=(mirror.Txn(1), mirror.Txn(1, 1, (1,))), crashes=1)),
        ),
        Named(
            "mirror start",
            "a crash of a mirror, and two transactions of the old protocol that nothing tells apart, in a log each",
            _mirror(mirror.Size(txns=OLD_PROTOCOL, tidemarks=2, crashes=1)),
            _mirror(mirror.Size(txns=(*OLD_PROTOCOL, mirror.Txn(2)), crashes=2)),
        ),
        Named(
            "closed in vain",
            "a round that was closed and never published, between tidemarks that name what moved",
            _mirror(mirror.Size(txns=(mirror.Txn(1),), tidemarks=2, abandoned=1)),
            _mirror(mirror.Size(txns=(mirror.Txn(1), mirror.Txn(2, writes=(1,))), abandoned=1)),
        ),
        Named(
            "adoption",
            "two transactions of a producer of the old protocol, a cut at any moment, a failover candidate that crashes once",
            _adoption(adoption.Size(tv=1, crashes=1)),
            _adoption(adoption.Size(tv=1, writes=THREE, crashes=2)),
        ),
        Named(
            "adoption of transactions v2",
            "the same with a producer whose epoch moves on with each transaction",
            _adoption(adoption.Size(tv=2, crashes=1)),
            _adoption(adoption.Size(tv=2, writes=THREE, crashes=2)),
        ),
        Named(
            "compaction",
            "a key that is written twice and deleted, a mirror that loses its folder",
            _compaction(compaction.Size(writes=3, losses=1)),
            _compaction(compaction.Size(writes=4, losses=2)),
        ),
        Named(
            "compaction for two",
            "the same with two mirrors, which lag and report late, and lose nothing",
            _compaction(compaction.Size(writes=3, mirrors=2)),
            _compaction(compaction.Size(writes=4, mirrors=2, losses=1)),
        ),
        Named(
            "deletions",
            "three records, two of them deleted by order, two tidemarks, a takeover, and the lost region's return",
            _deletions(deletions.Size()),
            _deletions(deletions.Size(records=5, tidemarks=3, deletions=3)),
        ),
        Named(
            "groups",
            "two records in each of two regions, a group with a member in each, a new region that starts again",
            _groups(groups.Size()),
            _groups(groups.Size(writes=4, crashes=2)),
        ),
        Named(
            "topics",
            "a topic that is made and grows, another one that is deleted with its record, two tidemarks, a mirror",
            _topics(topics.Size()),
            _topics(topics.Size(tidemarks=2, written=((0, 0), (1, 0), (1, 1)))),
        ),
    )
}

LARGEST: Final = Primary(
    Size(
        txns=(Txn(0), Txn(1), Txn(0, (1,), aborts=True), Txn(1, (0,))),
        rounds=3, terms=2, crashes=1, elections=1, lags=True, grows=True,
    )
)  # fmt: skip
"""Too large to be looked at whole: for walks."""

MUTANTS: Final = (
    Mutant("T1 a round is driven again", "cut leaders", "monotone", "H7"),
    Mutant("T1 a deposed one publishes", "cut leaders", "monotone", "H7"),
    Mutant("T2 round in memory", "shard crash", "stamp", "H1"),
    Mutant("T2 stamp before log", "rounds", "stamp", "H2"),
    Mutant("T2 answered at once", "shard crash", "cut lost", "H3"),
    Mutant("T3 nothing is held", "rounds", "dependency", "H1b"),
    Mutant("T3 all is sent again at load", "shard crash", "dependency", "H1b"),
    Mutant("T4 a round is waited for", "shard death", "stuck", "H4"),
    Mutant("T4 what was released is published", "rounds", "dependency", "H4"),
    Mutant("T5 aborts stop D", "rounds", "torn", "h15"),
    Mutant("T6 decisions are not compared", "adoption", "not asked", "H9"),
    Mutant("T7 D is HW", "rounds", "torn", ""),
    Mutant("T8 acks=1", "partition leaders", "torn", "H11"),
    Mutant("T9 a lagging leader answers", "partition leaders", "torn", "H5"),
    Mutant("T9 a deposed leader answers", "partition leaders", "torn", "H5b"),
    Mutant("T9 metadata before the round", "partition leaders", "torn", "H6"),
    Mutant("T10 what moved since the last closed round", "closed in vain", "bytes lost"),
    Mutant("T13 the primary cleans to its end", "compaction", "another value", "H12"),
    Mutant("T13 a mirror cleans to its end", "compaction", "another value", "H12"),
    Mutant("T13 a log with holes counts at once", "compaction", "another value", "H12"),
    Mutant("T13 the first mirror counts", "compaction for two", "another value", "H12"),
    Mutant("T14 a mirror starts where the primary does", "deletions", "deleted too early"),
    Mutant("T14 a start above the cut counts", "deletions", "nothing is left"),
    Mutant("T14 a lost order is kept", "deletions", "hidden"),
    Mutant("T15 what is gone is deleted at once", "topics", "records lost"),
    Mutant("T15 it is reached before it grows", "topics", "records lost"),
    Mutant("T15 a tidemark names no removal", "topics", "stuck"),
    Mutant("T16 whole ends are not kept", "mirror start", "goes back"),
    Mutant("T16 it is shown before it is durable", "mirror crash", "goes back"),
    Mutant("T16 one log is enough", "mirror crash", "bytes lost"),
    Mutant("T16 what was copied counts", "mirror crash", "bytes lost"),
    Mutant("T17 the last stable offset is the log's", "mirror", "taken back", "H10"),
    Mutant("T17 each log is shown by itself", "mirror", "by halves"),
    Mutant("T18 it is noted before it is done", "takeover in steps", "foreign tail"),
    Mutant("T19 epochs are counted", "two candidates", "one epoch twice", "H18"),
    Mutant("T20 tidemarks are not cut", "takeover", "foreign tail", "H17"),
    Mutant("T21 no round of its own", "adoption", "stuck"),
    Mutant("T21 orphans are left", "adoption", "stuck"),
    Mutant("T21 orphans do not wait", "adoption", "told committed"),
    Mutant("T22 the pair goes on", "adoption", "told committed", "H8"),
    Mutant("T22 the epoch goes up by one", "adoption of transactions v2", "told committed", "H8"),
    Mutant("T23 lengths are compared", "takeover", "foreign tail", "H16"),
    Mutant("T24 nobody is asked", "takeover", "sync lost", "H13"),
    Mutant("T24 answers promise nothing", "takeover", "sync lost", "H14"),
    Mutant("T24 a lower epoch than promised is followed", "two candidates", "sync lost", "H14"),
    Mutant("T24 a switch goes on whatever is followed", "planned switch", "switch lost"),
    Mutant("T24 a fenced region is drained for anybody", "planned switch", "switch lost"),
    Mutant("T25 the directory takes any entry", "two candidates", "taken back", "H15"),
    Mutant("T25 nothing is void", "two candidates", "taken back", "H15"),
    Mutant("T26 nothing is clamped", "groups", "skipped"),
    Mutant("T26 it is clamped in memory", "groups", "skipped"),
    Mutant("T26 generations go on", "groups", "skipped"),
)
