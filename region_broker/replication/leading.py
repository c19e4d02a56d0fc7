"""The leader of a replica group in one leader epoch: what is committed, who is in sync, whom to take out and in.

INV-RPL1  HW is the least of what is durable on the *maximal* in-sync set, this member included: the committed set, and whoever is in
          a proposal whose end is not known (R2)
INV-RPL2  HW does not go down in a leader epoch, but where the log itself was cut (INV-RPL10)
INV-RPL3  HW of a log stands still while the committed in-sync set is smaller than that log's `min.insync.replicas` (R2), but for INV-RPL14
INV-RPL4  a follower is taken in only if it has reported, under this leader epoch and in the session that goes on, that in all
          logs of the group it has durably what lies below HW and below the start of this leader epoch, and is not fenced (R3)
INV-RPL5  a report of another session, leader epoch or incarnation changes nothing (R4)
INV-RPL6  once a newer leader epoch is known nothing leaves this core any more (R4)
INV-RPL7  one proposal at a time, each of the newest version known
INV-RPL8  a member is in sync for all logs of the group, or for none
INV-RPL9  while a log of the group has stopped at the leader nobody is taken in but who was in sync when it did: of others it
          cannot be told whether they have all that was committed in it
INV-RPL10 where a log was cut, or its start went back, a core takes the place of the one before, in the same leader epoch (`anew`):
          nothing that followers said counts in it, but whoever is in a proposal whose end is not known does, and who went back, is lost,
          or was in sync when a log stopped is so still
INV-RPL11 the low watermark of a log is the least log start of the same members, each durable: an order to delete up to there is
          acknowledged, and whoever leads next begins no lower. Whoever is taken in has the leader's log start, too. It goes down in a
          leader epoch only where that log was cut, or its start went back (INV-RPL10)

INV-RPL14 HW covers what older leader epochs left in a log as soon as as many are in sync as the settings ask for in all logs, though its
          topic asks for more: nobody is answered by that, whoever leads next has it, and until HW covers it nothing of the group is
          served (R6). A core that goes on in its leader epoch (`anew`) counts as left what the first one found
          1. A tenant of three nodes has his topic ask for three, and one node is lost. 2. He goes on with acks=1. 3. A leader is elected,
          and waits for HW of that log: no topic takes writes before the third node is back.

INV-RPL13 one member, where the settings name it, may lose its session for `awaited_ms` and stay in the set, unless it is fenced: it counts
          meanwhile, so HW waits for it (INV-RPL1), as for one that is slow

INV-RPL15 a step looks at the logs that its event names, and at none else, whoever is outside the in-sync set: one that is away for hours costs no
          report, no group of syncs and no log that is made anything

INV-RPL12 a follower one of whose logs has stopped, or did not open, leaves the set at once, and is not taken in while that is so: what
          it said of that log before counts for nothing

Why INV-RPL1 is enough. Who leads next is a member of the set that the metadata have then. They have what this leader knew to be
committed, or what it proposed under that version, or less; so the next leader counted in each HW of this one, and has all below it on
stable storage. A proposal whose outcome is not known counts until the metadata show a newer version: it may be carried out late.

Work: a report, or a group of syncs, costs the logs that it names, each times the members (INV-RPL15). Sessions that begin, and changes of the
in-sync set, cost more: all logs, and those that are not committed to their ends.

Sources: KIP-101, KIP-392, KIP-497, KIP-903, KIP-966; Kafka's `Partition.scala`, from which this differs in three points. The set is the
group's. What counts is durable, not written. Who lags is not taken in though it has all below HW: it would leave again.
Not here: what followers do (`following`), who leads (`controller.cluster`), fetch sessions, waiting requests.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.replication.effects import (
    Deposed,
    Enough,
    HighWatermark,
    LeaderEffect,
    LowWatermark,
    NotEnough,
    ProposeInSync,
    WentBack,
)
from region_broker.replication.events import (
    FollowerConnected,
    FollowerLost,
    FollowerReport,
    InSyncChanged,
    LeaderEpochSeen,
    LeaderEvent,
    LogClosed,
    LogOpened,
    LogsDurable,
    LogsStopped,
    LogStartMoved,
    MembersFenced,
    MinInSyncChanged,
    ProposalEnded,
    Ticked,
)
from region_broker.replication.facts import FollowerStanding, InSync
from region_broker.replication.progress import FollowerProgress, LeaderLogState


@dataclass(frozen=True, slots=True)
class LeadingSettings:
    """`replica_lag_time_ms_max`: Kafka's `replica.lag.time.max.ms`; `proposal_pause_ms`: how long after one that came to nothing.

    `awaited`: whose lost session leaves it in the set for `awaited_ms` (INV-RPL13). `min_in_sync`: what is asked for where a topic asks
    for nothing, or for more (INV-RPL14).
    """

    replica_lag_time_ms_max: int = 30_000
    proposal_pause_ms: int = 500
    awaited: Member | None = None
    awaited_ms: int = 400
    min_in_sync: int = 1


class LeadingCore:
    """One member that leads one group under one leader epoch. Made when it begins to lead; after that only by `anew`."""

    def __init__(
        self,
        me: Member,
        leader_epoch: LeaderEpoch,
        in_sync: InSync,
        *,
        settings: LeadingSettings,
        now_ms: int,
    ) -> None:
        """Lead with the in-sync set that elected this member. Its logs follow as `LogOpened`."""
        assert me in in_sync.members, (me, in_sync)
        self._me = me
        self._leader_epoch = leader_epoch
        self._settings = settings
        self._in_sync = in_sync
        self._logs: dict[LogKey, LeaderLogState] = {}
        self._uncommitted: dict[LogKey, None] = {}
        """The logs whose HW is below what is durable here: where it may move."""
        self._starting: dict[LogKey, None] = {}
        """The logs whose low watermark is below their log start here: where it may move."""
        self._thresholds: Counter[int] = Counter()
        self._older_ends: Mapping[LogKey, int] = {}
        """What the core before this one in its leader epoch counted as left by older ones (INV-RPL14)."""
        self._followers: dict[Member, FollowerProgress] = {}
        self._fenced: frozenset[Member] = frozenset()
        self._stopped: dict[LogKey, frozenset[Member]] = {}
        """The logs that have stopped here, and who was in sync then."""
        self._pending: ProposeInSync | None = None
        self._doubtful: frozenset[Member] = frozenset()
        """Whoever was in a proposal, under this version, of which nobody knows whether it was carried out."""
        self._proposal_count = 0
        self._not_before_ms = now_ms
        self._counted: tuple[FollowerProgress, ...] = ()
        self._is_deposed = False
        self._effects: list[LeaderEffect] = []
        self._count_anew(now_ms)

    def anew(self, in_sync: InSync, now_ms: int) -> "LeadingCore":
        """Return what leads on in this leader epoch, as a log was cut (INV-RPL10); `in_sync`: what the metadata have now.

        1. A proposal to let C in is under way. 2. A log is cut, and this begins anew. 3. HW counts without C, and moves. 4. The
        proposal is carried out, and C is elected, which has not all of that.
        """
        core = LeadingCore(
            self._me, self._leader_epoch, in_sync, settings=self._settings, now_ms=now_ms
        )
        core._stopped, core._fenced = self._stopped, self._fenced
        core._older_ends = {key: log.older_end for key, log in self._logs.items()}
        if in_sync.version == self._in_sync.version:
            proposed = self._pending.members if self._pending is not None else frozenset()
            core._doubtful = self._doubtful | proposed
            core._count_anew(now_ms)
        for follower in core._counted:
            before = self._followers.get(follower.member)
            if before is not None:
                follower.went_back, follower.is_lost = before.went_back, before.is_lost
                follower.lost_ms = before.lost_ms
        return core

    # -- what is known ---------------------------------------------------------------------------

    @property
    def in_sync(self) -> InSync:
        """Return the committed in-sync set, as far as it is known here."""
        return self._in_sync

    @property
    def is_deposed(self) -> bool:
        """Return whether this leader epoch is over."""
        return self._is_deposed

    def high_watermark(self, key: LogKey) -> int:
        """Return up to where acks=all is answered; acks=1 is at `durable_end`. KeyError for a log that is not open."""
        return self._logs[key].high_watermark

    def durable_end(self, key: LogKey) -> int:
        """Return up to where acks=1 is answered, while this leads: what is durable here."""
        return self._logs[key].durable_end

    def has_enough(self, key: LogKey) -> bool:
        """Return whether acks=all is taken: else NOT_ENOUGH_REPLICAS, before anything is appended (R1)."""
        return len(self._in_sync.members) >= self._logs[key].min_in_sync

    def low_watermark(self, key: LogKey) -> int:
        """Return up to where orders to delete are answered (INV-RPL11)."""
        return self._logs[key].low_watermark

    def knows_latest(self, key: LogKey) -> bool:
        """Return whether HW covers all that older leader epochs acknowledged: until then OFFSET_NOT_AVAILABLE (R6)."""
        log = self._logs[key]
        return log.high_watermark >= log.epoch_start_offset

    def counts_on(self, member: Member, key: LogKey) -> bool:
        """Return whether what a member has of a log counts, or may without another word of its: it has not said that the log stopped."""
        follower = self._followers.get(member)
        return follower is None or follower in self._counted or not follower.lacks((key,))

    def is_deleted_elsewhere(self, key: LogKey, offset: int) -> bool:
        """Return whether a follower's log starts behind `offset`: one that heard of a deletion that this leader has not heard of."""
        followers = self._followers.values()
        return any(not each.is_lost and each.log_starts.get(key, 0) > offset for each in followers)

    def standings(self, now_ms: int) -> dict[Member, FollowerStanding]:
        """Return how far each follower is that came in, or is in sync, for people; nothing is decided by it."""
        return {
            member: follower.standing(self._logs, now_ms)
            for member, follower in self._followers.items()
        }

    def lacked_by(self, member: Member) -> dict[LogKey, int]:
        """Return how many records a follower lacks that `standings` has, by log, for people."""
        return self._followers[member].lacked(self._logs)

    # -- events ----------------------------------------------------------------------------------

    def step(self, event: LeaderEvent, now_ms: int) -> list[LeaderEffect]:
        """Take one event; the effects are to be carried out in their order."""
        if self._is_deposed:
            return []
        self._take(event, now_ms)
        if not self._is_deposed:
            self._propose(now_ms)
        effects, self._effects = self._effects, []
        return effects

    def _take(self, event: LeaderEvent, now_ms: int) -> None:
        match event:
            case FollowerConnected() | FollowerReport() | FollowerLost():
                self._follower(event, now_ms)
            case LogsDurable(durable_ends):
                self._durable(durable_ends, now_ms)
            case LogOpened() | LogClosed() | MinInSyncChanged() | LogStartMoved():
                self._log_changed(event, now_ms)
            case LogsStopped(keys):
                known, in_sync = self._stopped, self._in_sync.members
                self._stopped = {key: known.get(key, in_sync) for key in keys}
            case InSyncChanged() | MembersFenced() | LeaderEpochSeen():
                self._metadata_changed(event, now_ms)
            case ProposalEnded():
                self._proposal_ended(event, now_ms)
            case Ticked():
                pass
            case _:
                assert_never(event)

    def _metadata_changed(
        self, event: InSyncChanged | MembersFenced | LeaderEpochSeen, now_ms: int
    ) -> None:
        match event:
            case MembersFenced(members):
                self._fenced = members
            case LeaderEpochSeen(leader_epoch):
                self._seen(leader_epoch)
            case InSyncChanged(leader_epoch, in_sync):
                self._seen(leader_epoch)
                if leader_epoch == self._leader_epoch and in_sync.version > self._in_sync.version:
                    self._change(in_sync, now_ms)
            case _:
                assert_never(event)

    def _seen(self, leader_epoch: LeaderEpoch) -> None:
        """Stop for good if somebody leads under a newer leader epoch (INV-RPL6)."""
        if leader_epoch > self._leader_epoch:
            self._is_deposed = True
            self._effects = [Deposed(leader_epoch)]

    # -- logs ------------------------------------------------------------------------------------

    def _log_changed(
        self, event: LogOpened | LogClosed | MinInSyncChanged | LogStartMoved, now_ms: int
    ) -> None:
        match event:
            case LogOpened():
                self._open(event, now_ms)
            case LogClosed(key):
                gone = self._logs.pop(key, None)
                if gone is not None:
                    self._forget_threshold(gone)
                self._uncommitted.pop(key, None)
                self._starting.pop(key, None)
                for follower in self._followers.values():
                    follower.forget(key)
            case MinInSyncChanged(key, min_in_sync):
                log = self._logs[key]
                self._forget_threshold(log)
                log.min_in_sync = min_in_sync
                self._thresholds[min_in_sync] += 1
                self._advance(key, log)
            case LogStartMoved(key, log_start_offset):
                self._start_moved(key, log_start_offset, now_ms)
            case _:
                assert_never(event)

    def _open(self, event: LogOpened, now_ms: int) -> None:
        key = event.key
        assert key not in self._logs, event
        assert event.high_watermark <= event.durable_end, event
        log = self._logs[key] = LeaderLogState(event)
        log.older_end = min(log.older_end, self._older_ends.get(key, log.older_end))
        self._thresholds[log.min_in_sync] += 1
        for follower in self._followers.values():
            follower.threshold_moved(key, log)
            follower.leader_moved([key], self._logs, now_ms)
            follower.start_moved(key, log, now_ms)
        self._advance(key, log)
        self._advance_start(key, log)

    def _start_moved(self, key: LogKey, log_start_offset: int, now_ms: int) -> None:
        log = self._logs.get(key)
        if log is None or log_start_offset <= log.log_start_offset:
            return
        log.log_start_offset = log_start_offset
        for follower in self._followers.values():
            follower.start_moved(key, log, now_ms)
        self._advance_start(key, log)

    def _forget_threshold(self, log: LeaderLogState) -> None:
        self._thresholds[log.min_in_sync] -= 1
        if not self._thresholds[log.min_in_sync]:
            del self._thresholds[log.min_in_sync]

    def _durable(self, durable_ends: Mapping[LogKey, int], now_ms: int) -> None:
        moved = []
        for key, durable_end in durable_ends.items():
            log = self._logs.get(key)
            if log is not None and durable_end > log.durable_end:
                log.durable_end = durable_end
                moved.append(key)
        for follower in self._followers.values():
            follower.leader_moved(moved, self._logs, now_ms)
        for key in moved:
            self._advance(key, self._logs[key])

    def _advance(self, key: LogKey, log: LeaderLogState) -> None:
        """Move HW as far as the maximal in-sync set allows (INV-RPL1, INV-RPL2, INV-RPL3)."""
        end = log.durable_end
        for follower in self._counted:
            end = min(end, follower.durable_ends.get(key, 0))
        if len(self._in_sync.members) < log.min_in_sync:
            end = min(end, self._older_end(log))
        if end > log.high_watermark:
            log.high_watermark = end
            self._effects.append(HighWatermark(key, end))
            for follower in self._followers.values():
                follower.threshold_moved(key, log)
        if log.high_watermark < log.durable_end:
            self._uncommitted[key] = None
        else:
            self._uncommitted.pop(key, None)

    def _older_end(self, log: LeaderLogState) -> int:
        """Return up to where HW may move of a log whose topic asks for more than are in sync (INV-RPL14)."""
        has_enough = len(self._in_sync.members) >= self._settings.min_in_sync
        return log.older_end if has_enough else log.high_watermark

    def _advance_start(self, key: LogKey, log: LeaderLogState) -> None:
        """Move the low watermark as far as the maximal in-sync set allows (INV-RPL11)."""
        start = log.log_start_offset
        for follower in self._counted:
            start = follower.start_of(key, start)
        if start > log.low_watermark:
            log.low_watermark = start
            self._effects.append(LowWatermark(key, start))
        if log.low_watermark < log.log_start_offset:
            self._starting[key] = None
        else:
            self._starting.pop(key, None)

    def _advance_all(self) -> None:
        """Look at each log whose marks may move: others are counted now."""
        for key in list(self._uncommitted):
            self._advance(key, self._logs[key])
        for key in list(self._starting):
            self._advance_start(key, self._logs[key])

    # -- followers -------------------------------------------------------------------------------

    def _follower(
        self, event: FollowerConnected | FollowerReport | FollowerLost, now_ms: int
    ) -> None:
        """Take what comes of a follower, if it is of this leader epoch, in the session that goes on (INV-RPL5)."""
        if not isinstance(event, FollowerLost):
            self._seen(event.leader_epoch)
            if event.leader_epoch != self._leader_epoch or event.member == self._me:
                return
        follower = self._followers.get(event.member)
        if isinstance(event, FollowerConnected):
            if follower is None:
                follower = self._followers[event.member] = FollowerProgress(event.member, None)
            if follower.session is None or event.session > follower.session:
                follower.begin(event.session, self._logs, now_ms)
        elif follower is None or event.session != follower.session or follower.is_lost:
            return
        elif isinstance(event, FollowerLost):
            follower.end(now_ms)
        else:
            self._report(follower, event, now_ms)

    def _report(self, follower: FollowerProgress, event: FollowerReport, now_ms: int) -> None:
        if event.lacking is not None:
            follower.lack(event.lacking, self._logs, now_ms)
            follower.went_back |= bool(event.lacking) and follower in self._counted
        moved, fewer = follower.report(event.durable_ends, self._logs, now_ms)
        if fewer:
            follower.went_back |= follower in self._counted
            self._effects.append(WentBack(event.member, tuple(fewer)))
        for key in moved:
            self._advance(key, self._logs[key])
        for key in follower.report_starts(event.log_starts, self._logs):
            self._advance_start(key, self._logs[key])

    # -- the in-sync set -------------------------------------------------------------------------

    def _change(self, in_sync: InSync, now_ms: int) -> None:
        """Take the metadata's set over: no proposal under an older version can be carried out any more."""
        before, after = len(self._in_sync.members), len(in_sync.members)
        assert self._me in in_sync.members, (
            "whoever takes a leader out of the set elects another one"
        )
        self._in_sync = in_sync
        self._pending, self._doubtful = None, frozenset()
        self._not_before_ms = now_ms
        self._count_anew(now_ms)
        for min_in_sync in sorted(self._thresholds):
            if after < min_in_sync <= before:
                self._effects.append(NotEnough(min_in_sync))
            elif before < min_in_sync <= after:
                self._effects.append(Enough(min_in_sync))
        self._advance_all()

    def _count_anew(self, now_ms: int) -> None:
        """Count the maximal set; whoever is new in it without having been heard has the time that a lagging one has."""
        proposed = self._pending.members if self._pending is not None else frozenset()
        maximal = self._in_sync.members | proposed | self._doubtful
        for member in sorted(maximal - {self._me} - self._followers.keys()):
            self._followers[member] = FollowerProgress(member, now_ms)
        for member, follower in list(self._followers.items()):
            if member not in maximal:
                follower.went_back = False
                if follower.session is None:
                    del self._followers[member]
        self._counted = tuple(self._followers[member] for member in sorted(maximal - {self._me}))

    def _propose(self, now_ms: int) -> None:
        """Ask for the set as it should be, if it is another one, or if it is in doubt and holds HW back (INV-RPL7)."""
        if self._pending is not None or now_ms < self._not_before_ms:
            return
        members = self._in_sync.members
        wanted = {self._me}
        wanted.update(
            each.member for each in self._followers.values() if self._is_wanted(each, now_ms)
        )
        if wanted == members and self._doubtful <= wanted:
            return
        self._proposal_count += 1
        self._pending = ProposeInSync(
            self._proposal_count, self._leader_epoch, frozenset(wanted), self._in_sync.version
        )
        self._effects.append(self._pending)
        self._count_anew(now_ms)

    def _is_wanted(self, follower: FollowerProgress, now_ms: int) -> bool:
        """Return whether a follower may stay, or be taken in: asked in every step, so what is known at once is asked first (INV-RPL15)."""
        member = follower.member
        if not self._may_stay(follower, now_ms):
            return False
        if member in self._in_sync.members:
            return True
        if not follower.has_enough:
            return False  # INV-RPL4
        if any(member not in had for had in self._stopped.values()):
            return False  # INV-RPL9
        return not (follower.lacks(self._logs) or follower.lacks(self._stopped))  # INV-RPL12

    def _may_stay(self, follower: FollowerProgress, now_ms: int) -> bool:
        if follower.went_back or follower.member in self._fenced:
            return False
        if follower.is_lost and not self._is_awaited(follower, now_ms):
            return False
        return not follower.lags(now_ms, self._settings.replica_lag_time_ms_max)

    def _is_awaited(self, follower: FollowerProgress, now_ms: int) -> bool:
        settings = self._settings
        is_meant = follower.member == settings.awaited and follower in self._counted
        return is_meant and now_ms - follower.lost_ms < settings.awaited_ms  # INV-RPL13

    def _proposal_ended(self, event: ProposalEnded, now_ms: int) -> None:
        pending = self._pending
        if pending is None or event.number != pending.number:
            return
        self._pending = None
        if not event.is_refused:
            self._doubtful |= pending.members
        self._not_before_ms = now_ms + self._settings.proposal_pause_ms
        self._count_anew(now_ms)
        self._advance_all()
