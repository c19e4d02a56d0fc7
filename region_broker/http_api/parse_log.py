"""What aiohttp tells of requests that it cannot read, as our log may have it.

INV-HPL1  no line has anything of such a request: what a parser refuses may be a header with a password or a token in it; and one line is
          told in `TOLD_EACH_S`, which says how many it stands for
INV-HPL2  what could not be read leaves nothing to the cycle collector (INV-PN7): aiohttp's frame holds the error, whose traceback holds the
          frame, and with it the connection. So each error comes here, also those that aiohttp tells as debugging only, and loses it
Not here: requests that can be read (`doors`).
"""

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError
from typing_extensions import override

TOLD_EACH_S: Final = 1.0
_PARENT: Final = logging.getLogger("tidemark.http")


class _OfTheParser(logging.Filter):
    """Makes short lines of what a parser has refused, and few (INV-HPL1)."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s = 0.0
        self._untold = 0

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is told."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return record.levelno >= _PARENT.getEffectiveLevel()
        error.__traceback__ = None  # INV-HPL2
        if record.levelno < _PARENT.getEffectiveLevel():
            return False
        if abs(record.created - self._told_s) < TOLD_EACH_S:
            self._untold += 1
            return False
        host = record.args[0] if isinstance(record.args, tuple) and record.args else "?"
        record.msg = "a request of %s cannot be read (%s), and %d more since the last line"
        record.args = (host, type(error).__name__, self._untold)
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.exc_info = record.exc_text = None
        self._told_s, self._untold = record.created, 0
        return True


def parser_log() -> logging.Logger:
    """Return what one server is to log by."""
    made = logging.Logger(_PARENT.name)  # noqa: LOG001 - one server's, with a filter of its own
    made.parent = _PARENT
    made.setLevel(logging.DEBUG)  # INV-HPL2: the filter judges by the level that counts
    made.addFilter(_OfTheParser())
    return made
