"""A group over a takeover (T26): one log, the offsets committed for it, a member of each region.

Real, called at each move: the table that a shard's ledger replays to (`region_broker.groups.offsets`), what a takeover
writes into it (`region_broker.groups.shard`). Plain: a commit, which counts where its generation is the group's; a member
that joins, under the next generation; D, asked of the log first and of the ledger later, so that an offset of the cut may
point past it. A member of the lost region goes on with what it knows, under an id of its own, which tells nobody apart. The
cut holds the group: one that it does not hold has no generation to jump from, and is fenced by its members' ids alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

from idempotency.fencing import region_epoch
from idempotency.identity import NO_LEADER_EPOCH, TopicName, TopicPartition
from region_broker.groups.messages import ClampReport
from region_broker.groups.ports import LedgerRecord
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.groups.shard import Shard, ShardStatus
from tests.model.explore import Broken, Label, Move
from tests.model.primary_states import put

GROUP: Final = "billing"
TP: Final = TopicPartition(TopicName("t"), 0)
NEW_EPOCH: Final = region_epoch(2, 1)
UNKNOWN: Final = -1
REBALANCED: Final = 2
"""The last generation of the lost region."""
OLD, NEW = 0, 1


class LedgerRow(NamedTuple):
    """A record of the offsets ledger."""

    key: bytes
    value: bytes | None


class Member(NamedTuple):
    """A consumer: the generation that it joined under, and the next record that it reads; `dirty`: not committed."""

    generation: int
    position: int
    dirty: bool = False


class State(NamedTuple):
    """The region that leads: its log, the offsets ledger, the group's members; `seen` are the records that one has read.

    A record is known by the region that wrote it and its offset. `cut` is D of the log, then of the ledger.
    """

    region: int = OLD
    adopted: bool = True
    log: tuple[tuple[int, int], ...] = ()
    rows: tuple[LedgerRow, ...] = ()
    members: tuple[Member | None, Member | None] = (None, None)
    seen: frozenset[tuple[int, int]] = frozenset()
    cut: tuple[int, int] = (UNKNOWN, UNKNOWN)
    in_memory: bool = False
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How many records each region takes, and how often the new one starts again."""

    writes: int = 2
    crashes: int = 1


@dataclass(frozen=True)
class Groups:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        """Begin with a group that has a member, before any cut."""
        return self._join(State(), OLD)

    def canonical(self, state: State) -> State:
        return state

    def good(self, state: State) -> bool:
        """All that the new region holds was read, and committed."""
        end = len(state.log)
        return state.region == NEW and self._is_full(state) and self._committed(state) == end

    def _is_full(self, state: State) -> bool:
        return sum(region == state.region for region, _ in state.log) >= self.size.writes

    def moves(self, state: State) -> Iterator[Move]:
        if not state.adopted:
            yield Move(("the candidate adopts the group",), partial(self._adopt, state))
            return
        if not self._is_full(state):
            log = (*state.log, (state.region, len(state.log)))
            yield Move(("a record is written",), partial(state._replace, log=log))
        for who in (OLD, NEW) if state.region == NEW else (OLD,):
            yield from self._member(state, who)
        if state.region == OLD:
            yield from self._cutting(state)
        elif state.crashes < self.size.crashes:
            again = state._replace(in_memory=False, crashes=state.crashes + 1)
            yield Move(("the new region starts again",), partial(again._replace))

    # Members.

    def _member(self, state: State, who: int) -> Iterator[Move]:
        member = state.members[who]
        generation = _generation(state.rows)
        outdated = member is None or member.generation != generation
        rebalances = state.region == OLD and generation < REBALANCED
        if who == state.region and (outdated or rebalances):
            yield Move(("the member of {} joins", who), partial(self._join, state, who))
        if member is None:
            return
        if who == state.region and member.position < len(state.log):
            read = state._replace(
                seen=state.seen | {state.log[member.position]},
                members=_with(state, who, Member(member.generation, member.position + 1, True)),
            )
            yield Move(("the member of {} reads", who), partial(read._replace))
        if member.dirty and member.generation == _generation(state.rows):
            label: Label = ("the member of {} commits {}", who, member.position)
            yield Move(label, partial(self._commit, state, who, member))

    def _join(self, state: State, who: int) -> State:
        """Join under the next generation, and read on where the group is."""
        generation = _generation(state.rows) + 1
        value = GroupValue("consumer", generation, "range", "m", 0)
        row = LedgerRow(encode_group_key(GroupKey(GROUP)), encode_group_value(value))
        member = Member(generation, self._committed(state))
        return state._replace(rows=(*state.rows, row), members=_with(state, who, member))

    def _commit(self, state: State, who: int, member: Member) -> State:
        value = OffsetValue(member.position, NO_LEADER_EPOCH, "", 0)
        row = LedgerRow(encode_offset_key(OffsetKey(GROUP, TP)), encode_offset_value(value))
        members = _with(state, who, member._replace(dirty=False))
        return state._replace(rows=(*state.rows, row), members=members, in_memory=False)

    def _committed(self, state: State) -> int:
        committed = _committed(state.rows)
        return min(committed, state.cut[0]) if state.in_memory else committed

    # The cut, and the takeover.

    def _cutting(self, state: State) -> Iterator[Move]:
        data, ledger = state.cut
        if data == UNKNOWN:
            cut = (len(state.log), UNKNOWN)
            yield Move(("D of the log is asked",), partial(state._replace, cut=cut))
        elif ledger == UNKNOWN:
            cut = (data, len(state.rows))
            yield Move(("D of the ledger is asked",), partial(state._replace, cut=cut))
        else:
            after = state._replace(
                region=NEW, adopted=False, log=state.log[:data], rows=state.rows[:ledger]
            )
            yield Move(("another region takes over",), partial(after._replace))

    def _adopt(self, state: State) -> State:
        """Write what the real shard says before the region takes writes."""
        rows = _adopted(state.rows, len(state.log))
        if (
            "T26 nothing is clamped" in self.mutants
            or "T26 it is clamped in memory" in self.mutants
        ):
            rows = tuple(row for row in rows if row.key == encode_group_key(GroupKey(GROUP)))
        if "T26 generations go on" in self.mutants:
            rows = tuple(row for row in rows if row.key != encode_group_key(GroupKey(GROUP)))
        clamps = "T26 it is clamped in memory" in self.mutants
        return state._replace(adopted=True, rows=(*state.rows, *rows), in_memory=clamps)

    # What must hold.

    def check(self, state: State) -> None:
        """What lies below the group's offset was read by a member of it."""
        if state.region == OLD or not state.adopted:
            return
        for record in state.log[: self._committed(state)]:
            if record not in state.seen:
                raise Broken(
                    "skipped", f"{record} lies below {self._committed(state)}, and nobody read it"
                )


def _with(state: State, who: int, member: Member) -> tuple[Member | None, Member | None]:
    old, new = put(state.members, who, member)
    return old, new


@lru_cache(maxsize=65536)
def _shard(rows: tuple[LedgerRow, ...]) -> Shard:
    """Return the real shard that these rows replay to; to be asked only."""
    shard = Shard(0, status=ShardStatus.ACTIVE)
    for offset, row in enumerate(rows):
        shard.table.apply(LedgerRecord(offset, row.key, row.value))
    return shard


def _generation(rows: tuple[LedgerRow, ...]) -> int:
    value = _shard(rows).table.group_values.get(GROUP)
    return 0 if value is None else value.generation


def _committed(rows: tuple[LedgerRow, ...]) -> int:
    place = _shard(rows).table.committed.get(GROUP, {}).get(TP)
    return 0 if place is None else place.committed_offset


@lru_cache(maxsize=65536)
def _adopted(rows: tuple[LedgerRow, ...], end: int) -> tuple[LedgerRow, ...]:
    shard = replace(_shard(rows), groups={})
    looks = shard.clamp(lambda _: end, ClampReport(), wall_ms=0, region_epoch=NEW_EPOCH)
    return tuple(LedgerRow(key, value) for looked in looks for key, value in looked.records)
