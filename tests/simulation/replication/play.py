"""Plays one life: what happens next is drawn, faults end, and then everything must settle."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.simulation.replication.judge import Violation, violated
from tests.simulation.replication.world import Connection, Node, World

STEPS: Final = 600
SETTLING_ROUNDS: Final = 400
WEIGHTS: Final[Mapping[str, float]] = {
    "message": 120, "answer": 40, "produce": 14, "sync": 24, "learn": 16, "propose": 10, "doubt": 3, "tick": 5, "break": 1,
    "ghost": 4, "repeat": 3, "crash": 1.5, "start": 6, "fence": 0.5, "admit": 2, "elect": 1.5, "trim": 1, "empty": 1, "wind back": 1, "make": 2, "delete": 0.5, "stop": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Played:
    """What a life came to: what was wrong, and what had happened."""

    violation: str
    steps: tuple[str, ...]
    committed: int
    seen: Counter[str]


def play(seed: int, weights: Mapping[str, float] = WEIGHTS) -> Played:
    """Play the life of this seed; `weights`: how often what happens."""
    world = World(random.Random(seed))
    violation = ""
    try:
        for _ in range(STEPS):
            _step(world, weights)
            world.look()
        _settle(world)
    except Violation as found:
        violation = str(found)
    except AssertionError as found:
        violation = f"assertion: {found!r}"
    committed = sum(map(len, world.judge.committed.values()))
    return Played(violation, tuple(world.played), committed, world.seen)


def _step(world: World, weights: Mapping[str, float]) -> None:
    [name] = world.chance.choices(list(weights), list(weights.values()))
    world.now_ms += world.chance.choice((0, 1, 5, 20))
    done = _MOVES[name](world)
    if done is not None:
        world.seen[name] += 1
        world.played.append(f"{world.now_ms} {name} {done}")


def _message(world: World) -> str | None:
    ready = [c for c in world.connections if c.to_leader or c.to_follower]
    return None if not ready else _deliver(world, world.chance.choice(ready))


def _deliver(world: World, connection: Connection) -> str:
    ways = [way for way in ("to_leader", "to_follower") if getattr(connection, way)]
    way = world.chance.choice(ways)
    text = f"{connection.number} {way} {getattr(connection, way)[0]}"
    getattr(world, way)(connection)
    return text


def _ghost(world: World) -> str | None:
    ready = [c for c in world.broken if c.to_leader or c.to_follower]
    return None if not ready else _deliver(world, world.chance.choice(ready))


def _answer(world: World) -> str | None:
    ready = [c for c in world.connections if c.waiting and _leads(world, c)]
    if not ready:
        return None
    connection = world.chance.choice(ready)
    world.nodes[connection.leader.node_id - 1].answer(connection)
    return str(connection.number)


def _leads(world: World, connection: Connection) -> bool:
    node = world.nodes[connection.leader.node_id - 1]
    return node.is_up and node.leading is not None and node.led_epoch == connection.leader_epoch


def _at(
    suits: Callable[[World, Node], bool], act: Callable[[World, Node], None]
) -> Callable[[World], str | None]:
    def move(world: World) -> str | None:
        ready = [node for node in world.nodes if suits(world, node)]
        if not ready:
            return None
        node = world.chance.choice(ready)
        act(world, node)
        return str(node.disk.member)

    return move


def _is_up(_world: World, node: Node) -> bool:
    return node.is_up


def _is_down(_world: World, node: Node) -> bool:
    return not node.is_up


def _is_leading(_world: World, node: Node) -> bool:
    return node.is_up and node.leading is not None


def _is_spare(world: World, node: Node) -> bool:
    """Return whether a disk may be lost: somebody of the in-sync set has its own."""
    return not node.is_up and bool(world.survivors().keys() - {node.disk.member})


def _wind_back(world: World, node: Node) -> None:
    ends = {key: log.end for key, log in node.disk.logs.items()}
    node.disk.wind_back(world.chance)
    if node.disk.member in world.named():
        world.wound_back.setdefault(node.disk.member, ends)


def _proposal(act: Callable[[World, int], None]) -> Callable[[World], str | None]:
    def move(world: World) -> str | None:
        if not world.proposals:
            return None
        index = world.chance.randrange(len(world.proposals))
        wish = str(world.proposals[index][1])
        act(world, index)
        return wish

    return move


def _elect(world: World) -> str:
    # Who is alive is never known for sure: one that is may be passed over.
    alive = frozenset(n.disk.member for n in world.nodes if n.is_up and world.chance.random() < 0.9)
    world.elect(alive)
    return str(world.register)


def _tick(world: World) -> str:
    world.now_ms += world.chance.choice((20, 100, 100, 600))
    for node in world.nodes:
        if node.is_up:
            node.tick()
    return ""


def _break(world: World) -> str | None:
    if not world.connections:
        return None
    connection = world.chance.choice(world.connections)
    world.break_off(connection)
    return str(connection.number)


_MOVES: Final[dict[str, Callable[[World], str | None]]] = {
    "message": _message,
    "answer": _answer,
    "ghost": _ghost,
    "produce": _at(_is_leading, lambda _, node: node.produce()),
    "sync": _at(_is_up, lambda _, node: node.sync(0.7)),
    "learn": _at(_is_up, lambda _, node: node.learn()),
    "propose": _proposal(lambda world, index: world.carry_out(index)),
    "doubt": _proposal(lambda world, index: world.doubt(index)),
    "tick": _tick,
    "break": _break,
    "crash": _at(_is_up, lambda _, node: node.crash()),
    "start": _at(_is_down, lambda _, node: node.start()),
    "fence": _at(lambda *_: True, lambda world, node: world.fence(node)),
    "admit": _at(_is_up, lambda world, node: world.admit(node.disk.member)),
    "elect": _elect,
    "repeat": lambda world: world.repeat_report() if world.reported else None,
    "trim": _at(_is_leading, lambda _, node: node.trim()),
    "empty": _at(_is_spare, lambda _, node: node.disk.empty()),
    "wind back": _at(_is_spare, _wind_back),
    "make": lambda world: world.make_log(),
    "delete": lambda world: world.delete_log(),
    "stop": _at(_is_leading, lambda _, node: node.stop_log()),
}


def _settle(world: World) -> None:
    """End all faults: everything is delivered, synced and carried out, and must come to rest (INV-RPJ8).

    In some lives one node stays away: the others must go on without it.
    """
    world.played.append("faults end")
    away = [node for node in world.nodes if world.survivors().keys() - {node.disk.member}]
    away = [world.chance.choice(away)] if away and world.chance.random() < 0.4 else []
    for node in world.nodes:
        if node.is_up and (node in away or node.stopped):  # a disk that fails is mended at last
            node.crash()
        if node not in away and not node.is_up:
            node.start()
        world.admit(node.disk.member)
    up = [node for node in world.nodes if node.is_up]
    if not world.survivors().keys() & {node.disk.member for node in up}:
        return
    if not any(node.leading and node.led_epoch == world.register.leader_epoch for node in up):
        world.elect()
    for _ in range(SETTLING_ROUNDS):
        world.now_ms += 20
        for node in up:
            node.learn()
            node.sync(1.0)
            node.tick()
        _empty_queues(world)
        world.look()
        if _is_settled(world, up):
            return
    violated("INV-RPJ8", f"after {SETTLING_ROUNDS} rounds: {world.register}")


def _empty_queues(world: World) -> None:
    while world.proposals:
        world.carry_out(0)
    for connection in list(world.connections):
        while not connection.is_broken and (connection.to_leader or connection.to_follower):
            _deliver(world, connection)
        if connection.waiting and _leads(world, connection):
            world.nodes[connection.leader.node_id - 1].answer(connection)


def _is_settled(world: World, up: list[Node]) -> bool:
    disks = [node.disk for node in up]
    if world.register.in_sync != {disk.member for disk in disks}:
        return False
    for key in world.register.logs:
        logs = [disk.log(key) for disk in disks]
        ends = {log.end for log in logs} | {log.high_watermark for log in logs}
        if len(ends) > 1 or not all(log.holds(world.judge.committed[key]) for log in logs):
            return False
    return True
