"""When the faults are over: the group must come to rest, and serve (INV-RSJ10)."""

from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.effects import Role
from tests.simulation.raft.judge import Violated
from tests.simulation.raft.troubles import Troubles
from tests.simulation.raft.world import ELECTION_MS, World

SETTLE_MS = 40 * ELECTION_MS
SERVE_MS = 4 * ELECTION_MS


def settle(world: World, troubles: Troubles) -> None:
    """End the faults, and hold the group to its promise."""
    world.quiet = True
    world.cuts.clear()
    for name, member in world.members.items():
        member.dies_after = None
        world.resume(name)
        world.start(name)
    _wait_until_at_rest(world, SETTLE_MS)
    leader = _leader(world)
    assert leader is not None
    tickets = {troubles.propose(leader.me), troubles.read(leader.me)}
    _wait_until_at_rest(world, SERVE_MS)
    _hold_to_account(world, tickets)


def _wait_until_at_rest(world: World, limit_ms: int) -> None:
    until_ms = world.now_ms + limit_ms
    while world.now_ms < until_ms:
        world.run(world.now_ms + ELECTION_MS // 2)
        if _is_at_rest(world):
            return
    cores = [each.core for each in world.members.values()]
    says = [(c.role.value, c.term, c.commit_index, len(c.membership.voters)) for c in cores if c]
    raise Violated(f"INV-RSJ10: no rest within {limit_ms} ms: {says}")


def _leader(world: World) -> RaftCore | None:
    cores = [each.core for each in world.members.values() if each.core is not None]
    leaders = [core for core in cores if core.role is Role.LEADER]
    return leaders[0] if len(leaders) == 1 else None


def _is_at_rest(world: World) -> bool:
    """Return whether one of the voters leads, and all that belong to the group have applied its whole log."""
    leader = _leader(world)
    if leader is None or world.judge.open:
        return False
    if leader.me not in leader.membership.voters:
        return False
    last = world.members[leader.me].disk.last_index
    belonging = [world.members[m] for m in (*leader.membership.voters, *leader.membership.learners)]
    return all(each.applied == last == each.disk.last_index for each in belonging)


def _hold_to_account(world: World, tickets: set[int]) -> None:
    judge = world.judge
    if judge.open or not tickets <= judge.done:
        raise Violated(f"INV-RSJ10: not served at rest: {sorted(tickets - judge.done)}")
    leader = _leader(world)
    assert leader is not None
    for member in (*leader.membership.voters, *leader.membership.learners):
        if world.members[member].commands != judge.commands:
            raise Violated(f"INV-RSJ9: {member} has other commands than were committed")
