"""Regions that lose, empty, wind back and exchange their folders: the real pure cores, joined by a plain driver.

Real: the failover fold and its effects, region epochs, promises and starts, births, wholeness, lineage and bases, the
proof of history, the link's core, and the search for the end that two logs share. Plain, as the rules read: who is
asked, moving bytes, quarantine. One action is atomic; a kill falls between any two. `judged` holds what must be true.
A clock that is set back is no action here: nothing of this reads a clock.
"""

from dataclasses import replace
from uuid import UUID

import msgspec

from geo_replicator import directory, failover, folder_life
from geo_replicator.failover import CutLogs, Phase
from geo_replicator.failover_events import (
    Adopted,
    Born,
    CutChosen,
    DrainBegun,
    DrainRolledBack,
    EntryRecord,
    FollowResumed,
    HigherEpochLearned,
    HistoryJoined,
    HistoryRefuted,
    LogsCut,
    PromiseGiven,
    ReturnBegun,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
)
from geo_replicator.lineage import (
    LineageEntry,
    LogKey,
    TidemarkPoint,
)
from idempotency import fencing
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.region.folder.wholeness import Parts, what_is_wrong
from tests.property.histories_regions import (
    FOLDER,
    NAMES,
    ORDERS,
    SECOND,
    TIDEMARKS,
    Batch,
    Broken,
    Folder,
    Kept,
    Metadata,
    Region,
    cut_log,
    differences,
    evidence,
    folder_key,
    key_of,
)
from tests.property.histories_session import Session


class World:
    """Some regions, the links between them, and the copies that an operator has."""

    def __init__(self, count: int = 2, mutants: frozenset[str] = frozenset()) -> None:
        self.mutants = mutants
        self.regions = {name: Region(name) for name in NAMES[:count]}
        self.cut: frozenset[frozenset[str]] = frozenset()
        self.copies: dict[str, Folder] = {}
        self.values = self.ids = 0
        self.acted: dict[int, str] = {}
        self.lost_by_word: frozenset[Kept] = frozenset()

    # What holds a world apart from its twin; and its copy.

    def clone(self) -> "World":
        twin = World.__new__(World)
        twin.__dict__ = dict(self.__dict__)
        twin.regions = {
            name: replace(region, heard=dict(region.heard)) for name, region in self.regions.items()
        }
        twin.copies, twin.acted = dict(self.copies), dict(self.acted)
        return twin

    def key(self) -> str:
        """Return one text for worlds that go on alike: the names that starts draw do not matter."""
        return repr(
            (
                [key_of(region) for region in self.regions.values()],
                sorted(map(sorted, self.cut)),
                [(name, folder_key(folder)) for name, folder in sorted(self.copies.items())],
            )
        )

    def fresh(self) -> str:
        self.ids += 1
        return UUID(int=self.ids).hex

    def reaches(self, one: str, other: str) -> bool:
        both = self.regions[one].running and self.regions[other].running
        return one != other and both and frozenset({one, other}) not in self.cut

    def peers(self, name: str) -> list[Region]:
        return [region for other, region in self.regions.items() if self.reaches(name, other)]

    # Folders.

    def birth(self, name: str) -> None:
        """`tidemark init` at a region whose folder is empty."""
        epoch = directory.next_region_epoch([], NAMES.index(name))
        born = folder_life.Birth(birth_id=self.fresh(), region=name, region_epoch=epoch, wall_ms=0)
        identity = self._identity(name)
        self.regions[name].folder = Folder(identity=msgspec.structs.replace(identity, born=born))

    def _identity(self, name: str) -> folder_life.FolderIdentity:
        return folder_life.FolderIdentity(
            cluster_id="c", region=name, node_id=0, folder_id=self.fresh()
        )

    def start(self, name: str) -> None:
        """Open the folder as `node.storage` does, and read the journal."""
        region, folder = self.regions[name], self.regions[name].folder
        region.refusal = self._why_not_opened(name, folder)
        if region.refusal:
            return
        identity = folder.identity or self._identity(name)
        metadata = folder.metadata or Metadata()
        if (
            "T32 an empty folder acts" in self.mutants
            and identity.history is None
            and name == NAMES[0]
        ):
            identity = msgspec.structs.replace(identity, born=_birth_by_configuration())
        if identity.history is not None and metadata.region_epoch == 0:
            first = identity.history
            metadata = replace(
                metadata, acting_region=first.region, region_epoch=first.region_epoch
            )
        identity = msgspec.structs.replace(
            identity,
            chain=identity.chain.with_start(self.fresh()),
            starts_counted=metadata.starts,
            whole=True,
        )
        made = {LogKey(topic, 0) for topic in metadata.topics}
        logs = dict(folder.logs or {})
        region.lost = frozenset(folder.manifest - set(logs)) & made
        logs |= {key: () for key in made if key not in logs}
        journal = folder.journal
        state = failover.replay(list(journal)) if journal else None
        if state is None:
            acts = metadata.acting_region == name
            if identity.history is None or (acts and identity.born is None):
                state = failover.unborn(name)
            else:
                first_event = Born(
                    name, acts, RegionEpoch(metadata.region_epoch), identity.folder_id
                )
                journal, state = (first_event,), failover.born(first_event)
        region.folder = replace(
            folder,
            identity=identity,
            metadata=replace(metadata, starts=metadata.starts + 1),
            journal=journal or (),
            logs=logs,
            manifest=folder.manifest | made,
        )
        region.state, region.heard, region.refuted = state, {}, None
        region.term, region.open = -1, False

    def _why_not_opened(self, name: str, folder: Folder) -> str:
        identity, metadata = folder.identity, folder.metadata
        anybodys = "T36 any region's folder is opened" in self.mutants
        if identity is not None and identity.region != name and not anybodys:
            return f"it holds the data of region {identity.region}"
        if "T36 half a folder is opened" in self.mutants:
            return ""
        parts = Parts(
            metadata=metadata is not None,
            metadata_history=metadata is not None and metadata.region_epoch > 0,
            metadata_starts=metadata.starts if metadata else 0,
            journal=folder.journal,
            logs=folder.logs is not None,
        )
        return what_is_wrong(FOLDER, identity, parts) or ""

    def kill(self, name: str) -> None:
        region = self.regions[name]
        region.state, region.open, region.term = None, False, -1

    # Clients at the primary.

    def write(self, name: str, key: LogKey = ORDERS) -> None:
        """A record is acknowledged."""
        region = self.regions[name]
        assert region.acting, name
        epoch = region.now.region_epoch
        if self.acted.setdefault(epoch, name) != name:
            raise Broken(f"T19: {self.acted[epoch]} and {name} both act under region epoch {epoch}")
        if region.now.phase is Phase.UNBORN or region.now.copied:
            raise Broken(f"T32: {name} acts, and has no history of its own")
        self.values += 1
        region.put(key, (*region.logs[key], Batch(region.term, self.values)))

    def create(self, name: str) -> None:
        region = self.regions[name]
        region.note(
            topics=region.metadata.topics | {SECOND.topic_id}, version=region.metadata.version + 1
        )
        region.put(SECOND, ())
        self.write(name, SECOND)

    def delete(self, name: str) -> None:
        """A command deletes the second topic, by its id."""
        region, gone = self.regions[name], SECOND.topic_id
        metadata = region.metadata
        region.note(
            topics=metadata.topics - {gone},
            deleted=metadata.deleted | {gone},
            version=metadata.version + 1,
        )
        self.drop(region, gone)

    def drop(self, region: Region, topic_id: UUID) -> None:
        gone = {key for key in region.logs if key.topic_id == topic_id}
        self.lost_by_word |= {kept for kept in region.folder.held() if kept[0] in gone}
        logs = {key: log for key, log in region.logs.items() if key not in gone}
        region.change(logs=logs, manifest=region.folder.manifest - gone)

    def tide(self, name: str, region_epoch: int = 0) -> None:
        """The primary publishes a tidemark over all that it has."""
        region = self.regions[name]
        assert region.term >= 0, name
        number = max((cut.point.number for cut, _ in region.tidemarks()), default=0) + 1
        point = TidemarkPoint(RegionEpoch(region_epoch or region.now.region_epoch), number)
        ends = {key: len(log) + (key == TIDEMARKS) for key, log in region.opened.items()}
        value = (point, tuple(sorted(ends.items())), region.metadata.version)
        region.put(TIDEMARKS, (*region.logs[TIDEMARKS], Batch(region.term, value)))
        region.change(reached=point)

    # What regions say to each other.

    def handshake(self) -> None:
        """Every region hears the others that it reaches (`FailoverDriver.learn`)."""
        for region in self.regions.values():
            if region.running:
                for peer in self.peers(region.name):
                    self._learn(region, peer)

    def _shown(self, region: Region) -> folder_life.Shown:
        assert region.folder.identity is not None
        return folder_life.Shown.of(region.folder.identity)

    def strangers(self, one: Region, other: Region) -> bool:
        verdict = folder_life.judge_births(self._shown(one), self._shown(other))
        return verdict is folder_life.BirthVerdict.OTHER

    def _learn(self, region: Region, peer: Region) -> None:
        if self.strangers(region, peer):
            return
        region.heard |= {entry.region_epoch: entry for entry in peer.metadata.lineage}
        state, epoch = region.now, peer.metadata.region_epoch
        if state.phase in {Phase.FENCED, Phase.UNBORN}:
            return
        known = [state.region_epoch, *(entry.region_epoch for entry in state.unseen)]
        known += [state.takeover.region_epoch] if state.takeover else []
        if epoch > max(known):
            region.record(HigherEpochLearned(RegionEpoch(epoch), peer.metadata.acting_region))

    def refute(self, primary: Region, mirror: str, point: TidemarkPoint, logs: int) -> None:
        """The primary hears that a mirror has shown what it lacks: writes close (`FailoverDriver.refuted`)."""
        state = primary.now
        if point.region_epoch != state.region_epoch or state.refuted is not None:
            return
        primary.refuted = HistoryRefuted(mirror, point.region_epoch, point.number, logs, "")
        self._digest(primary)

    def _digest(self, primary: Region) -> None:
        found = primary.refuted
        state = primary.now
        counts = found is not None and found.region_epoch == state.region_epoch
        if counts and state.phase.acts and not state.refuted:
            assert found is not None
            primary.record(found)

    # Effects of the failover machine, one at a time.

    def step(self, name: str) -> bool:
        """Run the next effect of a region; False if it only waits."""
        region = self.regions[name]
        before = region.state, region.open
        match failover.next_effect(region.now):
            case failover.SeekHistory():
                self._seek(region)
            case failover.CollectPromises(takeover=takeover):
                self._collect(region, takeover)
            case CutLogs() as effect:
                self._cut(region, effect)
            case failover.Adopt(entry=entry):
                self._take_term(region, entry.region_epoch)
                self.tide(region.name, entry.region_epoch)
                region.record(Adopted(entry.region_epoch))
                region.open = False
            case failover.Act():
                self._act(region)
            case failover.RollBackDrain():
                region.record(DrainRolledBack(""))
            case failover.LearnLineage():
                self._learn_lineage(region)
            case failover.Mirror():
                region.lost = frozenset()
            case failover.AwaitOperator():
                pass
        return (region.state, region.open) != before

    def _seek(self, region: Region) -> None:
        peers = self.peers(region.name)
        newest = max((peer.metadata.region_epoch for peer in peers), default=0)
        for peer in peers:
            found = self._shown(peer).history
            if peer.is_primary and peer.metadata.region_epoch == newest and found is not None:
                assert region.folder.identity is not None
                if region.metadata.region_epoch < found.region_epoch:
                    region.note(acting_region=found.region, region_epoch=found.region_epoch)
                joined = msgspec.structs.replace(region.folder.identity, joined=found)
                region.change(identity=joined)
                region.record(HistoryJoined(region.name, found, joined.folder_id))
                return

    def _report(self, peer: Region) -> directory.RegionReport:
        claim = peer.claim().point
        return directory.RegionReport(
            peer.name,
            RegionEpoch(peer.metadata.region_epoch),
            peer.acting,
            peer.now.promise,
            claim,
            abandoned_epoch=peer.now.abandoned_epoch,
        )

    def _act(self, region: Region) -> None:
        if region.lost and "T36 the manifest is not looked at" not in self.mutants:
            others = [name for name in self.regions if name != region.name]
            point = region.claim().point
            region.record(HistoryRefuted(others[0], region.now.region_epoch, point.number, 1, ""))
            return
        if region.term < 0:
            peers = [p for p in self.peers(region.name) if not self.strangers(region, p)]
            reports = [self._report(peer) for peer in peers]
            decision = directory.judge_start(region.now.region_epoch, reports)
            if decision.verdict is directory.StartVerdict.FOLLOW:
                ahead = max(reports, key=lambda report: report.region_epoch)
                region.record(HigherEpochLearned(ahead.region_epoch, decision.leader))
                return
            if decision.verdict is directory.StartVerdict.WAIT:
                return
            for peer in peers:
                if peer.claim().point.region_epoch == region.now.region_epoch:
                    shown = peer.shown()
                    missing = differences(region, evidence(peer, shown, shown.positions))
                    if missing and "T33 a start asks nobody" not in self.mutants:
                        self.refute(region, peer.name, shown.point, len(missing))
                        return
            self._take_term(region, region.now.region_epoch)
        self._digest(region)
        if region.now.may_act and region.now.phase is Phase.ACTING:
            region.open = True

    def _take_term(self, region: Region, region_epoch: int) -> None:
        used = [region.metadata.last_leader_epoch]
        used += [batch.leader_epoch for log in region.logs.values() for batch in log]
        counters = [
            fencing.leader_counter_of(LeaderEpoch(epoch))
            for epoch in used
            if epoch >= 0 and fencing.region_epoch_of(LeaderEpoch(epoch)) == region_epoch
        ]
        term = int(fencing.leader_epoch(RegionEpoch(region_epoch), 1 + max(counters, default=0)))
        region.note(last_leader_epoch=term)
        region.term = term

    def _collect(self, region: Region, takeover: TakeoverBegun) -> None:
        for peer in self.peers(region.name):
            if not self._promise(peer, takeover, region.name):
                region.record(TakeoverAbandoned("refused"))
                return
        if takeover.planned and not self.reaches(region.name, takeover.old_region):
            region.record(TakeoverAbandoned("the old region does not answer"))
            return
        if takeover.accepts:
            region.term = region.metadata.last_leader_epoch
            self._take_term(region, region.now.region_epoch)
            self.tide(region.name)
        cut = region.claim()
        if takeover.final is not None and cut.point < TidemarkPoint(*takeover.final):
            region.record(TakeoverAbandoned("the final tidemark was not reached"))
            return
        positions = dict.fromkeys(region.logs, 0) | dict(cut.positions)
        entry = LineageEntry(takeover.region_epoch, region.name, cut.point, positions)
        region.record(CutChosen(EntryRecord.of(entry)))

    def _promise(self, peer: Region, takeover: TakeoverBegun, candidate: str) -> bool:
        if peer.now.phase is Phase.UNBORN:
            return True  # it promises nothing, and the operator's word stands
        asked = directory.Promise(takeover.region_epoch, candidate)
        state = peer.now
        verdict = directory.judge_promise(state.promise, state.region_epoch, asked)
        if verdict is directory.PromiseVerdict.GRANTED:
            if state.phase is Phase.ACTING and peer.term >= 0:
                self.tide(peer.name)
            peer.record(PromiseGiven(takeover.region_epoch, candidate))
            return True
        return verdict is directory.PromiseVerdict.REPEATED

    def _cut(self, region: Region, effect: CutLogs) -> None:
        held = region.claim()
        known = {entry.region_epoch: entry for entry in region.metadata.lineage}
        known |= {entry.region_epoch: entry for entry in effect.entries}
        newest = effect.entries[-1]
        region.note(
            lineage=tuple(known[epoch] for epoch in sorted(known)),
            acting_region=newest.acting_region,
            region_epoch=max(region.metadata.region_epoch, newest.region_epoch),
        )
        for _, cut in effect.by_entry():
            for key, log in region.logs.items():
                if len(log) > cut.position_of(key):
                    cut_log(region, key, cut.position_of(key))
        region.change(reached=min(held.point, effect.cut.point))
        returned = region.now.phase is Phase.RETURNING
        region.record((Returned if returned else LogsCut)(effect.lineage_epoch))

    def _learn_lineage(self, region: Region) -> None:
        self.handshake()
        state = region.now
        unseen = tuple(
            EntryRecord.of(entry) for entry in region.known_lineage().since(state.region_epoch)
        )
        bound = unseen and unseen[-1].region_epoch < state.promise.region_epoch
        if (
            unseen
            and unseen[-1].acting_region != region.name
            and not (bound and self._is_bound(state))
        ):
            region.record(ReturnBegun(unseen))
            return
        given_up = self._given_up(state)
        if state.promise.region_epoch <= max(state.region_epoch, given_up):
            for peer in self.peers(region.name):
                if peer.is_primary and peer.metadata.region_epoch == state.region_epoch:
                    region.record(FollowResumed(peer.name, given_up))
                    return

    def _is_bound(self, state: failover.State) -> bool:
        """Until the candidate says that it gave up (T24); a region of its own promise knows that it did."""
        promise = state.promise
        if promise.candidate == state.region:
            return False
        return self._given_up(state) < promise.region_epoch

    def _given_up(self, state: failover.State) -> RegionEpoch:
        candidates = [
            peer.now for peer in self.peers(state.region) if peer.name == state.promise.candidate
        ]
        return max((each.abandoned_epoch for each in candidates), default=RegionEpoch(0))

    # A link session, from hello to the last byte.

    def copy(self, name: str, primary: str) -> None:
        """One session of the real link core; all that the primary has is copied, and what is whole is reached."""
        Session(self, self.regions[name], self.regions[primary]).run()

    # What an operator orders.

    def takeover(self, name: str, *, planned: bool = False, accepts: str = "") -> None:
        region = self.regions[name]
        known = [region.now.highest_epoch_known, region.metadata.region_epoch]
        for peer in self.peers(name):
            known += [peer.metadata.region_epoch, peer.now.highest_epoch_known]
        epoch = directory.next_region_epoch(known, NAMES.index(name))
        old, final = region.metadata.acting_region, None
        if planned:
            primary = self.regions[old]
            primary.record(DrainBegun("", name))
            self.tide(old)
            self.copy(name, old)
            final = tuple(primary.claim().point)
        region.record(
            TakeoverBegun(epoch, old, "", planned, not planned, final, accepts)  # type: ignore[arg-type]  # a point of two
        )


def _birth_by_configuration() -> folder_life.Birth:
    epoch = directory.next_region_epoch([], 0)
    return folder_life.Birth(birth_id="?", region=NAMES[0], region_epoch=epoch, wall_ms=0)
