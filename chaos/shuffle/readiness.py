"""Asks every region's `/readyz` again and again, and keeps how long each said no, and why.

A region that does not answer says nothing: only answers count.
"""

import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Final

from chaos.story import Refusal

_ASK_EVERY_S: Final = 0.25
_TIMEOUT_S: Final = 2.0
_OK: Final = "ok"
_READY: Final = 200


class ReadinessWatch(threading.Thread):
    """`ports`: region -> HTTP port."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        """Nothing is asked before `start`."""
        super().__init__(name="readiness", daemon=True)
        self._ports = ports
        self._stopping = threading.Event()
        self._now: dict[str, Refusal] = {}
        self._over: list[Refusal] = []

    def stop(self) -> list[Refusal]:
        """End it; return all refusals."""
        self._stopping.set()
        self.join(10)
        return [*self._over, *self._now.values()]

    def run(self) -> None:
        """Ask until stopped."""
        while not self._stopping.wait(_ASK_EVERY_S):
            for region, port in self._ports.items():
                self._note(region, reasons(port))

    def _note(self, region: str, told: Mapping[str, str]) -> None:
        now_s, before = time.monotonic(), self._now.get(region)
        if before is not None and before.reasons.keys() != told.keys():
            self._over.append(self._now.pop(region))
            before = None
        if told:
            since_s = now_s if before is None else before.from_s
            self._now[region] = Refusal(region, since_s, now_s, told)


def reasons(port: int) -> Mapping[str, str]:
    """Return why a region is not ready, by check, empty if it is ready, or does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    if response.status == _READY:
        return {}
    return {name: reason for name, reason in body["checks"].items() if reason != _OK}
