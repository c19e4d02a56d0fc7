"""Work on several logs at once: each waits for its own syncs, which threads make.

INV-SBS1  at most `LOGS_AT_ONCE` at a time; what it gives comes in the order of the work
INV-SBS2  where the disk refuses one, no other is begun, those under way end, and all that were refused are named: one log that is not cut keeps
          its region from acting, so its name is what an operator needs
INV-SBS4  the event loop gets its turn between two logs, also where neither waits for anything: most logs have nothing to cut
INV-SBS3  what is cancelled has ended, with all that it had begun, before whoever waits for it goes on (INV-UB1)

Not here: the work (`log_surgery`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

_Result = TypeVar("_Result")
LOGS_AT_ONCE: Final = 4
"""As when a node stops (`partitions.closing`): the threads of a small machine are for others, too."""


@dataclass(frozen=True, slots=True)
class LogWork(Generic[_Result]):
    """What is to be done for one log. `name`: what is not done where the disk refuses it, and `run` raises OSError."""

    name: str
    run: Callable[[], Awaitable[_Result]]


async def side_by_side(works: Iterable[LogWork[_Result]]) -> list[_Result]:
    """Return what each gives. Raises OSError (INV-SBS2)."""
    waiting = iter(enumerate(works))
    results: dict[int, _Result] = {}
    refused: list[tuple[str, OSError]] = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(LOGS_AT_ONCE):
            tasks.create_task(_work(waiting, results, refused), name="log-by-log")
    if refused:
        said = "; ".join(f"{name}: {str(error) or repr(error)}" for name, error in refused)
        raise OSError(said) from refused[0][1]
    return [results[number] for number in sorted(results)]


async def _work(
    waiting: Iterator[tuple[int, LogWork[_Result]]],
    results: dict[int, _Result],
    refused: list[tuple[str, OSError]],
) -> None:
    for number, work in waiting:
        try:
            results[number] = await work.run()
        except OSError as error:
            refused.append((work.name, error))
        if refused:
            return
        await asyncio.sleep(0)
