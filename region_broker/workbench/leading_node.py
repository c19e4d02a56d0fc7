"""Asks the node that leads a region, whichever it is by now: any other one says who does, or that nobody does yet.

INV-WLN1  what changes something is sent again only where it is known to have changed nothing; a question is asked anew of the next node
INV-WLN2  a node is asked only at an address that the cluster named, or that was given
Not here: which nodes a region has (`cli.region_client`, `local_cluster`), one request (`node_http`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from region_broker.workbench.node_http import ApiError, request

NOT_LEADING: Final = "not-leading"
AGAIN_S: Final = 0.1


class LeadingNode:
    """Keeps to the node that answered last."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Look among `urls`, the best one first."""
        self._urls = list(urls)
        self.url = self._urls[0]

    def ask(self, path: str, within_s: float) -> Any:
        """Return the answer to a GET of whoever leads within that time; raises `ApiError`, OSError."""
        return self._exchange("GET", path, None, within_s)

    def order(self, path: str, body: Mapping[str, Any], within_s: float) -> Any:
        """Return the answer to a POST (INV-WLN1); raises `ApiError`, OSError."""
        return self._exchange("POST", path, body, within_s)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, within_s: float
    ) -> Any:
        deadline_s = time.monotonic() + within_s
        lost: type[OSError] = OSError if body is None else ConnectionRefusedError
        while True:
            try:
                return request(self.url, method, path, body)
            except ApiError as error:
                if error.code != NOT_LEADING or time.monotonic() > deadline_s:
                    raise
                self._turn_to(error.url)
            except lost:
                if len(self._urls) == 1 or time.monotonic() > deadline_s:
                    raise
                self._turn_to("")
            time.sleep(AGAIN_S)

    def _turn_to(self, named: str) -> None:
        """Go on with the node that was named, else with the next one (INV-WLN2)."""
        after = (self._urls.index(self.url) + 1) % len(self._urls)
        found = [url for url in self._urls if named == url or named.startswith(f"{url}/")]
        self.url = found[0] if found else self._urls[after]
