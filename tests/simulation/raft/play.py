"""One life of a simulated group from its seed: troubles, then rest, and what was found."""

import traceback
from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.simulation.raft.plan import Bent, Plan, as_drawn
from tests.simulation.raft.settle import settle
from tests.simulation.raft.troubles import Troubles
from tests.simulation.raft.world import World


@dataclass(frozen=True, slots=True)
class Life:
    """How a life went. `violation`: empty, or the rule that did not hold."""

    seed: int
    violation: str
    digest: str
    events: int
    counted: Counter[str]


def play(seed: int, members: int | None = None, bent: Bent = as_drawn) -> Life:
    """Play a seed, its plan bent towards what seldom happens; raises what is no judgement."""
    chance = Random(seed)
    world = World(bent(Plan.of(chance, members)), chance)
    violation = ""
    try:
        for name in world.members:
            world.start(name)
        troubles = Troubles(world)
        world.run(world.plan.trouble_ms)
        settle(world, troubles)
    except AssertionError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        violation = f"{error} ({last.name}: {last.line})"
    return Life(seed, violation, world.digest, world.events, world.judge.counted)
