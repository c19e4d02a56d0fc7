"""Three nodes of a region, each with a controller, folders that are lost and put back, and a log that one of them leads.

The quorum is played, not run: its log is one list, of which each node has applied a part; a leader of it may be deposed with what it
proposed committed or not. The nodes' own logs are played, too: who leads one appends, who follows copies, and what all in sync have is
acknowledged. So the judge can say whether a leader lacks what was acknowledged. There are four logs, three of which are spread over
the nodes whenever that is due (ADR 53); the fourth is a ledger.

Not here: what happens when (`play`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import msgspec

from geo_replicator.folder_life import Chain, Shown
from idempotency.fencing import region_epoch_of
from idempotency.identity import LeaderEpoch, LogKey
from region_broker.controller.cluster.core import ControllerCore
from region_broker.controller.cluster.events import (
    CommandSettled,
    Event,
    Heard,
    ImageChanged,
    Leads,
    LeadsNoMore,
    Lost,
    Offline,
    Outcome,
    Propose,
    Ticked,
)
from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster.spreading import SpreadFacts, SpreadKeeping, SpreadSettings
from region_broker.controller.cluster_commands import (
    ChangeGroupInSync,
    ChangeInSync,
    ElectUnclean,
    FenceNode,
    RegisterNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership, NodeImage
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.group_rows import groups_of
from region_broker.controller.metadata_commands import Command, CommandRefused, apply
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.raft.entries import Member, Term
from tests.fixtures.cluster_images import born, life, member, node

SETTINGS = ControllerSettings()
SPREADING = SpreadSettings(
    steady_ms=100, common_ms=200, differ_ms=1_500, count_ms=600, preferred_ms=300, pause_ms=100, pause_max_ms=400,
    forgiven_ms=2_000, retry_ms=100,
)  # fmt: skip
"""As short as a life is, in which nodes come and go within seconds."""
TICK_MS = 50
Log = tuple[tuple[LeaderEpoch, int], ...]
ORDERS, LEDGER = UUID(int=21), UUID(int=22)
KEYS = (LogKey(LEDGER, 0), *(LogKey(ORDERS, number) for number in range(3)))
Logs = tuple[Log, ...]
"""One for each of `KEYS`."""
EMPTY: Logs = ((),) * len(KEYS)
InSyncChange = ChangeInSync | ChangeGroupInSync


class Violated(AssertionError):
    """A promise was broken."""


def with_topics() -> MetadataImage:
    """Return a region without nodes, with a topic that may be spread and a ledger, whose operator wants leaders to be spread."""
    topics = [
        TopicImage(topic_id=ORDERS, name="orders", partition_count=3),
        TopicImage(topic_id=LEDGER, name="ledger", partition_count=1, internal=True),
    ]
    return msgspec.structs.replace(
        born(),
        topics={each.name: each for each in topics},
        feature_level=SUPPORTED[-1],
        spread_wanted=True,
    )


def holds_all(logs: Logs, acknowledged: Logs) -> bool:
    """Return whether a member's logs have what was acknowledged."""
    return all(log[: len(done)] == done for log, done in zip(logs, acknowledged, strict=True))


def demand(holds: object, what: str) -> None:
    """Raise `Violated` unless `holds`."""
    if not holds:
        raise Violated(what)


@dataclass
class Node:
    """A place for a node: whichever folder and process it has now."""

    node_id: int
    folder: int = 1
    start: int = 0
    folders: int = 1
    is_up: bool = False
    is_cut_off: bool = False
    is_refused: bool = False
    """Whether its registration was refused as that of an older copy: the process ends."""
    applied: int = 0
    core: ControllerCore = field(init=False)
    keeping: SpreadKeeping = field(init=False)
    reign: Term | None = None
    """The term in which its core believes to lead the quorum."""

    @property
    def member(self) -> Member:
        return member(self.node_id, self.folder)

    @property
    def life(self) -> UUID:
        return life(self.node_id, self.start)


@dataclass(frozen=True)
class Content:
    """What is in a folder, as far as it is played: the chain of its starts, and the logs."""

    chain: Chain
    logs: Logs


@dataclass
class Entry:
    """What was proposed to the quorum, and by whom; `number` is 0 where no core asked."""

    term: Term
    proposer: tuple[int, UUID]
    number: int
    command: Command


class World:
    """What there is, and what can happen to it; each step is judged."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now_ms = 0
        self.nodes = {number: Node(number) for number in (1, 2, 3)}
        self.images: list[MetadataImage] = [with_topics()]
        self.uncommitted: list[Entry] = []
        self.term = Term(0)
        self.leader: Node | None = None
        self.logs: dict[Member, Logs] = {}
        self.chains: dict[Member, Chain] = {}
        self.copies: dict[Member, Content] = {}
        """A copy of a folder, made before one of its starts: what is made during the last one knows all starts (ADR 46)."""
        self.newest: dict[Member, Content] = {}
        """What a folder held that was wound back since: what its former process had reported is in there."""
        self.wound_back: set[Member] = set()
        """Folders of which two copies went apart once; any of them may be refused."""
        self.told: dict[tuple[int, int], RegisterNode] = {}
        """What each process of a node says when it registers."""
        self.acknowledged: Logs = EMPTY
        self.leaders: dict[LeaderEpoch, Member] = {}
        self.heard_ms: dict[tuple[int, UUID], int] = {}
        self.lost: set[tuple[int, UUID]] = set()
        self.reign_began_ms = 0
        self.proposing: set[tuple[int, UUID, Term]] = set()
        self.reports: dict[LeaderEpoch, dict[Member, dict[LogKey, int]]] = {}
        """How far each member was, when it last copied under that leader epoch: all that its leader may count on."""
        self.in_sync_asked: dict[LeaderEpoch, tuple[int, tuple[Member, ...]]] = {}
        self.done: Counter[str] = Counter()
        """What was committed, by the kind of command."""
        self.offline: Offline | None = None
        self.late: list[tuple[int, int, Event]] = []
        """Messages that arrive later: when, at whom, what."""
        self.late_asks: list[tuple[int, tuple[int, UUID], Command]] = []
        """The same of commands: when, from whom, what."""
        self.records = 0
        self.refused = 0

    @property
    def image(self) -> MetadataImage:
        """What the quorum has committed."""
        return self.images[-1]

    # --- cores ---

    def tell(self, target: Node, event: Event) -> None:
        """Give a core an event, and carry out what it asks."""
        if not target.is_up:
            return
        for effect in target.core.step(event, self.now_ms):
            match effect:
                case Propose():
                    self._proposed(target, effect)
                case Offline():
                    self.offline = effect
                case _:
                    pass

    def _proposed(self, target: Node, effect: Propose) -> None:
        asked = target.node_id, target.life, effect.term
        demand(asked not in self.proposing, "INV-CK2: one proposal at a time")
        demand(target.reign == effect.term, "INV-CK1: for the term that it leads")
        self._judge(target, effect.command)
        self.proposing.add(asked)
        if self.leader is target and self.term == effect.term:
            self.uncommitted.append(
                Entry(effect.term, (target.node_id, target.life), effect.number, effect.command)
            )
        else:  # deposed, and does not know it: what it proposes is never committed, and it cannot know that either
            self.proposing.discard(asked)
            self.tell(target, CommandSettled(effect.number, Outcome.UNKNOWN))

    def _judge(self, target: Node, command: Command) -> None:
        if target is not self.leader:
            return
        match command:
            case FenceNode(life=fenced):
                key = target.node_id, fenced
                silent_ms = self.now_ms - max(self.reign_began_ms, self.heard_ms.get(key, 0))
                is_due = silent_ms >= SETTINGS.session_timeout_ms or key in self.lost
                demand(is_due, "INV-CS1: a whole session for each")
            case UnfenceNode(life=let_in):
                key = target.node_id, let_in
                is_heard = self.heard_ms.get(key, -1) >= self.reign_began_ms
                demand(is_heard, "INV-CS2: who was heard is unfenced")
            case _:
                pass

    # --- the quorum ---

    def connected(self) -> list[Node]:
        """Return who is up and reached by the others."""
        return [one for one in self.nodes.values() if one.is_up and not one.is_cut_off]

    def elect_quorum_leader(self) -> None:
        """Let another one, or the same again, lead the quorum; what was not committed may be, or is gone."""
        able = self.connected()
        if len(able) < (2 if len(self.image.nodes) > 1 else 1):
            return
        former, entries = self.leader, self.uncommitted
        survives = self.chance.randint(0, len(entries))
        self.leader, self.uncommitted = None, []
        for entry in entries[:survives]:
            self._commit(entry)
        self.term = Term(self.term + 1)
        new = self.chance.choice(able)
        if former is not None and former is not new and self.chance.random() < 0.7:
            self.depose(former)
        for entry in entries:
            self._settle(entry, Outcome.UNKNOWN)
        self.catch_up(new, len(self.images) - 1)
        self.leader, self.reign_began_ms = new, self.now_ms
        new.reign = self.term
        self.lost.clear()
        self.tell(new, Leads(self.term, self.image))

    def depose(self, target: Node) -> None:
        """Let a core know that it leads the quorum no more."""
        if target.reign is not None:
            target.reign = None
            self.tell(target, LeadsNoMore())

    def commit_one(self) -> None:
        """Commit the oldest of what was proposed, where a majority is there."""
        able = self.connected()
        if (
            self.uncommitted
            and self.leader in able
            and (len(able) > 1 or len(self.image.nodes) < 2)
        ):
            entry = self.uncommitted.pop(0)
            is_done = self._commit(entry)
            assert self.leader is not None
            self.catch_up(self.leader, len(self.images) - 1)
            if not is_done and isinstance(entry.command, InSyncChange):
                # It may have been asked for twice: who is refused looks first at what refused it.
                self.catch_up(self.nodes[entry.command.leader.node_id], len(self.images) - 1)
                self.in_sync_asked.pop(entry.command.leader_epoch, None)
            self._settle(entry, Outcome.DONE if is_done else Outcome.REFUSED)

    def _settle(self, entry: Entry, outcome: Outcome) -> None:
        node_id, asked = entry.proposer
        proposer = self.nodes[node_id]
        self.proposing.discard((node_id, asked, entry.term))
        if proposer.life == asked and entry.number:
            self.tell(proposer, CommandSettled(entry.number, outcome))

    def _commit(self, entry: Entry) -> bool:
        before = self.image
        try:
            after = apply(before, entry.command)
        except CommandRefused as refused:
            if refused.code == "folder-wound-back" and isinstance(entry.command, RegisterNode):
                self._refused(entry.command.node)
            return False
        self.images.append(after)
        self.done[type(entry.command).__name__] += 1
        if isinstance(entry.command, RegisterNode):
            self._registered(entry.command.node)
        self._judge_image(before, after, entry.command)
        return True

    def _judge_image(self, before: MetadataImage, after: MetadataImage, why: Command) -> None:
        found, was = after.leadership, before.leadership
        demand(after.last_leader_epoch >= before.last_leader_epoch, "T19: leader epochs grow")
        if found is None:
            demand(was is None, "a leadership stays")
            return
        if was is None or was.leader_epoch != found.leader_epoch:
            demand(after.spread is None, "INV-SPR1: an election of the main leader ends the spread")
        if after.spread is not None:
            is_present = region_epoch_of(found.leader_epoch) == after.main_domain.region_epoch
            demand(is_present, "INV-SPR8: no other region epoch while leaders are spread")
        if before.spread is not None and after.spread is None:
            self._judge_gathered(before, found, why)
        for group, row in groups_of(after).items():
            self._judge_row(before, after, group, row, why)
        if isinstance(why, ElectUnclean):
            logs = self._logs_as_registered(after, why.leader)
            self.acknowledged = tuple(
                done[: len(log)] for done, log in zip(self.acknowledged, logs, strict=True)
            )

    def _judge_gathered(self, before: MetadataImage, found: Leadership, why: Command) -> None:
        sets = [{*row.in_sync} for row in groups_of(before).values()]
        is_common = {*found.in_sync} == set.intersection(*sets)
        demand(is_common or isinstance(why, ElectUnclean), "INV-SPR2: in sync in all groups")

    def _judge_row(
        self, before: MetadataImage, after: MetadataImage, group: int, row: Leadership, why: Command
    ) -> None:
        was = before.leadership_in(group)
        demand(row.in_sync, "INV-MH5: never empty")
        shrinks = was is not None and not {*was.in_sync} <= {*row.in_sync}
        may = isinstance(why, ElectUnclean | InSyncChange) or before.spread is not after.spread
        demand(may or not shrinks, "INV-MH3: nobody else drops who is in sync")
        if was is not None and was.leader_epoch == row.leader_epoch and was != row:
            demand(row.version > was.version, "INV-SPR7: each change has its version")
        if row.leader is None:
            return
        leading = after.node_of(row.leader)
        demand(leading is not None and not leading.fenced, "INV-MH2: registered and unfenced")
        demand(row.leader in row.in_sync, "INV-MH2: in sync")
        known_leader = self.leaders.setdefault(row.leader_epoch, row.leader)
        demand(known_leader == row.leader, "INV-MH1: one leader for each leader epoch")
        main = after.leadership
        demand(
            group == MAIN_GROUP or main is None or main.leader != row.leader,
            "INV-SPR6: the main leader leads no data group",
        )
        is_elected = was is None or was.leader_epoch != row.leader_epoch
        if is_elected and not isinstance(why, ElectUnclean):
            self._judge_elected(before, after, group, row)

    def _judge_elected(
        self, before: MetadataImage, after: MetadataImage, group: int, row: Leadership
    ) -> None:
        assert row.leader is not None
        rows = groups_of(before)
        judged = rows.values() if group == MAIN_GROUP else [rows.get(group, rows[MAIN_GROUP])]
        demand(
            all(row.leader in each.in_sync for each in judged),
            "INV-MH5, INV-SPR2: from the in-sync set, of every group for the main one",
        )
        logs = self._logs_as_registered(after, row.leader)
        for key, log, done in zip(KEYS, logs, self.acknowledged, strict=True):
            if after.group_of(key) == group:
                demand(log[: len(done)] == done, "nothing acknowledged is lost")
        is_present = region_epoch_of(row.leader_epoch) == after.main_domain.region_epoch
        demand(is_present, "T19: its region epoch")

    def _logs_as_registered(self, image: MetadataImage, leader: Member) -> Logs:
        """Return the logs of the process that is registered; one that is gone, and whose folder was wound back, leads nothing any more."""
        node, target = image.node_of(leader), self.nodes[leader.node_id]
        runs = target.is_up and node is not None and node.life == target.life
        if leader in self.newest and not runs:
            return self.newest[leader].logs
        return self.logs.get(leader, EMPTY)

    def _registered(self, said: NodeImage) -> None:
        """Forget what was put aside where the copy has as much: the starts since had not registered, so nothing was copied."""
        aside = self.newest.get(said.member)
        target = self.nodes[said.node_id]
        is_present = target.is_up and said.life == target.life
        if is_present and aside is not None and aside.logs == self.logs.get(said.member, EMPTY):
            del self.newest[said.member]

    def _refused(self, said: NodeImage) -> None:
        """Note that the folder is refused as an older copy, and says so from then on (INV-CNN5); its process ends soon."""
        target = self.nodes[said.node_id]
        if target.is_up and target.life == said.life:
            demand(
                said.member in self.wound_back,
                "INV-MN7: no other folder is refused as an older copy",
            )
            self.refused += 1
            target.is_refused = True

    def catch_up(self, target: Node, up_to: int) -> None:
        """Let a node apply what is committed."""
        while target.applied < up_to:
            target.applied += 1
            self.tell(target, ImageChanged(self.images[target.applied]))

    def seen(self, target: Node) -> MetadataImage:
        """Return the image that a node has applied."""
        return self.images[target.applied]

    # --- processes and folders ---

    def start(self, target: Node) -> None:
        """Start a process; what it has applied is in its folder, at least where that is not new."""
        target.is_up, target.start, target.reign = True, target.start + 1, None
        target.core = ControllerCore(SETTINGS, self.seen(target), self.now_ms)
        target.keeping = SpreadKeeping(SPREADING)
        if target.member not in self.newest and self.chance.random() < 0.3:
            self.copies[target.member] = self.content(target.member)
        begun = self.chains.get(target.member, Chain()).with_start(
            f"{target.node_id}/{target.start}"
        )
        self.chains[target.member] = begun
        said = node(target.node_id, folder=target.folder, start=target.start)
        shown = Shown(
            folder_id=said.incarnation.hex, incarnations=begun.newest, incarnation_count=begun.count
        )
        self.told[target.node_id, target.start] = RegisterNode(said, shown)

    def stop(self, target: Node) -> None:
        """Kill a process; its peers may see the connection reset."""
        target.is_up, target.reign = False, None
        if self.leader is target:
            self.leader = None
        elif self.leader is not None and self.chance.random() < 0.5:
            self._reset(self.leader, target)

    def _reset(self, at: Node, target: Node) -> None:
        if at.is_up and at.reign == self.term:
            self.lost.add((at.node_id, target.life))
            self.tell(at, Lost(target.member, target.life))

    def exchange_folder(self, target: Node, folder: int) -> None:
        """Give a stopped node another folder: a new, empty one, or one that it had before."""
        target.folder, target.is_refused = folder, False
        target.folders = max(target.folders, folder)

    def content(self, folder: Member) -> Content:
        """Return what is in a folder now."""
        return Content(self.chains.get(folder, Chain()), self.logs.get(folder, EMPTY))

    def _put(self, folder: Member, content: Content) -> None:
        self.chains[folder], self.logs[folder] = content.chain, content.logs

    def wind_back(self, target: Node) -> None:
        """Give a stopped node the older copy of its folder, if there is one; what it had is put aside."""
        copy = self.copies.get(target.member)
        if copy is not None:
            self.wound_back.add(target.member)
            self.newest.setdefault(target.member, self.content(target.member))
            self._put(target.member, copy)

    def give_newest_back(self, target: Node) -> None:
        """Give a stopped node what its folder held before it was wound back."""
        newest = self.newest.pop(target.member, None)
        if newest is not None:
            self._put(target.member, newest)
        target.is_refused = False

    def beat(self, target: Node, *, delay_ms: int = 0) -> None:
        """Let a process be heard by whoever leads the quorum, now or later."""
        if self.leader is None or not target.is_up or target.is_cut_off or self.leader.is_cut_off:
            return
        self.late.append(
            (self.now_ms + delay_ms, self.leader.node_id, Heard(target.member, target.life))
        )

    def deliver(self) -> None:
        """Deliver what is due by now."""
        for ask in [ask for ask in self.late_asks if ask[0] <= self.now_ms]:
            self.late_asks.remove(ask)
            if self.leader is not None:
                self.uncommitted.append(Entry(self.term, ask[1], 0, ask[2]))
        due = [message for message in self.late if message[0] <= self.now_ms]
        self.late = [message for message in self.late if message[0] > self.now_ms]
        for _, node_id, event in due:
            target = self.nodes[node_id]
            if isinstance(event, Heard) and target.is_up and target.reign is not None:
                known = self.seen(target).node_of(event.member)
                if known is not None and known.life == event.life:
                    self.heard_ms[node_id, event.life] = self.now_ms
                    self.lost.discard((node_id, event.life))
            self.tell(target, event)

    def register(self, target: Node) -> None:
        """Let a process register, where the metadata do not have it; one that was replaced ends, and starts anew."""
        stands = self.image.nodes.get(target.node_id)
        if target.is_up and stands is not None and target.life in stands.former_lives:
            self.stop(target)
            self.start(target)
        known = self.image.node_of(target.member)
        if (
            target.is_up
            and self.leader is not None
            and (known is None or known.life != target.life)
        ):
            self.ask(target, self.told[target.node_id, target.start])

    def ask(self, target: Node, command: Command, *, delay_ms: int = 0) -> None:
        """Have whoever leads the quorum propose what a node asks for, now or later."""
        if self.leader is not None and not target.is_cut_off and not self.leader.is_cut_off:
            self.late_asks.append((self.now_ms + delay_ms, (target.node_id, target.life), command))

    def tick(self, ms: int = TICK_MS) -> None:
        """Let time pass."""
        self.now_ms += ms
        for target in self.nodes.values():
            self.tell(target, Ticked())

    def keep(self, target: Node, trouble: str | None = None) -> None:
        """Let a node look whether leaders are to be spread, or gathered."""
        if target.is_up:
            facts = SpreadFacts(target.member, trouble=trouble)
            command = target.keeping.step(self.seen(target), facts, self.now_ms)
            if command is not None:
                self.ask(target, command)

    # --- the logs ---

    def leading(self) -> Iterator[tuple[Node, int, Leadership]]:
        """Yield who believes to lead which group, by the metadata that it has."""
        for target in self.nodes.values():
            image = self.seen(target)
            known = image.node_of(target.member)
            if target.is_up and known is not None and known.life == target.life:
                for group, row in groups_of(image).items():
                    if row.leader == target.member:
                        yield target, group, row

    def replicate(self) -> None:
        """Let leaders append, and followers copy; what all in sync have is acknowledged."""
        for target, group, row in list(self.leading()):
            for number, key in enumerate(KEYS):
                if self.seen(target).group_of(key) != group:
                    continue
                if self.chance.random() < 0.5:
                    self.records += 1
                    self._append(target.member, number, (row.leader_epoch, self.records))
                for follower in self.nodes.values():
                    self._copy(follower, target, number, row)
            self._acknowledge(target, group, row)

    def _append(self, member: Member, number: int, record: tuple[LeaderEpoch, int]) -> None:
        logs = self.logs.get(member, EMPTY)
        self._put_log(member, number, (*logs[number], record))

    def _put_log(self, member: Member, number: int, log: Log) -> None:
        logs = self.logs.get(member, EMPTY)
        self.logs[member] = (*logs[:number], log, *logs[number + 1 :])

    def _copy(self, follower: Node, target: Node, number: int, row: Leadership) -> None:
        """Let a follower copy a log, where its own metadata name that leader of it, under that leader epoch."""
        image = self.seen(follower)
        found, known = image.leadership_of(KEYS[number]), image.node_of(follower.member)
        opened = follower.is_up and known is not None and known.life == follower.life  # INV-CNN1
        reached = opened and not (follower.is_cut_off or target.is_cut_off)
        follows = found is not None and (found.leader, found.leader_epoch) == (
            target.member,
            row.leader_epoch,
        )
        if follower is not target and reached and follows and self.chance.random() < 0.7:
            own = self.logs.get(follower.member, EMPTY)[number]
            log = self.logs.get(target.member, EMPTY)[number]
            agrees = 0
            while agrees < min(len(own), len(log)) and own[agrees] == log[agrees]:
                agrees += 1
            own = log[: agrees + self.chance.randint(0, 3)]
            self._put_log(follower.member, number, own)
            reports = self.reports.setdefault(row.leader_epoch, {})
            reports.setdefault(follower.member, {})[KEYS[number]] = len(own)

    def _acknowledge(self, target: Node, group: int, row: Leadership) -> None:
        version, asked = self.in_sync_asked.get(row.leader_epoch, (-1, ()))
        members = {*row.in_sync, *(asked if version == row.version else ())}
        reports = self.reports.get(row.leader_epoch, {})
        able = {target.member, *reports}
        for number, key in enumerate(KEYS):
            if self.seen(target).group_of(key) != group:
                continue
            log = self.logs.get(target.member, EMPTY)[number]
            reported = {one: ends.get(key, 0) for one, ends in reports.items()}
            reported[target.member] = len(log)
            end = min(reported.get(one, 0) for one in members)
            done = self.acknowledged[number]
            if end > len(done):
                demand(log[: len(done)] == done, "one history")
                done = log[:end]
                self.acknowledged = (
                    *self.acknowledged[:number],
                    done,
                    *self.acknowledged[number + 1 :],
                )
            # R3: at least all that was acknowledged, by others before, too.
            able &= {one for one, copied in reported.items() if copied >= max(end, len(done))}
        self._ask_in_sync(target, group, row, able)

    def _ask_in_sync(self, target: Node, group: int, row: Leadership, able: set[Member]) -> None:
        version, asked = self.in_sync_asked.get(row.leader_epoch, (-1, ()))
        if version == row.version:  # it may be committed yet: nothing else is asked for meanwhile
            change = _change(target.member, group, row, asked)
            under_way = [entry.command for entry in self.uncommitted]
            if change not in (*under_way, *(ask[2] for ask in self.late_asks)):
                self.ask(target, change)
        elif self.chance.random() < 0.3:
            wanted = self._wanted(target, self.seen(target), able)
            if wanted != row.in_sync:
                self.in_sync_asked[row.leader_epoch] = row.version, wanted
                change = _change(target.member, group, row, wanted)
                is_late = self.chance.random() < 0.2
                self.ask(target, change, delay_ms=self.chance.randint(0, 2_000) if is_late else 0)

    def _wanted(self, target: Node, image: MetadataImage, able: set[Member]) -> tuple[Member, ...]:
        eligible = {one.member for one in image.nodes.values() if one.is_eligible}
        return tuple(sorted({target.member, *(able & eligible)}))


def _change(
    leader: Member, group: int, row: Leadership, in_sync: tuple[Member, ...]
) -> InSyncChange:
    if group == MAIN_GROUP:
        return ChangeInSync(leader, row.leader_epoch, in_sync, row.version)
    return ChangeGroupInSync(group, leader, row.leader_epoch, in_sync, row.version)
