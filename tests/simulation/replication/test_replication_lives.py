"""A replica group of three members lives through everything that may happen to it, by seed; the judge says what must hold (R1 to R8)."""

import pytest

from tests.simulation.replication.disks import Row, SimDisk
from tests.simulation.replication.judge import Judge, Violation
from tests.simulation.replication.play import play
from tests.simulation.replication.world import KEYS, World

pytestmark = [pytest.mark.slow, pytest.mark.simulation]

SEEDS_A_TEST = 50
LEAST_COMMITTED = 400


@pytest.mark.parametrize("first_seed", range(1, 601, SEEDS_A_TEST))
def test_R2_R3_R4_R5_R6_R8_hold_in_every_life(first_seed: int) -> None:
    committed = 0
    for seed in range(first_seed, first_seed + SEEDS_A_TEST):
        played = play(seed)
        assert not played.violation, (seed, played.violation, played.steps[-30:])
        committed += played.committed
    assert committed > LEAST_COMMITTED


def test_a_life_is_its_seeds() -> None:
    assert play(7) == play(7)


def test_R8_an_incarnation_does_not_catch_a_folder_that_was_wound_back() -> None:
    """What the metadata must see when it registers (`choosing`): elected, such a member has less than was acknowledged."""
    world = _acknowledged_by_two()
    second = world.nodes[1]
    second.crash()
    second.disk.log(KEYS[0]).cut(0)
    second.start()
    world.nodes[0].crash()
    world.elect(frozenset({second.disk.member}))
    assert world.register.leader == second.disk.member
    with pytest.raises(Violation, match="INV-RPJ1"):
        world.look()


def test_R3_an_incarnation_catches_a_folder_that_was_emptied() -> None:
    world = _acknowledged_by_two()
    second = world.nodes[1]
    second.crash()
    second.disk.empty()
    second.start()
    world.nodes[0].crash()
    led_by = world.register.leader
    world.elect(frozenset({second.disk.member}))
    assert world.register.leader == led_by


def _acknowledged_by_two() -> World:
    from random import Random  # noqa: PLC0415

    world = World(Random(1))
    row = Row(world.register.leader_epoch, 1)
    members = [node.disk.member for node in world.nodes[:2]]
    world.register.in_sync = frozenset(members)
    for node in world.nodes[:2]:
        node.disk.log(KEYS[0]).append(row)
        node.disk.log(KEYS[0]).durable = 1
    world.judge.committed[KEYS[0]] = [row]
    world.look()
    return world


@pytest.mark.parametrize("invariant", ["INV-RPJ2", "INV-RPJ3", "INV-RPJ5", "INV-RPJ9"])
def test_the_judge_sees(invariant: str) -> None:
    judge, disk = Judge(), SimDisk(1)
    epoch = World(__import__("random").Random(1)).register.leader_epoch
    log = disk.log(KEYS[0])
    log.append(Row(epoch, 1))
    log.durable = 1
    judge.leads(epoch, disk.member)
    judge.leader_moved(epoch, disk, KEYS[0], 1, in_sync=2, least=2)
    with pytest.raises(Violation, match=invariant):
        match invariant:
            case "INV-RPJ2":
                judge.leader_moved(epoch, disk, KEYS[0], 0, in_sync=2, least=2)
            case "INV-RPJ3":
                log.rows[0] = Row(epoch, 2)
                judge.follower_moved(disk, KEYS[0], 1)
            case "INV-RPJ5":
                judge.leader_moved(epoch, disk, KEYS[0], 1, in_sync=1, least=2)
            case _:
                judge.leads(epoch, disk.member)
