"""Groups of the new protocol under random members: one owner at a time, live == replay, and an end.

Members are modelled as the KIP asks of clients: they stop what they are told to give up, say so in a later
heartbeat (or late, or never), and begin what they are given. Answers are lost, members die, come back as
static ones, change what they subscribe to; topics come, grow and go.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from region_broker.groups.modern.assignors.assignment import NOTHING, Partitions
from region_broker.groups.modern.heartbeat import beat, fence, leave, patterns_needed
from region_broker.groups.modern.messages import HeartbeatOutcome, HeartbeatRequest, Refused
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.modern.state import LEFT_FOR_NOW, ConsumerGroup
from region_broker.groups.modern.states import MemberState, ModernState
from region_broker.groups.modern.target import Change, TopicView
from region_broker.groups.modern_groups import encoded
from region_broker.groups.shard import Shard, ShardStatus
from region_broker.groups.verdicts import GroupVerdict
from tests.unit.region_broker.groups.fakes import MemoryLedger, Topics

NAMES = ("a1", "a2", "b1")
SUBSCRIPTIONS = st.sampled_from([("a1",), ("a1",), ("a1", "a2"), ("b1", "a2", "a1"), ()])
PATTERNS = st.sampled_from([None, None, None, "a.*", "b1|a1"])
ASSIGNORS = st.sampled_from([None, "uniform", "range"])
LIVE_MAX = 5
FENCED = (GroupVerdict.FENCED_MEMBER_EPOCH, GroupVerdict.UNRELEASED_INSTANCE)


@dataclass
class Client:
    """One consumer process: what it works on (`owned`) is what must never be shared."""

    member_id: str
    names: tuple[str, ...]
    pattern: str | None
    assignor: str | None
    instance_id: str | None = None
    epoch: int = 0
    owned: dict[UUID, frozenset[int]] = field(default_factory=dict)
    told: Partitions | None = None

    def request(self, epoch: int, owned: Partitions | None) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000,
            topic_names=self.names,
            topic_regex=self.pattern or "",
            assignor=self.assignor,
            owned=owned,
        )

    def works_on(self) -> Iterator[tuple[UUID, int]]:
        return ((topic, part) for topic, parts in self.owned.items() for part in parts)

    def hear(self, outcome: HeartbeatOutcome) -> None:
        self.epoch = outcome.member_epoch
        if outcome.assignment is not None:
            self.told = outcome.assignment

    def revoke(self) -> None:
        """Stop what it was not told to have; begin nothing yet."""
        if self.told is not None:
            kept = {
                topic: parts & self.told.get(topic, frozenset())
                for topic, parts in self.owned.items()
            }
            self.owned = {topic: parts for topic, parts in kept.items() if parts}

    def begin(self) -> None:
        """Stop what it was not told to have, and begin the rest."""
        if self.told is not None:
            self.owned = dict(self.told)

    def drop_all(self) -> None:
        self.owned, self.told, self.epoch = {}, None, 0


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger(1)
        self.shard = Shard(0, ShardStatus.ACTIVE)
        self.topics = Topics()
        self.topics.put("a1", 3, number=1)
        self.topic_count = 1
        self.clients: list[Client] = []
        self.away: list[Client] = []  # static members that left for now
        self.drawn = 0
        for _ in range(2):
            self.join(("a1",), None, None, False)

    # --- what clients do ----------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < LIVE_MAX)
    @rule(names=SUBSCRIPTIONS, pattern=PATTERNS, assignor=ASSIGNORS, static=st.booleans())
    def join(
        self, names: tuple[str, ...], pattern: str | None, assignor: str | None, static: bool
    ) -> None:
        self.drawn += 1
        client = Client(f"m{self.drawn}", names, pattern, assignor)
        if static:
            client.instance_id = f"i{self.drawn}"
        self.clients.append(client)
        self._beat(client, NOTHING)
        client.begin()

    @precondition(lambda self: self.clients)
    @rule(pick=st.integers(0, 9), heard=st.booleans(), begins=st.booleans())
    def say_all(self, pick: int, heard: bool, begins: bool) -> None:
        """Beat and say what it works on; the answer may be lost, or acted on later."""
        client = self._pick(pick)
        self._beat(client, client.owned, heard=heard)
        if begins:
            client.begin()

    @precondition(lambda self: self.clients)
    @rule(order=st.permutations(range(LIVE_MAX)), begin=st.integers(0, 31))
    def all_beat(self, order: list[int], begin: int) -> None:
        """Let all beat without saying what they work on; some act on what they hear."""
        live = list(self.clients)
        for place in order:
            if place < len(live):
                self._beat(live[place], None)
                if begin >> place & 1:
                    live[place].begin()

    @precondition(lambda self: self.clients)
    @rule(pick=st.integers(0, 9))
    def revoke_and_say(self, pick: int) -> None:
        """Acknowledge a revocation before beginning what was given."""
        client = self._pick(pick)
        client.revoke()
        self._beat(client, client.owned)

    @precondition(lambda self: self.clients)
    @rule(pick=st.integers(0, 9), heard=st.booleans())
    def say_nothing(self, pick: int, heard: bool) -> None:
        self._beat(self._pick(pick), None, heard=heard)

    @precondition(lambda self: self.clients)
    @rule(pick=st.integers(0, 9), names=SUBSCRIPTIONS, pattern=PATTERNS)
    def subscribe(self, pick: int, names: tuple[str, ...], pattern: str | None) -> None:
        client = self._pick(pick)
        client.names, client.pattern = names, pattern
        self._beat(client, client.owned)

    @precondition(lambda self: len(self.clients) > 2)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(["leave", "leave for now", "die"]))
    def depart(self, pick: int, how: str) -> None:
        """Leave for good, for now (static members only), or be silent until the session is over."""
        client = self._pick(pick)
        self.clients.remove(client)
        if how == "die":
            self._fence(client.member_id)
        elif how == "leave for now" and client.instance_id is not None:
            self._leave(client, LEFT_FOR_NOW)
            client.drop_all()
            self.away.append(client)
        else:
            self._leave(client, -1)

    @precondition(lambda self: self.away)
    @rule(pick=st.integers(0, 9), in_time=st.booleans())
    def come_back(self, pick: int, in_time: bool) -> None:
        """Come back as the same static member, or let the session run out."""
        old = self.away.pop(pick % len(self.away))
        if not in_time:
            self._fence(old.member_id)
            return
        self.drawn += 1
        client = Client(f"m{self.drawn}", old.names, old.pattern, old.assignor, old.instance_id)
        self.clients.append(client)
        self._beat(client, NOTHING)

    # --- what else happens --------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), partition_count=st.integers(1, 6))
    def create_or_grow(self, name: str, partition_count: int) -> None:
        known = self.topics.topics.get(name)
        if known is None:
            self.topic_count += 1
            self.topics.put(name, partition_count, number=self.topic_count)
        else:
            count = known.partition_count + partition_count // 3
            self.topics.put(name, count, number=known.topic_id.int)

    @precondition(lambda self: len(self.topics.topics) > 1)
    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.topics.drop(name)

    @rule()
    def restart(self) -> None:
        shard = Shard(0, ShardStatus.ACTIVE)
        shard.table = self.ledger.replayed(0)
        self.shard = shard

    @rule()
    def calm_down(self) -> None:
        """Let all members go on without a fault: all is settled then, and fair (liveness)."""
        for _ in range(8 * (len(self.clients) + 1)):
            for client in self.clients:
                client.begin()
                self._beat(client, client.owned)
        group = self.group
        gone = {client.member_id for client in self.away}
        assert {each.member_id for each in self.clients} | gone == set(group.metadata)
        if not gone:
            assert group.state in (ModernState.STABLE, ModernState.EMPTY)
            wanted = {
                (shape.topic_id, part)
                for shape in group.topics.values()
                for part in range(shape.partition_count)
            }
            worked_on = {place for client in self.clients for place in client.works_on()}
            assert worked_on == (wanted if self.clients else set())

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        places = [place for client in self.clients for place in client.works_on()]
        assert len(places) == len(set(places)), places

    @invariant()
    def live_is_replay(self) -> None:
        assert self.shard.table == self.ledger.replayed(0)

    @invariant()
    def owners_follow_from_members(self) -> None:
        group = self.group
        held = [
            ((topic, part), member_id)
            for member_id, current in group.current.items()
            for partitions in (current.assigned, current.revoking)
            for topic, parts in partitions.items()
            for part in parts
        ]
        assert dict(held) == group.owners
        assert len(held) == len(group.owners)
        for current in group.current.values():
            assert (current.state is MemberState.UNREVOKED_PARTITIONS) >= bool(current.revoking)
            assert current.member_epoch <= group.group_epoch

    # --- parts --------------------------------------------------------------------------------

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.table.modern.get("g") or ConsumerGroup("g")

    def _pick(self, pick: int) -> Client:
        return self.clients[pick % len(self.clients)]

    def _view(self, request: HeartbeatRequest | None = None) -> TopicView:
        patterns = set() if request is None else patterns_needed(self.group, request)
        resolved = {
            each: tuple(
                name for name in sorted(self.topics.topics) if TopicRegex(each).matches(name)
            )
            for each in patterns
        }
        return TopicView(self.topics.topics, self.topics.version, resolved)

    def _write(self, changes: tuple[Change, ...]) -> None:
        if changes:
            self.shard.write(self.ledger, encoded(changes))

    def _beat(self, client: Client, owned: Partitions | None, *, heard: bool = True) -> None:
        request = client.request(client.epoch, owned)
        if client.epoch == 0:
            request = client.request(0, NOTHING)
        try:
            step = beat(self.group, request, self._view(request), interval_ms=1)
        except Refused as refusal:
            if refusal.verdict not in FENCED:
                raise
            # It must not work on; its next life has another id, as this one's session runs out.
            self.clients.remove(client)
            self._fence(client.member_id)
            return
        self._write(step.changes)
        if heard:
            client.hear(step.outcome)

    def _leave(self, client: Client, epoch: int) -> None:
        request = client.request(epoch, None)
        self._write(leave(self.group, request, self._view(request)).changes)

    def _fence(self, member_id: str) -> None:
        if member_id in self.group.metadata:
            self._write(fence(self.group, (member_id,), self._view()))


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None
)
TestConsumerGroups = ConsumerGroupMachine.TestCase
