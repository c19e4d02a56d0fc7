"""Power losses by the thousand: one partition works, the power goes at any disk operation, and what is left is judged.

    python -m tests.property.power_loss 2000 7

The first number is how many losses, the second the seed. Every loss hits a random disk operation of a random
operation of the log, or of the recovery from the loss before. What was not synced is kept or lost by pages, and torn by
sectors (`tests.simulation.disk`). Between losses the disk also fails, and bits flip.
"""

import logging
import random
import sys
from collections import Counter
from collections.abc import Callable

from tests.fixtures.log_model import DISK_ERRORS, LogModel
from tests.simulation.disk import Crashed

STEPS_MAX = 25
LOSSES_PER_LIFE = 10


HALF_DONE = ("", ".bookmark.tmp", ".snapshot.tmp")
"""Where the thread of a recovery checkpoint is while something else happens: it has not begun, or writes to such a file."""

OPERATIONS: dict[str, tuple[int, Callable[[LogModel, random.Random], None]]] = {
    "append": (
        5,
        lambda model, rng: model.append_plain(*rng.choice([(4, 0), (2, 50), (3, 700), (1, 3000)])),
    ),
    "append in a transaction": (
        5,
        lambda model, rng: model.append_in_transaction(
            rng.randint(1, 3), rng.randint(1, 3), rng.choice([10, 900])
        ),
    ),
    "end a transaction": (
        2,
        lambda model, rng: model.end_transaction(rng.randint(1, 3), commit=rng.random() < 0.5),
    ),
    "sync": (6, lambda model, rng: model.sync()),
    "catch up": (2, lambda model, rng: model.catch_up()),
    "sync files": (1, lambda model, rng: model.sync_files()),
    "recovery_checkpoint": (
        2,
        lambda model, rng: model.recovery_checkpoint(
            lambda: meanwhile(model, rng), rng.choice(HALF_DONE)
        ),
    ),
    "damage the recovery checkpoint": (1, lambda model, rng: model.damage_recovery_checkpoint(rng)),
    "cut": (1, lambda model, rng: model.cut(rng.random())),
    "cut in threads": (
        1,
        lambda model, rng: model.cut_in_threads(rng.random(), lambda: without_writes(model, rng)),
    ),
    "prepare a cut": (
        1,
        lambda model, rng: model.prepare_a_cut(rng.random(), lambda: meanwhile(model, rng)),
    ),
    "cut and go on": (
        1,
        lambda model, rng: model.cut_and_go_on(rng.random(), lambda: meanwhile(model, rng)),
    ),
    "cut where it was prepared": (
        1,
        lambda model, rng: model.cut_where_prepared(rng.random(), lambda: growing(model, rng)),
    ),
    "drop and make again": (1, lambda model, rng: model.drop_and_make_again()),
    "retain": (1, lambda model, rng: model.retain()),
    "read with little memory": (1, lambda model, rng: model.read_with_little_memory(rng)),
}
"""What the log does, and how often compared with the rest."""


def meanwhile(model: LogModel, rng: random.Random) -> None:
    """Do something else, or nothing, while a recovery checkpoint, or a cut, waits for its thread."""
    others = [name for name in OPERATIONS if name not in {"recovery_checkpoint", "prepare a cut"}]
    if rng.random() < 0.5:
        OPERATIONS[rng.choice(others)][1](model, rng)


def without_writes(model: LogModel, rng: random.Random) -> None:
    """Do what may come before the last syncs of a cut (INV-CTJ2), or nothing."""
    others = ("sync", "catch up", "sync files", "retain", "read with little memory")
    if rng.random() < 0.7:
        OPERATIONS[rng.choice(others)][1](model, rng)


def growing(model: LogModel, rng: random.Random) -> None:
    """Do up to four things that take nothing off the end of a log."""
    others = ("append", "append in a transaction", "sync", "catch up", "sync files", "retain")
    for _ in range(rng.randint(0, 4)):
        OPERATIONS[rng.choice(others)][1](model, rng)


def chosen(rng: random.Random) -> str:
    """Return the name of a random operation."""
    return rng.choices(list(OPERATIONS), [weight for weight, _ in OPERATIONS.values()])[0]


def operations_that_fail(
    model: LogModel, rng: random.Random, chance: float, *, power: bool
) -> None:
    """Work on a disk that gives EIO and ENOSPC by chance until the partition stops, then start again."""
    model.fixture.disk.fail_by_chance(rng, chance, DISK_ERRORS)
    for _ in range(STEPS_MAX):
        OPERATIONS[chosen(rng)][1](model, rng)
        if model.fixture.partition.failed is not None:
            break
    model.fixture.disk.fault = None
    if power:
        model.lose_power(rng)
    else:
        model.kill()


def one_loss(model: LogModel, rng: random.Random) -> str:
    """Work until the power goes; judge what is left. Return what it hit."""
    if rng.random() < 0.15:
        operations_that_fail(model, rng, 0.1, power=False)
        model.check()
    if rng.random() < 0.1:
        model.flip_a_bit(rng)
    hit = "between operations"
    model.fixture.disk.crash_after(rng.randint(0, 60))
    try:
        for _ in range(STEPS_MAX):
            hit = chosen(rng)
            OPERATIONS[hit][1](model, rng)
        hit = "clean stop"
        model.fixture.table.close()
        hit = "after a clean stop"
    except Crashed:
        hit = f"in: {hit}"
        if (
            rng.random() < 0.3
        ):  # a kill first: the next life goes on with what this one has not synced
            model.fixture.kill_and_reopen()
            model.after_crash(keeps_all=False)
            for _ in range(rng.randint(0, 10)):
                OPERATIONS[chosen(rng)][1](model, rng)
    model.lose_power(rng, operations=rng.randint(0, 30) if rng.random() < 0.3 else None)
    model.check()
    return hit


def run(losses: int, seed: int) -> Counter[str]:
    """Lose power `losses` times, ten times in each log; return what was hit how often."""
    hits: Counter[str] = Counter()
    done = 0
    life = 0
    while done < losses:
        rng = random.Random(f"{seed}-{life}")
        model = LogModel(retention=life % 2 == 1)
        for _ in range(min(LOSSES_PER_LIFE, losses - done)):
            try:
                hits[one_loss(model, rng)] += 1
            except BaseException as error:
                error.add_note(f"power loss {done}, seed {seed}, life {life}")
                raise
            done += 1
        life += 1
    return hits


if __name__ == "__main__":
    logging.disable()  # stopped partitions and cut tails are what is looked for here
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    for name, count in sorted(found.items()):
        print(f"{count:6d}  {name}")
    print(
        f"{found.total()} power losses: nothing acknowledged lost, nothing there that was not written"
    )
