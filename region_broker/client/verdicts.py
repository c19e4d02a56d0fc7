"""Ask a region for the final word on a transaction (rule T29).

The question is a record's position and the region epoch under which it was written; the acting region
answers from its log and the lineage, at any time after. Asked over HTTP, at whichever address answers.
"""

import enum
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from region_broker.client.errors import Unreachable

_TIMEOUT_S = 5.0


class Verdict(enum.Enum):
    """What became of a transaction. OPEN is not final: its time-out will decide it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "lost"
    OPEN = "open"


class Position(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


class VerdictClient:
    """Asks the regions at `urls` (a list, or one string with commas), the first that answers."""

    def __init__(self, urls: str | Sequence[str]) -> None:
        """`urls` may be empty: then nothing can be asked."""
        parts = urls.split(",") if isinstance(urls, str) else list(urls)
        self._urls = [part.strip().rstrip("/") for part in parts if part.strip()]

    def ask(self, position: Position, region_epoch: int | None) -> Verdict:
        """Return the verdict; raises `Unreachable` if no acting region answers."""
        query = position._asdict() | ({"region_epoch": region_epoch} if region_epoch else {})
        answer = self._get(f"/v1/verdict?{urlencode(query)}", acting=True)
        return Verdict(answer["verdict"])

    def region_epoch(self) -> int | None:
        """Return the acting region's epoch, or None when there is nobody to ask."""
        if not self._urls:
            return None
        try:
            epoch: int = self._get("/v1/region", acting=True)["region_epoch"]
        except Unreachable:
            return None
        return epoch

    def _get(self, path: str, *, acting: bool) -> dict[str, Any]:
        reasons = [] if self._urls else ["no urls were given"]
        for url in self._urls:
            try:
                with urlopen(url + path, timeout=_TIMEOUT_S) as response:  # noqa: S310 -- our own URLs
                    answer: dict[str, Any] = json.load(response)
            except HTTPError as error:
                reasons.append(f"{url}: {error.code} {error.reason}")
                error.close()
            except (URLError, OSError, ValueError) as error:
                reasons.append(f"{url}: {error}")
            else:
                if not acting or answer.get("acting", True):
                    return answer
                reasons.append(f"{url}: not the acting region")
        raise Unreachable("no acting region answered: " + "; ".join(reasons))
