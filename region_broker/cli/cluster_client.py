"""The nodes of one region behind HTTP addresses: the one that knows most is asked, the one that leads the quorum is ordered.

INV-CCL1  an order is sent only to an address that the cluster itself named, or that was given; again only where it is known to have
          changed nothing
INV-CCL2  one region is looked at, and ordered: the one that was asked for, else the one that has the node that is meant
Not here: one request (`workbench.node_http`), what is printed (`cluster`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Final, NoReturn

import click

from region_broker.cli.output import EXIT_NOT_FOUND, Progress, fail
from region_broker.cli.region_client import (
    NOT_ALLOWED,
    Cluster,
    NoNode,
    parse_urls,
    reports_errors,
    url_option,
    whole,
)
from region_broker.workbench.node_http import CONNECT_TIMEOUT_S, ApiError, BadUrl, request

_AGAIN: Final = frozenset({"no-quorum", "other-node"})
_AGAIN_S: Final = 0.1
_NOT_FOUND: Final = 404


Views = dict[str, dict[str, Any]]


def on_region(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--url`` and ``--region``; they arrive as `region`, the nodes behind them. Errors become an exit code."""

    @wraps(command)
    def run(*args: Any, url: str | None, region_name: str, **more: Any) -> None:
        command(*args, region=RegionOfNodes(parse_urls(url), region_name), **more)

    option = click.option(
        "--region", "region_name", metavar="REGION", default="",
        help="Which region, where there are several. Default: that of the node that is named, else that of the first --url that answers.",
    )  # fmt: skip
    return url_option(option(reports_errors(run)))


class RegionOfNodes:
    """Asks each node once."""

    def __init__(self, urls: Sequence[str], region: str = "") -> None:
        """Look behind `urls` for `region`; nothing is asked yet. Empty: the one that is found first."""
        self._urls = list(urls)
        self._region = region
        self.dead: dict[str, str] = {}
        self._of_one_node: list[str] = []
        self._not_allowed: ApiError | None = None

    def views(self, node_id: int | None = None) -> Views:
        """Return `GET /v1/cluster` of each node of the region that answers, by address; those that are named are asked, too.

        `node_id`: its region is meant, where none was asked for. Raises `NoNode`, `UnknownRegion`; ends the command where the region has
        one node.
        """
        found = self._all(self._urls)
        names = {str(view["region"]) for view in found.values()}
        if self._region and self._region not in names:
            found |= self._all(self._nodes_of(self._region))
        elif not self._region and self._lacks(node_id, found):
            found |= self._all(self._everywhere())
        if not found or (self._not_allowed is not None and self._lacks(node_id, found)):
            self._fail()
        region = self._region or _region_of(found, node_id)
        return {
            url: view for url, view in found.items() if view["region"] == region
        } or self._fail()

    def _lacks(self, node_id: int | None, found: Views) -> bool:
        return node_id is not None and not any(map(partial(_has, node_id), found.values()))

    def _nodes_of(self, region: str) -> list[str]:
        cluster = Cluster(self._urls)
        answering = sorted(cluster.views())
        if region in cluster.http and region not in answering:
            raise NoNode(
                f"no node of region {region} answers: {cluster.tried(region)}. So nobody can say how they stand. Start them; while they"
                f" have no majority: docs/runbooks/quorum_lost.md. How the other regions stand ({', '.join(answering)} answers):"
                f" tidemark region status. Was region {region} the one that took writes, and it is lost: docs/runbooks/region_failover.md"
            )
        return cluster.nodes_of(region)

    def _everywhere(self) -> list[str]:
        cluster = Cluster(self._urls)
        return [url for region in cluster.views() for url in cluster.nodes_of(region)]

    def _fail(self) -> Views:
        if (
            self._not_allowed is not None
        ):  # a region of one node beside those that refuse is not what was meant
            raise self._not_allowed
        tried = "; ".join(f"{url}: {why}" for url, why in self.dead.items())
        if self._of_one_node:
            others = f". Of the other addresses none answers ({tried})" if tried else ""
            fail(
                f"the region at {self._of_one_node[0]} has one node: there is no cluster of nodes to look at. See tidemark region status;"
                f" docs/deploy/README.md says how to grow it to three{others}",
                EXIT_NOT_FOUND,
            )
        raise NoNode(
            f"no node answers ({tried}). Give the HTTP address of any live node with --url, several with commas."
        )

    def _all(self, urls: Sequence[str]) -> Views:
        found: Views = {}
        waiting, asked = list(urls), set[str]()
        while waiting:
            url = waiting.pop(0)
            if url in asked:
                continue
            asked.add(url)
            view = self._ask(url)
            if view is not None:
                found[url] = view
                waiting += [str(node["http"]) for node in view["nodes"]]
        return found

    def _ask(self, url: str) -> dict[str, Any] | None:
        try:
            view: dict[str, Any] = request(url, "GET", "/v1/cluster", timeout_s=CONNECT_TIMEOUT_S)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                self._of_one_node.append(url)
            else:
                self.dead[url] = str(error)
            if error.status in NOT_ALLOWED:
                self._not_allowed = error
        except (OSError, BadUrl) as error:
            self.dead[url] = str(error) or type(error).__name__
        else:
            return view
        return None

    def any_url(self) -> str:
        """Return the address of a node of the region that answers, of a region of one, too; raises `NoNode`, `UnknownRegion`."""
        if self._region:
            found = self._all(Cluster(self._urls).nodes_of(self._region))
        else:
            found = self._all(self._urls)
        if not found and self._of_one_node and self._not_allowed is None:
            return self._of_one_node[0]
        return next(iter(found or self._fail()))

    def places(self) -> list[dict[str, Any]]:
        """Return region, id, HTTP address and registered feature level of each node, of a region of one, too; raises `NoNode`."""
        if self._region:
            url = Cluster(self._urls).address_of(self._region)
            found = self._all([url])
            is_alone = not found and url in self._of_one_node
        else:
            found = self._all(self._urls)
            is_alone = not found and bool(self._of_one_node) and self._not_allowed is None
            url = self._of_one_node[0] if is_alone else ""
        if not is_alone:
            view = self.view()
            return [
                {"region": view["region"], "node_id": row["node_id"], "http": row["http"], "newest_level": row["feature_level"]}
                for row in view["nodes"]
            ]  # fmt: skip
        view = whole(request(url, "GET", "/v1/region"))
        return [{"region": view["region"], "node_id": view["node_id"], "http": url, "newest_level": None}]  # fmt: skip

    def view(self) -> dict[str, Any]:
        """Return the view that knows most: of the node that leads the logs, else the newest one; raises `NoNode`."""
        return knows_most(list(self.views().values()))

    def leading_view(self, node_id: int | None = None) -> dict[str, Any]:
        """Return the view of the node that leads the quorum, else the newest one; raises `NoNode`."""
        views = list(self.views(node_id).values())
        return max(
            views,
            key=lambda view: (
                view["quorum"]["leader"] == view["node_id"], view["quorum"]["commit_index"],
            ),
        )  # fmt: skip

    def partitions(self, node_id: int | None, topic: str | None) -> list[dict[str, Any]]:
        """Return the logs of a node, of the one that leads where None; raises `NoNode`. Ends the command where the topic has none."""
        if node_id is None:
            node_id = self.view()["node_id"]
        views = self.views(node_id)
        url = next((url for url, view in views.items() if view["node_id"] == node_id), None)
        if url is None:
            self._fail_at(node_id, views)
        found: list[dict[str, Any]] = request(url, "GET", "/v1/cluster/partitions")["partitions"]
        rows = [row for row in found if topic is None or row["topic"] == topic]
        if topic is not None and not rows:
            fail(f"node {node_id} has no log of a topic {topic!r}: tidemark topic list names those that are there", EXIT_NOT_FOUND)  # fmt: skip
        return rows

    def _fail_at(self, node_id: int, views: Views) -> NoReturn:
        """Say that a node is registered and does not answer, or that there is none of this number."""
        rows = {row["node_id"]: row["http"] for view in views.values() for row in view["nodes"]}
        if node_id not in rows:
            numbers = ", ".join(map(str, sorted(rows)))
            fail(f"no node {node_id} is registered in this region; there are: {numbers}", EXIT_NOT_FOUND)  # fmt: skip
        why = self.dead.get(rows[node_id], "it was not asked")
        fail(
            f"node {node_id} does not answer ({rows[node_id]}: {why}), and only it can tell what it has. Start it, or ask another one by --node",
            EXIT_NOT_FOUND,
        )

    def order(self, kind: str, body: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Give an order to the node that leads the quorum (INV-CCL1), and return its answer with the `region`; raises `ApiError`, `NoNode`."""
        progress = Progress()
        while True:
            view = self.leading_view(body["node_id"])
            url = view["quorum"]["http"] or _own_http(view)
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
                return {**done, "region": view["region"]}


def knows_most(views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the view of the node that leads the logs, else the newest one."""
    return max(views, key=lambda view: (view["here"]["leads"], view["quorum"]["commit_index"]))


def _has(node_id: int, view: Mapping[str, Any]) -> bool:
    return any(node["node_id"] == node_id for node in view["nodes"])


def _own_http(view: Mapping[str, Any]) -> str:
    (own,) = [node["http"] for node in view["nodes"] if node["node_id"] == view["node_id"]]
    return str(own)


def _region_of(found: Views, node_id: int | None) -> str:
    """Return the region that has the node, else the first one: ids are unique over all regions."""
    for view in found.values():
        if node_id is not None and _has(node_id, view):
            return str(view["region"])
    return str(next(iter(found.values()))["region"])
