"""The nodes of one region behind HTTP addresses: the one that knows most is asked, the one that leads the quorum is ordered.

INV-CCL1  an order is sent only to an address that the cluster itself named, or that was given; again only where it is known to have
          changed nothing
Not here: one request (`workbench.node_http`), what is printed (`cluster`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from region_broker.cli.output import EXIT_NOT_FOUND, Progress, fail
from region_broker.cli.region_client import NoNode
from region_broker.workbench.node_http import CONNECT_TIMEOUT_S, ApiError, BadUrl, request

_AGAIN: Final = frozenset({"no-quorum", "other-node"})
_AGAIN_S: Final = 0.1
_NOT_FOUND: Final = 404


class RegionOfNodes:
    """Asks each node once."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Look behind `urls`; nothing is asked yet."""
        self._urls = list(urls)
        self.dead: dict[str, str] = {}

    def views(self) -> dict[str, dict[str, Any]]:
        """Return `GET /v1/cluster` of each node that answers, by address; those that are named are asked, too.

        Raises `NoNode`; ends the command where a region has one node.
        """
        found: dict[str, dict[str, Any]] = {}
        waiting, asked = list(self._urls), set[str]()
        while waiting:
            url = waiting.pop(0)
            if url in asked:
                continue
            asked.add(url)
            view = self._ask(url)
            if view is not None:
                found[url] = view
                waiting += [str(node["http"]) for node in view["nodes"]]
        if not found:
            tried = "; ".join(f"{url}: {why}" for url, why in self.dead.items())
            raise NoNode(
                f"no node answers ({tried}). Give the HTTP address of any live node with --url, several with commas."
            )
        return found

    def _ask(self, url: str) -> dict[str, Any] | None:
        try:
            view: dict[str, Any] = request(url, "GET", "/v1/cluster", timeout_s=CONNECT_TIMEOUT_S)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                fail(
                    f"the region at {url} has one node: there is no cluster of nodes to look at. See tidemark region status;"
                    " docs/deploy/README.md says how to grow it to three",
                    EXIT_NOT_FOUND,
                )
            self.dead[url] = str(error)
        except (OSError, BadUrl) as error:
            self.dead[url] = str(error) or type(error).__name__
        else:
            return view
        return None

    def view(self) -> dict[str, Any]:
        """Return the view that knows most: of the node that leads the logs, else the newest one; raises `NoNode`."""
        views = list(self.views().values())
        return max(views, key=lambda view: (view["here"]["leads"], view["quorum"]["commit_index"]))

    def leading_view(self) -> dict[str, Any]:
        """Return the view of the node that leads the quorum, else the newest one; raises `NoNode`."""
        views = list(self.views().values())
        return max(
            views,
            key=lambda view: (
                view["quorum"]["leader"] == view["node_id"], view["quorum"]["commit_index"],
            ),
        )  # fmt: skip

    def partitions(self, node_id: int | None, topic: str | None) -> list[dict[str, Any]]:
        """Return the logs of a node, of the one that leads where None; raises `NoNode`."""
        views = self.views()
        if node_id is None:
            view = self.view()
            node_id = view["node_id"]
        url = next((url for url, view in views.items() if view["node_id"] == node_id), None)
        if url is None:
            fail(f"node {node_id} does not answer", EXIT_NOT_FOUND)
        found: list[dict[str, Any]] = request(url, "GET", "/v1/cluster/partitions")["partitions"]
        return [row for row in found if topic is None or row["topic"] == topic]

    def order(self, kind: str, body: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Give an order to the node that leads the quorum (INV-CCL1); raises `ApiError`, `NoNode`."""
        progress = Progress()
        while True:
            view = self.leading_view()
            url = view["quorum"]["http"] or next(iter(self._urls))
            try:
                done: Mapping[str, Any] = request(url, "POST", f"/v1/cluster/{kind}", body)
            except ApiError as error:
                if error.code not in _AGAIN or progress.elapsed_s > timeout_s:
                    raise
                progress.say(f"waiting: {error}")
                time.sleep(_AGAIN_S)
            except ConnectionRefusedError as error:
                if progress.elapsed_s > timeout_s:
                    raise NoNode(f"{url} leads the quorum, as is said, and does not answer: {error}") from error  # fmt: skip
                time.sleep(_AGAIN_S)
            else:
                return done
