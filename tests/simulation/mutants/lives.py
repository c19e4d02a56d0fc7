"""Short lives of two regions by seed, for rules that only an exact account of one pair shows, or of who may do what.

What a life says is wrong is what one of its assertions says; anything else that ends it is raised.
"""

import random
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from tests.simulation import region_pair as pairs
from tests.simulation.mutants import access_life
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.test_pipelined import Life as PipelinedLife
from tests.simulation.test_transfers import Life as TransfersLife

FOLDER: Final = Path("/lives")


async def _transfers(folder: Path, seed: int) -> None:
    async with pairs.region_pair(folder, seed) as pair:
        await TransfersLife(pair, random.Random(seed)).run()


async def _pipelined(folder: Path, seed: int) -> None:
    # With delays: what is sent behind a request must have the time to arrive after that one has failed.
    async with pairs.region_pair(folder, seed, delay_ms_max=1.0) as pair:
        await PipelinedLife(pair, random.Random(seed)).run()


async def _access(_folder: Path, seed: int) -> None:
    await access_life.live(seed)


LIVES: Final[dict[str, Callable[[Path, int], Coroutine[Any, Any, None]]]] = {
    "transfers": _transfers,
    "pipelined": _pipelined,
    "access": _access,
}


def play_life(name: str, seed: int) -> tuple[str, ...]:
    """Play a life from a seed, and return what is wrong."""
    try:
        run_simulated(LIVES[name](FOLDER / str(seed), seed), f"{name} {seed}")
    except (AssertionError, ExceptionGroup) as error:
        leaves = list(_leaves(error))
        if not all(isinstance(each, AssertionError) for each in leaves):
            raise
        return tuple(f"seed {seed}, {_asked(each)}: {each}" for each in leaves)
    return ()


def _asked(error: BaseException) -> str:
    """Return which function's assertion it was, and what it asked."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.name}: {last.line}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
