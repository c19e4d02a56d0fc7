"""What happens to the region of three, by a seed: faults first, then none, and then somebody must lead.

Not here: what there is (`world`).
"""

from idempotency.fencing import region_epoch_of
from idempotency.identity import RegionEpoch
from region_broker.controller.cluster.spreading import gathering
from region_broker.controller.cluster_commands import DrainNode, PreferSpread
from region_broker.controller.metadata_commands import PutDomain
from region_broker.controller.raft.entries import Member
from tests.fixtures.cluster_images import main_domain, member
from tests.simulation.controller.world import SETTINGS, Node, Violated, World, demand

FAULTY_STEPS = 400
CALM_EACH, CALM_RATE = 2, 0.1
"""In each second life faults are so rare that leaders are spread between them."""
QUIET_STEPS = 100
"""5 s: a session, an election of the quorum, and some commands, one after the other."""
WHOLE_STEPS = 2 * SETTINGS.unfence_pause_max_ms // 50
"""After that also who flapped is let in, and in sync."""


def play(seed: int) -> World:
    """Play one history; raises `Violated`."""
    world = World(seed)
    world.start(world.nodes[1])
    is_calm = seed % CALM_EACH == 0
    for _ in range(FAULTY_STEPS):
        if not is_calm:
            _fault(world)
        elif world.chance.random() < CALM_RATE:
            _rare_fault(world)
        _step(world, is_quiet=False)
    _end_of_faults(world)
    for _ in range(QUIET_STEPS):
        _step(world, is_quiet=True)
    found = world.image.leadership
    if found is None or found.leader is None:
        raise Violated("somebody leads within bounded time")
    is_current = region_epoch_of(found.leader_epoch) == world.image.main_domain.region_epoch
    demand(is_current, "T19: under the present region epoch")
    for _ in range(WHOLE_STEPS):
        _step(world, is_quiet=True)
    found = world.image.leadership
    assert found is not None
    demand(len(found.in_sync) == 3, "all are in sync again")
    spread = world.image.spread
    demand(spread is not None, "leaders are spread again")
    assert spread is not None
    leaders = [row.leader for _, row in sorted(spread.groups.items())]
    demand(
        [one.node_id if one else None for one in (found.leader, *leaders)] == [*spread.preferred],
        "each group is led by its preferred node",
    )
    return world


def _step(world: World, *, is_quiet: bool) -> None:
    world.tick()
    if world.leader is None and (is_quiet or world.chance.random() < 0.2):
        world.elect_quorum_leader()
    for target in world.nodes.values():
        _live(world, target, is_quiet=is_quiet)
    world.deliver()
    for target in world.nodes.values():
        if target.is_up and target.is_refused:
            world.stop(target)
            if is_quiet:
                world.give_newest_back(target)
                world.start(target)
    for _ in range(8 if is_quiet else world.chance.randint(0, 3)):
        world.commit_one()
    if is_quiet:
        for target in world.nodes.values():
            world.catch_up(target, len(world.images) - 1)
    world.replicate()


def _live(world: World, target: Node, *, is_quiet: bool) -> None:
    """What a node does in each step, unless something keeps it from that."""
    chance = world.chance
    if is_quiet or chance.random() < 0.7:
        world.beat(target)
    if not is_quiet and chance.random() < 0.1:
        world.beat(target, delay_ms=chance.randint(0, 2_000))
    if is_quiet or chance.random() < 0.3:
        world.register(target)
    if is_quiet or chance.random() < 0.5:
        world.catch_up(target, chance.randint(target.applied, len(world.images) - 1))
    if is_quiet or chance.random() < 0.7:
        has_trouble = not is_quiet and chance.random() < 0.01
        world.keep(target, "a log has stopped" if has_trouble else None)
    if is_quiet and not world.image.spread_wanted:
        world.ask(target, PreferSpread(wanted=True))
    is_deposed = target.reign is not None and target is not world.leader
    if is_deposed and (is_quiet or chance.random() < 0.2):
        world.depose(target)


def _fault(world: World) -> None:
    chance = world.chance
    target = chance.choice(list(world.nodes.values()))
    kind = chance.random()
    if not target.is_up or target.is_cut_off:
        if kind < 0.2:
            _mend(world, target)
    elif kind < 0.06:
        _stop(world, target)
    elif kind < 0.09:
        target.is_cut_off = True
    elif kind < 0.11:
        world.elect_quorum_leader()
    else:
        _disturb(world, target, chance.random())


def _rare_fault(world: World) -> None:
    """Mend what is broken, else break something: soon a leader, where they are spread."""
    chance, spread = world.chance, world.image.spread
    broken = [one for one in world.nodes.values() if one.is_cut_off or not one.is_up]
    if broken and chance.random() < 0.8:
        _mend(world, chance.choice(broken))
        return
    target = chance.choice(list(world.nodes.values()))
    if spread is None or not target.is_up or target.is_cut_off:
        _fault(world)
    elif (kind := chance.random()) < 0.4:
        _stop(world, target)
    elif kind < 0.7:
        target.is_cut_off = True
    elif kind < 0.8:
        _fail_over(world)
    else:
        _disturb(world, target, chance.uniform(0, 0.1))


def _mend(world: World, target: Node) -> None:
    target.is_cut_off = False
    if target.is_refused:
        _replace(world, target)
    if not target.is_up:
        world.start(target)


def _replace(world: World, target: Node) -> None:
    """Do what an operator does about an older copy: give the newest one back, or an empty folder."""
    if world.image.leadership is None or world.chance.random() < 0.5:
        world.give_newest_back(target)
    else:
        world.exchange_folder(target, target.folders + 1)


def _stop(world: World, target: Node) -> None:
    world.stop(target)
    if world.chance.random() < 0.2 and world.image.leadership is not None:
        world.exchange_folder(target, world.chance.randint(1, target.folders + 1))
    elif world.chance.random() < 0.3:
        world.wind_back(target)


def _disturb(world: World, target: Node, kind: float) -> None:
    if kind < 0.02:
        world.now_ms += world.chance.randint(0, 1_500)  # the machine stood still
    elif kind < 0.03:
        world.ask(target, DrainNode(target.node_id, target.life))
    elif kind < 0.035:
        _fail_over(world)
    elif kind < 0.04:
        world.ask(target, PreferSpread(wanted=world.chance.random() < 0.7))
    elif kind < 0.055:  # a late one of a process that is gone, or of this one
        world.ask(target, world.told[target.node_id, world.chance.randint(1, target.start)])


def _fail_over(world: World) -> None:
    """Another region epoch; where leaders are spread it is refused, unless they are gathered before (INV-SPR8)."""
    present, before = world.image.main_domain.region_epoch, gathering(world.image)
    if before is not None and world.chance.random() < 0.5:
        world.ask(world.nodes[1], before)
    world.ask(world.nodes[1], PutDomain(main_domain(RegionEpoch(present + 8))))


def _has_its_folder(world: World, one: Member) -> bool:
    return world.nodes[one.node_id].member == one and one not in world.newest


def _end_of_faults(world: World) -> None:
    """Everybody runs and is reached, and of those who are in sync at least one has its folder."""
    for target in world.nodes.values():
        _mend(world, target)
    world.elect_quorum_leader()
    if world.chance.random() < 0.3:
        _fail_over(world)
    found = world.image.leadership
    in_sync = () if found is None else found.in_sync
    if in_sync and not any(_has_its_folder(world, one) for one in in_sync):
        back = world.chance.choice(in_sync)
        target = world.nodes[back.node_id]
        folders = range(1, target.folders + 1)
        world.stop(target)
        world.exchange_folder(
            target, next(number for number in folders if member(back.node_id, number) == back)
        )
        world.give_newest_back(target)
        world.start(target)
    for target in world.nodes.values():
        registered = world.image.nodes.get(target.node_id)
        if registered is not None and registered.draining:
            world.stop(target)
            world.start(target)
