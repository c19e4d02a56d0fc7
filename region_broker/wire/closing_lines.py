"""How many lines of connections that are closed may be told yet.

INV-WCL1 of connections that are closed for what came on them LINES_MAX are told in a second, by each place that tells of them, the others
         as a number: a flood fills no disk
Not here: which connections those are (`wire.server`, `region.peers.forwarder`).
"""

import logging
from collections.abc import Mapping
from typing import Final

LINES_MAX: Final = 20
_PERIOD_MS: Final = 1_000


class ClosingLines:
    """One for each place that tells of them in its log."""

    def __init__(self, log: logging.Logger) -> None:
        """Tell `log` how many were left out."""
        self._log = log
        self._since_ms = -_PERIOD_MS
        self._count = 0

    def may(self, now_ms: int) -> bool:
        """Return whether one more may be told; tell of those that were not."""
        if now_ms >= self._since_ms + _PERIOD_MS:
            untold = self._count - LINES_MAX
            self._since_ms, self._count = now_ms, 0
            if untold > 0:
                self._log.warning("%d more connections were closed in that second", untold)
        self._count += 1
        return self._count <= LINES_MAX

    def warn(
        self,
        now_ms: int,
        text: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
        failed: bool = False,
    ) -> None:
        """Warn of one more, if it may be told; `failed`: with the traceback of the exception that is handled."""
        if self.may(now_ms):
            level = logging.ERROR if failed else logging.WARNING
            self._log.log(level, text, *args, extra=extra, exc_info=failed, stacklevel=2)
