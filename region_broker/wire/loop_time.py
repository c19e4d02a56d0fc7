"""How long the event loop works for one coroutine: each of its steps, never what it waits for.

INV-WLT1  what is awaited, returned and raised is what it would be without; only the time of each step is told
Not here: what the time is charged to (`security.quotas`).
"""

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


@coroutine
def by_steps(
    work: Coroutine[Any, Any, _Result], begin: Callable[[], None], end: Callable[[], None]
) -> Generator[Any, Any, _Result]:
    """Run `work`, with `begin` before and `end` after each step of it."""
    error: BaseException | None = None
    while True:
        begin()
        try:
            waited = work.send(None) if error is None else work.throw(error)
        except StopIteration as ended:
            result: _Result = ended.value
            return result
        finally:
            end()
        error = None
        try:
            yield waited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - it is handed on, to where it belongs
            error = thrown
