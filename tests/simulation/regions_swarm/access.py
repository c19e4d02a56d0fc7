"""Somebody who changes users, ACLs and quotas while two regions live, and what is looked at of it all the time (INV-SAC1).

INV-RGA1  after a planned switch all is there that was answered as changed
INV-RGA2  a region that has reached a tidemark has what was answered before that one was begun, as a mirror and where it takes over: what it shows is
          never under older access than it was written under
INV-RGA3  once all is well every node of both regions has the same, and in it all that was answered and no word gave up

Each change adds a row of its own and removes that of the change `KEPT` before, so what is there tells which changes have been made.
Clients of these lives do not log in: they are let in as super users. Not here: whole drills behind shut doors (`chaos.access`).
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from geo_replicator.lineage import TidemarkPoint
from geo_replicator.tidemark import TidemarkError
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.security.access import (
    Access,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    Quota,
    ResourceType,
    ScramKeys,
)
from tests.simulation.cluster_regions import AnyNode
from tests.simulation.regions_swarm.stage import Stage

KEPT: Final = 9
PACE_S: Final = 0.15
ANSWER_S: Final = 5.0
_PREFIX: Final = "life-"
_KINDS: Final = 3


@dataclass(slots=True)
class Change:
    """`epoch`: the region epoch it was ordered in. `behind`: who has reached this tidemark has it; None while it is not answered."""

    number: int
    epoch: int
    behind: TidemarkPoint | None = None
    is_lost: bool = False
    """A word gave it up, or may have."""

    @property
    def holds(self) -> bool:
        """Return whether it was answered and is not given up."""
        return self.behind is not None and not self.is_lost


def wrong_at(changes: Iterable[Change], there: frozenset[int], point: TidemarkPoint | None) -> Iterator[str]:  # fmt: skip
    """Say what of the last changes is not as it must be where this tidemark was reached; None: wherever it stands."""
    last = list(changes)[-KEPT:]
    for each in last:
        if each.behind is None or each.is_lost or (point is not None and each.behind > point):
            continue
        if each.number not in there:
            yield f"change {each.number} was answered, is behind {each.behind}, and is not there"
        if each.number - KEPT in there:
            yield f"change {each.number} has removed {each.number - KEPT}, is behind {each.behind}, and that is there"


def numbers_in(access: Access) -> frozenset[int]:
    """Return the changes whose rows are there."""
    names = [each.name for each in access.acls]
    names += [each.user for each in access.keys]
    names += [name for each in access.quotas for _, name in each.entity if name is not None]
    return frozenset(int(each.removeprefix(_PREFIX)) for each in names)


def change_of(number: int) -> AccessChange:
    """Return what change `number` orders: a row that comes, and one that goes."""
    come, go = _Rows(number), _Rows(number - KEPT)
    assert number % _KINDS == (number - KEPT) % _KINDS
    if number % _KINDS == 0:
        return AccessChange(acls_added=(come.acl,), acls_removed=(go.acl,))
    if number % _KINDS == 1:
        return AccessChange(keys_put=(come.keys,), keys_removed=((go.name, go.keys.mechanism),))
    return AccessChange(quotas_put=(come.quota, Quota(go.quota.entity, {})))


@dataclass(frozen=True, slots=True)
class _Rows:
    number: int

    @property
    def name(self) -> str:
        return f"{_PREFIX}{self.number}"

    @property
    def acl(self) -> Acl:
        return Acl(
            ResourceType.TOPIC, PatternType.LITERAL, self.name, f"User:{self.name}", "*", Operation.READ, Permission.DENY
        )  # fmt: skip

    @property
    def keys(self) -> ScramKeys:
        return ScramKeys(self.name, "SCRAM-SHA-512", b"salt", 4096, b"stored", b"server")

    @property
    def quota(self) -> Quota:
        return Quota((("user", self.name),), {"producer_byte_rate": 1e6})


@dataclass
class AccessWatch:
    """`run` beside a life's clients, `look` with its watch."""

    stage: Stage
    changes: list[Change] = field(default_factory=list)
    answered: int = 0
    _epoch: int = 0
    _words: int = 0
    _reached: dict[str, TidemarkPoint] = field(default_factory=dict)
    _known: dict[str, tuple[Access, frozenset[int]]] = field(default_factory=dict)
    _stopped: bool = False

    def stop(self) -> None:
        """Change nothing any more."""
        self._stopped = True

    async def run(self) -> None:
        """Change one thing after another where the newest region acts, until stopped."""
        while not self._stopped:
            await asyncio.sleep(PACE_S)
            leaders = [n for n in self._leaders() if n.node.role.acting and n.name not in self.stage.paused]  # fmt: skip
            if leaders and not self._stopped:
                await self._change(max(leaders, key=lambda n: int(n.node.role.region_epoch)))

    def _leaders(self) -> Iterator[AnyNode]:
        for region in self.stage.regions.values():
            leader = region.leader
            if leader is not None and not leader.died:
                yield leader

    async def _change(self, leader: AnyNode) -> None:
        self.look()
        change = Change(len(self.changes) + KEPT, int(leader.node.role.region_epoch))
        self.changes.append(change)
        work = leader.as_process(leader.node.topics.change_access(change_of(change.number)))
        work.add_done_callback(_heard)
        await asyncio.wait([work], timeout=ANSWER_S)
        if not work.done() or work.cancelled():
            return
        error = work.exception()
        if error is None and not leader.died:
            # A tidemark may be under way that was begun before: the one behind that is the first that says so.
            published = leader.node.tidemarks.claim().point
            change.behind = TidemarkPoint(published.region_epoch, published.number + 2)
            change.is_lost = change.epoch < self._epoch
            self.answered += 1
        elif error is not None and not isinstance(error, (CommandRefused, OSError)):
            raise error

    # -- looks -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Look once, at who leads each region (INV-RGA1, INV-RGA2)."""
        for leader in self._leaders():
            role, point = leader.node.role, self._point_of(leader)
            name = leader.node.config.region
            # Who takes over has tidemarks of its own before it acts.
            epoch = max(int(role.region_epoch) if role.acting else 0, int(point.region_epoch) if point is not None else 0)  # fmt: skip
            if epoch > self._epoch:
                self._act(name, leader, epoch)
            elif not role.acting and point is not None:
                self._reached[name] = point
            if point is not None:
                self._blame(leader, point, f"at {leader.name}, which has reached {point}")

    def _act(self, region: str, leader: AnyNode, epoch: int) -> None:
        """Another region acts, or the same one again: by a word what its tidemark did not hold may be gone."""
        words, self._epoch = len(self.stage.story.words), epoch
        if words > self._words:
            self._words = words
            reached = self._reached.get(region)
            for each in self.changes:
                if each.behind is not None and (reached is None or each.behind > reached):
                    each.is_lost = True
        self._blame(leader, None, f"at {leader.name}, which goes on under {epoch} now")

    def _blame(self, leader: AnyNode, point: TidemarkPoint | None, where: str) -> None:
        for text in wrong_at(self.changes, self._there(leader), point):
            self.stage.blame(f"{text} {where}")

    def _there(self, node: AnyNode) -> frozenset[int]:
        access = node.node.storage.metadata.image.access
        known = self._known.get(node.name)
        if known is None or known[0] is not access:
            known = self._known[node.name] = (access, numbers_in(access))
        return known[1]

    @staticmethod
    def _point_of(leader: AnyNode) -> TidemarkPoint | None:
        try:
            return leader.node.tidemarks.claim().point
        except TidemarkError:
            return None  # its log cannot be read: it shows nothing by it

    def differing(self) -> list[str]:
        """Return what is not as it must be once all is well (INV-RGA3)."""
        leaders = list(self._leaders())
        found = [
            f"the access of {two.name} is not that of {leaders[0].name}"
            for two in leaders[1:]
            if two.node.storage.metadata.image.access != leaders[0].node.storage.metadata.image.access
        ]  # fmt: skip
        for each in leaders:
            found += [f"{text} at {each.name}" for text in wrong_at(self.changes, self._there(each), None)]  # fmt: skip
        return found


def _heard(work: "asyncio.Task[Any]") -> None:
    """Let nobody complain that an error was not read: a node may have died meanwhile."""
    if not work.cancelled():
        work.exception()
