"""Three nodes of a region, each with a controller, folders that are lost and put back, and a log that one of them leads.

The quorum is played, not run: its log is one list, of which each node has applied a part; a leader of it may be deposed with what it
proposed committed or not. The nodes' own logs are played, too: who leads appends, who follows copies, and what all in sync have is
acknowledged. So the judge can say whether a leader lacks what was acknowledged.

Not here: what happens when (`play`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from geo_replicator.folder_life import Chain, Shown
from idempotency.fencing import region_epoch_of
from idempotency.identity import LeaderEpoch
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
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    RegisterNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.metadata_commands import Command, CommandRefused, apply
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member, Term
from tests.fixtures.cluster_images import born, life, member, node

SETTINGS = ControllerSettings()
TICK_MS = 50
Log = tuple[tuple[LeaderEpoch, int], ...]


class Violated(AssertionError):
    """A promise was broken."""


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
    """What is in a folder, as far as it is played: the chain of its starts, and the log."""

    chain: Chain
    log: Log


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
        self.images: list[MetadataImage] = [born()]
        self.uncommitted: list[Entry] = []
        self.term = Term(0)
        self.leader: Node | None = None
        self.logs: dict[Member, Log] = {}
        self.chains: dict[Member, Chain] = {}
        self.copies: dict[Member, Content] = {}
        """A copy of a folder, made before one of its starts: what is made during the last one knows all starts (ADR 46)."""
        self.newest: dict[Member, Content] = {}
        """What a folder held that was wound back since: what its former process had reported is in there."""
        self.wound_back: set[Member] = set()
        """Folders of which two copies went apart once; any of them may be refused."""
        self.told: dict[tuple[int, int], RegisterNode] = {}
        """What each process of a node says when it registers."""
        self.acknowledged: Log = ()
        self.leaders: dict[LeaderEpoch, Member] = {}
        self.heard_ms: dict[tuple[int, UUID], int] = {}
        self.lost: set[tuple[int, UUID]] = set()
        self.reign_began_ms = 0
        self.proposing: set[tuple[int, UUID, Term]] = set()
        self.reports: dict[LeaderEpoch, dict[Member, int]] = {}
        """How far each member was, when it last copied under that leader epoch: all that its leader may count on."""
        self.in_sync_asked: dict[Member, tuple[int, tuple[Member, ...]]] = {}
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
            if not is_done and isinstance(entry.command, ChangeInSync):
                # It may have been asked for twice: who is refused looks first at what refused it.
                self.catch_up(self.nodes[entry.command.leader.node_id], len(self.images) - 1)
                self.in_sync_asked.pop(entry.command.leader, None)
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
        demand(found.in_sync, "INV-MH5: never empty")
        shrinks = was is not None and not {*was.in_sync} <= {*found.in_sync}
        may = isinstance(why, ElectUnclean | ChangeInSync)
        demand(may or not shrinks, "INV-MH3: nobody else drops who is in sync")
        if found.leader is None:
            return
        leading = after.node_of(found.leader)
        demand(leading is not None and not leading.fenced, "INV-MH2: registered and unfenced")
        demand(found.leader in found.in_sync, "INV-MH2: in sync")
        known_leader = self.leaders.setdefault(found.leader_epoch, found.leader)
        demand(known_leader == found.leader, "INV-MH1: one leader for each leader epoch")
        if isinstance(why, ElectLeader):
            demand(was is None or found.leader in was.in_sync, "INV-MH5: from the in-sync set")
            log = self._log_as_registered(after, found.leader)
            demand(
                log[: len(self.acknowledged)] == self.acknowledged, "nothing acknowledged is lost"
            )
            domain = after.main_domain
            demand(
                region_epoch_of(found.leader_epoch) == domain.region_epoch, "T19: its region epoch"
            )
        elif isinstance(why, ElectUnclean):
            log = self._log_as_registered(after, found.leader)
            self.acknowledged = self.acknowledged[: len(log)]

    def _log_as_registered(self, image: MetadataImage, leader: Member) -> Log:
        """Return the log of the process that is registered; one that is gone, and whose folder was wound back, leads nothing any more."""
        node, target = image.node_of(leader), self.nodes[leader.node_id]
        runs = target.is_up and node is not None and node.life == target.life
        if leader in self.newest and not runs:
            return self.newest[leader].log
        return self.logs.get(leader, ())

    def _registered(self, said: NodeImage) -> None:
        """Forget what was put aside where the copy has as much: the starts since had not registered, so nothing was copied."""
        aside = self.newest.get(said.member)
        target = self.nodes[said.node_id]
        is_present = target.is_up and said.life == target.life
        if is_present and aside is not None and aside.log == self.logs.get(said.member, ()):
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
        return Content(self.chains.get(folder, Chain()), self.logs.get(folder, ()))

    def _put(self, folder: Member, content: Content) -> None:
        self.chains[folder], self.logs[folder] = content.chain, content.log

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

    # --- the logs ---

    def leading(self) -> Iterator[tuple[Node, LeaderEpoch]]:
        """Yield who believes to lead the logs, by the metadata that it has."""
        for target in self.nodes.values():
            found, known = self.seen(target).leadership, self.seen(target).node_of(target.member)
            is_its_life = known is not None and known.life == target.life
            if target.is_up and is_its_life and found is not None and found.leader == target.member:
                yield target, found.leader_epoch

    def replicate(self) -> None:
        """Let leaders append, and followers copy; what all in sync have is acknowledged."""
        for target, leader_epoch in self.leading():
            log = self.logs.setdefault(target.member, ())
            if self.chance.random() < 0.5:
                self.records += 1
                log = self.logs[target.member] = (*log, (leader_epoch, self.records))
            for follower in self.nodes.values():
                self._copy(follower, target, leader_epoch, log)
            self._acknowledge(target)

    def _copy(self, follower: Node, target: Node, leader_epoch: LeaderEpoch, log: Log) -> None:
        found = self.seen(follower).leadership
        known = self.seen(follower).node_of(follower.member)
        opened = follower.is_up and known is not None and known.life == follower.life  # INV-CNN1
        reached = opened and not (follower.is_cut_off or target.is_cut_off)
        follows = found is not None and (found.leader, found.leader_epoch) == (
            target.member,
            leader_epoch,
        )
        if follower is not target and reached and follows and self.chance.random() < 0.7:
            own = self.logs.get(follower.member, ())
            agrees = 0
            while agrees < min(len(own), len(log)) and own[agrees] == log[agrees]:
                agrees += 1
            own = self.logs[follower.member] = log[: agrees + self.chance.randint(0, 3)]
            self.reports.setdefault(leader_epoch, {})[follower.member] = len(own)

    def _acknowledge(self, target: Node) -> None:
        found = self.seen(target).leadership
        assert found is not None
        version, asked = self.in_sync_asked.get(target.member, (-1, ()))
        members = {*found.in_sync, *(asked if version == found.version else ())}
        log = self.logs[target.member]
        reported = {**self.reports.get(found.leader_epoch, {}), target.member: len(log)}
        end = min(reported.get(one, 0) for one in members)
        if end > len(self.acknowledged):
            demand(log[: len(self.acknowledged)] == self.acknowledged, "one history")
            self.acknowledged = log[:end]
        # R3: at least all that was acknowledged, by others before, too.
        wants = max(end, len(self.acknowledged))
        able = {one for one, copied in reported.items() if copied >= wants}
        self._ask_in_sync(target, able)

    def _ask_in_sync(self, target: Node, able: set[Member]) -> None:
        image = self.seen(target)
        found = image.leadership
        assert found is not None
        version, asked = self.in_sync_asked.get(target.member, (-1, ()))
        if version == found.version:  # it may be committed yet: nothing else is asked for meanwhile
            change = ChangeInSync(target.member, found.leader_epoch, asked, version)
            under_way = [entry.command for entry in self.uncommitted]
            if change not in (*under_way, *(ask[2] for ask in self.late_asks)):
                self.ask(target, change)
        elif self.chance.random() < 0.3:
            wanted = self._wanted(target, image, able)
            if wanted != found.in_sync:
                self.in_sync_asked[target.member] = found.version, wanted
                change = ChangeInSync(target.member, found.leader_epoch, wanted, found.version)
                is_late = self.chance.random() < 0.2
                self.ask(target, change, delay_ms=self.chance.randint(0, 2_000) if is_late else 0)

    def _wanted(self, target: Node, image: MetadataImage, able: set[Member]) -> tuple[Member, ...]:
        eligible = {one.member for one in image.nodes.values() if one.is_eligible}
        return tuple(sorted({target.member, *(able & eligible)}))
