"""Rules T32 to T36 under every short sequence of what operators, disks and networks do, and under long drawn ones.

    python -m tests.property.test_histories_model 3 4  # three regions, every sequence of four actions
    python -m tests.property.test_histories_model 3 80 7 1000  # walks of 80 steps under seeds 7 to 1006

After each action: what was shown or acknowledged is where it was, in its log or in quarantine, and leaves a log only at
a new lineage entry; no two regions acknowledge under one region epoch; who acts holds what each mirror in reach has
shown. Removing a rule must be noticed (the mutants).
"""

import random
import sys
from collections.abc import Callable, Container, Iterator

import pytest

from geo_replicator import directory, failover, history, topology
from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import Born
from idempotency.identity import RegionEpoch
from tests.property import histories_model
from tests.property.histories_model import World
from tests.property.histories_regions import (
    NAMES,
    ORDERS,
    SECOND,
    TIDEMARKS,
    Broken,
    Folder,
    Region,
)

Action = tuple[str, ...]
HALVES = ("metadata", "logs", "orders", "identity", "journal")


def newborn(count: int, mutants: frozenset[str] = frozenset()) -> World:
    """Regions that run; the first one was born and acts, the others joined it."""
    world = World(count, mutants)
    world.birth(NAMES[0])
    for name in world.regions:
        world.start(name)
    settle(world)
    assert world.regions[NAMES[0]].acting
    assert all(region.state is not None for region in world.regions.values())
    return world


def settle(world: World) -> None:
    """Let regions talk, and run their effects, until all of them wait; then mirrors copy."""
    for _ in range(60):
        world.handshake()
        moved = [world.step(name) for name, region in world.regions.items() if region.running]
        if not any(moved) and not copies(world):
            return
    raise AssertionError("it does not settle")


def copies(world: World) -> bool:
    """Run one session of every mirror; return whether anything came of it."""
    before = world.key()
    for name, region in world.regions.items():
        if region.running:
            pull(world, name)
    return world.key() != before


def operators_actions(world: World) -> Iterator[Action]:
    for name, region in world.regions.items():
        yield from faults(world, name)
        if not region.running:
            yield "start", name
            continue
        yield "kill", name
        primary = region.metadata.acting_region
        if region.now.phase in {Phase.MIRRORING, Phase.FENCED}:
            yield "failover", name
        follows = region.now.phase is Phase.MIRRORING and region.now.acting_region == primary
        if primary and follows and world.reaches(name, primary) and world.regions[primary].acting:
            yield "switch", name
        if region.now.refuted and region.now.phase in {Phase.DISPUTED, Phase.FENCED}:
            yield "accept", name
    names = list(world.regions)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            yield "heal" if frozenset({one, other}) in world.cut else "cut", one, other


def faults(world: World, name: str) -> Iterator[Action]:
    """What happens to a folder; a region that ran is killed before, and started after it."""
    folder = world.regions[name].folder
    if folder != Folder():
        yield "wipe", name
        yield "copy folder", name
        for half in HALVES:
            yield "lose", name, half
    if name in world.copies:
        yield "restore", name
        yield "restore metadata", name
    for other in world.regions:
        if other != name and world.regions[other].folder != Folder():
            yield "folder of", name, other


def clients_actions(world: World) -> Iterator[Action]:
    for name, region in world.regions.items():
        if region.acting:
            yield "write", name
            yield "show", name
            if SECOND.topic_id in region.metadata.topics:
                yield "delete", name
            elif not any(SECOND in known.folder.manifest for known in world.regions.values()):
                yield "create", name


def show(world: World, name: str) -> None:
    world.write(name)
    world.tide(name)


def perform(world: World, action: Action) -> None:
    kind, name = action[:2]
    region, pair = world.regions[name], frozenset(action[1:])
    if kind in FAULTS:
        strike(world, region, action)
    elif kind == "copy folder":
        world.copies[name] = region.folder
    elif kind in {"cut", "heal"}:
        world.cut = world.cut | {pair} if kind == "cut" else world.cut - {pair}
    elif kind in {"step", "pull"}:
        if region.running:
            (pull if kind == "pull" else World.step)(world, name)
    else:
        ORDERED[kind](world, name)


def strike(world: World, region: Region, action: Action) -> None:
    match action:
        case ("wipe", _):
            region.folder = Folder()
        case ("restore", name):
            region.folder = world.copies[name]
        case ("restore metadata", name):
            region.change(metadata=world.copies[name].metadata)
        case ("folder of", _, other):
            region.folder = world.regions[other].folder
        case ("lose", _, half):
            lose(region, half)
        case _:
            raise AssertionError(action)


def pull(world: World, name: str) -> None:
    region = world.regions[name]
    primary = region.now.acting_region
    if primary and region.now.phase is Phase.MIRRORING and world.reaches(name, primary):
        world.copy(name, primary)


def accept(world: World, name: str) -> None:
    refuted = world.regions[name].now.refuted
    assert refuted is not None
    world.takeover(name, accepts=refuted.region)


def handshake(world: World, _name: str) -> None:
    world.handshake()


def switch(world: World, name: str) -> None:
    world.takeover(name, planned=True)


ORDERED: dict[str, Callable[[World, str], None]] = {
    "kill": World.kill, "start": World.start, "write": World.write, "show": show, "create": World.create,
    "delete": World.delete, "failover": World.takeover, "switch": switch, "accept": accept, "handshake": handshake,
}  # fmt: skip


def lose(region: Region, half: str) -> None:
    if half == "orders":
        logs = {key: log for key, log in region.logs.items() if key != ORDERS}
        region.change(logs=logs)
    elif half == "logs":
        region.change(logs=None, manifest=frozenset())
    else:
        region.change(**{half: None})


FAULTS = {"wipe", "restore", "restore metadata", "folder of", "lose"}
ANY = {"write", "show", "create", "delete", "kill", "start", "failover", "switch", "accept", "cut", "heal", "copy folder",
       *FAULTS}  # fmt: skip


def judged(world: World, action: Action, *, settled: bool) -> World:
    """Return the world after `action`; raises `Broken`. What a fault itself destroys is nobody's fault."""
    after = world.clone()
    before = world
    if action[0] in FAULTS:
        ran = after.regions[action[1]].running
        after.kill(action[1])
        perform(after, action)
        before = after.clone()
        if ran:
            after.start(action[1])
    else:
        perform(after, action)
    if settled:
        settle(after)
    for name, region in after.regions.items():
        judge_bytes(after, before.regions[name], region)
    if settled:
        judge_histories(after)
    return after


def visible(region: Region) -> set[tuple[object, ...]]:
    """Return what clients of a region were shown, of data: at the primary all, at a mirror what was reached."""
    if region.folder.metadata is None or region.folder.logs is None:
        return set()
    acts = region.metadata.acting_region == region.name
    cut = region.shown()
    if not acts and cut.point.region_epoch < region.metadata.region_epoch:
        return set()  # the lineage has decided already (T25)
    return {
        (key, at, batch)
        for key, log in region.logs.items()
        if key != TIDEMARKS
        for at, batch in enumerate(log)
        if acts or at < cut.position_of(key)
    }


def judge_bytes(world: World, before: Region, after: Region) -> None:
    gone = before.folder.held() - after.folder.held() - world.lost_by_word
    if gone:
        raise Broken(f"T34: {after.name} has thrown away {sorted(map(repr, gone))}")
    if before.folder.metadata is None or after.folder.metadata is None:
        return
    if before.metadata.lineage == after.metadata.lineage:
        logs = {(k, at, b) for k, log in after.logs.items() for at, b in enumerate(log)}
        back = visible(before) - logs - world.lost_by_word
        if back:
            raise Broken(f"T35: {after.name} took back {sorted(map(repr, back))}")


def judge_histories(world: World) -> None:
    for primary in world.regions.values():
        if not primary.acting:
            continue
        if primary.folder.identity is None or primary.folder.identity.region != primary.name:
            raise Broken(f"T36: {primary.name} acts on the folder of another region")
        if (
            primary.folder.identity.history is None
            or primary.folder.identity.history.birth_id == "?"
        ):
            raise Broken(f"T32: {primary.name} acts without a history")
        for peer in world.peers(primary.name):
            if peer.acting:
                raise Broken(f"T31: {primary.name} and {peer.name} act, and reach each other")
            shown = peer.shown()
            if shown.point.region_epoch == primary.now.region_epoch and any(
                primary.logs.get(key, ())[:end] != log[:end]
                for key, log in peer.logs.items()
                if (end := shown.position_of(key)) and key.topic_id not in primary.metadata.deleted
            ):
                raise Broken(f"T33: {primary.name} acts, and {peer.name} has shown {shown.point}")
    for region in world.regions.values():
        if region.running and region.lost and region.acting:
            raise Broken(f"T36: {region.name} acts, and misses {region.lost}")


def offered(world: World, only: Container[str]) -> Iterator[Action]:
    for action in [*clients_actions(world), *operators_actions(world)]:
        if action[0] in only:
            yield action


def explore(
    count: int, depth: int, mutants: frozenset[str] = frozenset(), only: Container[str] = ANY
) -> int:
    """Play every sequence of `depth` actions of the kinds in `only`; raises `Broken` with the shortest trace."""
    start = newborn(count, mutants)
    layer: list[tuple[World, tuple[Action, ...]]] = [(start, ())]
    seen = {start.key()}
    for _ in range(depth):
        following = []
        for world, trace in layer:
            for action in offered(world, only):
                played = (*trace, action)
                try:
                    after = judged(world, action, settled=True)
                except (Broken, AssertionError) as broken:
                    raise Broken(f"{broken} after {played}") from broken
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    following.append((after, played))
        layer = following
    return len(seen)


def walk(count: int, steps: int, seed: int, mutants: frozenset[str] = frozenset()) -> list[Action]:
    """Play drawn actions and single steps of regions; raises `Broken` with the whole trace."""
    chance, world, trace = random.Random(seed), newborn(count, mutants), []
    for _ in range(steps):
        drawn, settled = chance.random(), False
        if drawn < 0.45:
            name = chance.choice(list(world.regions))
            action: Action = (chance.choice(["step", "step", "handshake", "pull"]), name)
        elif drawn < 0.65 and (asked := list(clients_actions(world))):
            action = chance.choice(asked)
        elif drawn < 0.8:
            action, settled = ("handshake", NAMES[0]), True
        else:
            action = chance.choice(list(operators_actions(world)))
        trace.append((*action, "*") if settled else action)
        try:
            world = judged(world, action, settled=settled)
        except (Broken, AssertionError) as broken:
            raise Broken(f"{broken!r} after {trace} of seed {seed}") from broken
    return trace


def test_T32_to_T36_hold_after_every_short_sequence() -> None:
    assert explore(2, 3) > 4_000
    assert explore(3, 2) > 100


def test_T32_to_T36_hold_on_long_walks() -> None:
    for seed in range(100):
        walk(2 + seed % 2, 60, seed)


def test_T35_a_region_epoch_that_was_begun_twice_takes_back_nothing() -> None:
    """The second candidate of one number is the first one, wound back to a time before it took over."""
    world = newborn(2)
    for shown in (("show", "eu"), ("copy folder", "us"), ("show", "eu")):
        world = judged(world, shown, settled=True)
    for taken in (
        ("failover", "us"),
        *[("step", "us")] * 3,
        ("handshake", "eu"),
        *[("step", "eu")] * 2,
    ):
        world = judged(world, taken, settled=False)
    world = judged(world, ("cut", "eu", "us"), settled=False)
    for again in (("restore", "us"), ("failover", "us"), ("write", "us"), ("heal", "eu", "us")):
        world = judged(world, again, settled=True)
    first, second = world.regions["eu"], world.regions["us"]
    assert first.metadata.region_epoch == second.metadata.region_epoch
    assert [batch.value for batch in first.logs[ORDERS]] == [1, 2]


UNPROVEN = ("T33 a start asks nobody", "T33 a session proves nothing")
WIPED: list[Action] = [("wipe", "eu")]
WOUND_BACK: list[Action] = [("copy folder", "eu"), ("show", "eu"), ("restore", "eu")]
FORGOTTEN: list[Action] = [
    ("copy folder", "eu"), ("create", "eu"), ("restore metadata", "eu"), ("show", "eu"),
]  # fmt: skip
REMOVED: dict[str, tuple[tuple[str, ...], list[Action]]] = {
    "T32: eu acts": (("T32 an empty folder acts",), WIPED),
    "T33: eu acts, and us has shown": (UNPROVEN, WOUND_BACK),
    "T34: us has thrown away": (("T34 absence deletes",), FORGOTTEN),
    "T35: us took back": ((*UNPROVEN, "T35 divergences are cut anywhere"), WOUND_BACK),
    "T36: eu acts, and misses": (
        ("T36 the manifest is not looked at",),
        [("lose", "eu", "orders")],
    ),
    "T32: eu acts without": (("T36 half a folder is opened",), [("lose", "eu", "identity")]),
    "T31: eu and us act": (("T36 any region's folder is opened",), [("folder of", "us", "eu")]),
}


def play(count: int, trace: list[Action], mutants: tuple[str, ...] = ()) -> World:
    world = newborn(count, frozenset(mutants))
    for action in trace:
        if action in list(offered(world, ANY)):
            world = judged(world, action, settled=True)
    return world


@pytest.mark.parametrize("complaint", REMOVED)
def test_removing_a_rule_of_histories_is_noticed(complaint: str) -> None:
    mutants, trace = REMOVED[complaint]
    play(2, trace)
    with pytest.raises(Broken, match=complaint):
        play(2, trace, mutants)


def acts_by_configuration(region: str) -> State:
    return failover.born(Born(region, region == NAMES[0], RegionEpoch(8)))


TWO_CANDIDATES: list[Action] = [
    ("cut", "eu", "us"), ("cut", "us", "ap"), ("failover", "us"), ("failover", "ap"), ("write", "us"), ("write", "ap"),
]  # fmt: skip
CORES: dict[str, tuple[object, str, Callable[..., object], list[Action]]] = {
    "T32: eu acts": (failover, "unborn", acts_by_configuration, WIPED),
    "T33: eu acts": (history, "difference_of", lambda _shown, _held: None, WOUND_BACK),
    "T34: us has thrown away": (topology, "unnamed_absences", lambda *_: (), FORGOTTEN),
    "T32: eu acts without": (
        histories_model,
        "what_is_wrong",
        lambda *_: None,
        [("lose", "eu", "identity")],
    ),
    "T19: us and ap": (
        directory,
        "next_region_epoch",
        lambda known, _ordinal: 8 + max(known, default=0),
        TWO_CANDIDATES,
    ),
}


@pytest.mark.parametrize("complaint", CORES)
def test_a_core_that_judges_otherwise_is_noticed(
    complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, instead, trace = CORES[complaint]
    count = 3 if trace is TWO_CANDIDATES else 2
    play(count, trace)
    monkeypatch.setattr(module, name, instead)
    with pytest.raises(Broken, match=complaint):
        play(count, trace)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        print(explore(int(sys.argv[1]), int(sys.argv[2])))
    else:
        regions, steps, first, walks = map(int, sys.argv[1:5])
        for seed in range(first, first + walks):
            walk(regions, steps, seed)
