"""A replica group of three members lives through everything that may happen to it, by seed; the judge says what must hold (R1 to R8)."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from idempotency.identity import LeaderEpoch
from tests.simulation.replication.disks import Row, SimDisk
from tests.simulation.replication.judge import Judge, Violation
from tests.simulation.replication.play import play
from tests.simulation.replication.world import KEYS, World

pytestmark = [pytest.mark.slow, pytest.mark.simulation]

SEEDS_A_TEST = 50
LEAST_COMMITTED = 400
EPOCH = LeaderEpoch(1)


@pytest.mark.parametrize("first_seed", range(1, 301, SEEDS_A_TEST))
def test_R2_R3_R4_R5_R6_R8_INV_RPL11_hold_in_every_life(first_seed: int) -> None:
    committed = 0
    for seed in range(first_seed, first_seed + SEEDS_A_TEST):
        played = play(seed)
        assert not played.violation, (seed, played.violation, played.steps[-30:])
        committed += played.committed
    assert committed > LEAST_COMMITTED


def test_lives_are_rich() -> None:
    """What the rules are for happens, again and again: else nothing that held would mean much."""
    seen = sum((play(seed).seen for seed in range(1, 151)), Counter[str]())
    wanted = (
        "CutLog", "StartAt", "LogStart", "LowWatermark", "Deposed", "NotEnough", "Enough", "WentBack", "SendReport",
        "from 3 to 2", "from 2 to 1", "from 3 to 1", "from 1 to 2", "from 2 to 3", "carried out late", "refused", "of a deposed leader",
        "doubt", "ghost", "repeat", "crash", "empty", "wind back", "fence", "break", "make", "delete",
    )  # fmt: skip
    assert not {name for name in wanted if seen[name] < 3}, seen


def test_a_life_is_its_seeds() -> None:
    assert play(7) == play(7)


def test_R8_an_incarnation_does_not_catch_a_folder_that_was_wound_back() -> None:
    """What the metadata see when it registers (INV-MN7, `choosing`): elected, such a member has less than was acknowledged."""
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
    world = World(random.Random(1))
    row = Row(world.register.leader_epoch, 1)
    members = [node.disk.member for node in world.nodes[:2]]
    world.register.in_sync = frozenset(members)
    for node in world.nodes[:2]:
        node.disk.log(KEYS[0]).append(row)
        node.disk.log(KEYS[0]).durable = 1
    world.judge.committed[KEYS[0]] = [row]
    world.look()
    return world


def _goes_back(judge: Judge, disk: SimDisk) -> None:
    judge.leader_moved(EPOCH, disk, KEYS[0], 0, in_sync=2, least=2)


def _shows_another(judge: Judge, disk: SimDisk) -> None:
    disk.log(KEYS[0]).rows[0] = Row(EPOCH, 2)
    judge.follower_moved(disk, KEYS[0], 1)


def _shows_too_much(judge: Judge, disk: SimDisk) -> None:
    judge.follower_moved(disk, KEYS[0], 2)


def _is_alone(judge: Judge, disk: SimDisk) -> None:
    judge.leader_moved(EPOCH, disk, KEYS[0], 1, in_sync=1, least=2)


def _leads_again(judge: Judge, disk: SimDisk) -> None:
    judge.leads(EPOCH, disk.member)


def _lacks_it(judge: Judge, disk: SimDisk) -> None:
    judge.look_at({disk.member: SimDisk(2)})


def _starts_lower(judge: Judge, disk: SimDisk) -> None:
    disk.log(KEYS[0]).trim(1)
    judge.deleted(disk, KEYS[0], 1)
    disk.log(KEYS[0]).start = 0
    judge.look_at({disk.member: disk})


def _deletes_too_much(judge: Judge, disk: SimDisk) -> None:
    judge.deleted(disk, KEYS[0], 1)


def _knows_too_early(judge: Judge, _disk: SimDisk) -> None:
    judge.elected(LeaderEpoch(2))
    judge.knows_latest(LeaderEpoch(2), KEYS[0], 0)


@pytest.mark.parametrize(
    ("invariant", "wrong"),
    [
        ("INV-RPJ1", _lacks_it),
        ("INV-RPJ2", _goes_back),
        ("INV-RPJ3", _shows_another),
        ("INV-RPJ3", _shows_too_much),
        ("INV-RPJ5", _is_alone),
        ("INV-RPJ6", _knows_too_early),
        ("INV-RPJ9", _leads_again),
        ("INV-RPJ10", _starts_lower),
        ("INV-RPJ10", _deletes_too_much),
    ],
)
def test_the_judge_sees_what_is_wrong(
    invariant: str, wrong: Callable[[Judge, SimDisk], None]
) -> None:
    judge, disk = Judge(), SimDisk(1)
    disk.log(KEYS[0]).append(Row(EPOCH, 1))
    disk.log(KEYS[0]).durable = 1
    judge.leads(EPOCH, disk.member)
    judge.leader_moved(EPOCH, disk, KEYS[0], 1, in_sync=2, least=2)
    with pytest.raises(Violation, match=invariant):
        wrong(judge, disk)
