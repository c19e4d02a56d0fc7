"""The CLI's side of the HTTP API: finds the node of a region through any node that answers.

A dead address among several is no error; no live one is. Of a region of several nodes, the one that leads it speaks for it: the
others are asked for where it is, each of them where need be.
Not here: one request (`workbench.node_http`), orders (`region_orders`), what is printed (`region`, `admin`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import click

from region_broker.cli.context.credentials import credential_options
from region_broker.cli.context.store import DEFAULT_URL, ContextError, chosen
from region_broker.cli.output import (
    EXIT_AUTH,
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    EXIT_USAGE,
    fail,
)
from region_broker.workbench.node_http import (
    CONNECT_TIMEOUT_S,
    ApiError,
    BadUrl,
    OutcomeUnknown,
    request,
    urls_of,
)

URL_VARIABLE: Final = "TIDEMARK_URL"
_NOT_FOUND: Final = 404
NOT_ALLOWED: Final = frozenset({401, 403})

Command = TypeVar("Command", bound=Callable[..., Any])


class NoNode(Exception):
    """No node answered at any of the addresses, or none that acts where one has to."""


class UnknownRegion(Exception):
    """The cluster has no region of that name."""


def url_option(command: Command) -> Command:
    """Add ``--url``; it arrives as `url`, for `parse_urls`."""
    option = click.option(
        "--url", metavar="URL[,URL...]",
        help="HTTP address of any node, several with commas; dead ones are skipped."
        f" Default: {URL_VARIABLE}, then the context, then {DEFAULT_URL}.",
    )  # fmt: skip
    return option(credential_options(command))


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the errors of this module into a message and an exit code."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (BadUrl, ContextError) as error:
            fail(str(error), EXIT_USAGE)
        except UnknownRegion as error:
            fail(str(error), EXIT_NOT_FOUND)
        except NoNode as error:
            fail(str(error))
        except ApiError as error:
            fail(str(error), _exit_code(error))
        except TimeoutError as error:
            fail(f"no answer in time, it may still take effect: {error}", EXIT_UNKNOWN_OUTCOME)
        except OutcomeUnknown as error:
            fail(
                f"it may have taken effect, or may yet: {error}. tidemark region status, or the list of what was asked for, shows which",
                EXIT_UNKNOWN_OUTCOME,
            )
        except BrokenPipeError:
            raise  # whoever reads our output has read enough: click ends without a word
        except OSError as error:
            fail(f"the connection broke: {error}")

    return run


def _exit_code(error: ApiError) -> int:
    if error.code in {"timed-out", "outcome-unknown"}:
        return EXIT_UNKNOWN_OUTCOME
    if error.status in NOT_ALLOWED:
        return EXIT_AUTH
    return EXIT_NOT_FOUND if error.status == _NOT_FOUND else EXIT_FAILED


def parse_urls(text: str | None) -> list[str]:
    """Return the addresses of a comma list, of `TIDEMARK_URL`, or of the context (INV-CTX1).

    Raises `BadUrl`, `ContextError`.
    """
    return urls_of(text or os.environ.get(URL_VARIABLE) or chosen().url)


class Cluster:
    """The regions behind a list of addresses."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Look behind `urls`; nothing is asked yet."""
        self._urls = list(urls)
        self._views: dict[str, dict[str, Any]] | None = None
        self._nodes: dict[str, list[str]] = {}
        self._told_by: dict[str, str] = {}
        self._not_allowed: ApiError | None = None
        self.http: dict[str, str] = {}
        self.dead: dict[str, str] = {}
        self.aside: dict[str, tuple[str, str]] = {}

    def views(self) -> dict[str, dict[str, Any]]:
        """Return `GET /v1/region` of every region that answers, by name; raises `NoNode`, `ApiError` where we may not ask.

        `http` then holds the address of every region known, `dead` why a node did not answer, `aside` as which region
        and why a node stands aside: the view of a region is that of its other node, where that answers. Of several nodes it
        is that of the one that leads, where one does.
        """
        if self._views is not None:
            return self._views
        views: dict[str, dict[str, Any]] = {}
        asked: set[str] = set()
        waiting = list(self._urls)
        while waiting:
            url = waiting.pop(0)
            if url not in asked:
                asked.add(url)
                view = self._ask(url)
                if view is not None:
                    self._take(view, url, views)
                    waiting += [str(peer["http"]) for peer in view.get("peers", [])]
            if not waiting:
                waiting = [each for each in self._in_need(views) if each not in asked]
        if not views and self._not_allowed is not None:
            raise self._not_allowed
        if not views:
            tried = "; ".join(
                why if why.startswith(url) else f"{url}: {why}" for url, why in self.dead.items()
            )
            raise NoNode(
                f"no node answers ({tried}). Give the HTTP address of any live node with --url or"
                f" {URL_VARIABLE}, several with commas."
            )
        for name, url in self._told_by.items():
            if self.http[name] in self.dead:
                self.http[name] = url
        self._views = views
        return views

    def whole_views(self) -> dict[str, dict[str, Any]]:
        """Return what `views` does; raises `ApiError` where we may see a part only, too."""
        return {name: whole(view) for name, view in self.views().items()}

    def _take(self, view: dict[str, Any], url: str, views: dict[str, dict[str, Any]]) -> None:
        """Keep what a node says, where no better one has spoken for its region."""
        name = str(view["region"])
        if why := view.get("stands_aside"):
            self.aside[url] = name, str(why)
        better = _standing(view) >= _standing(views.get(name))
        if better:
            views[name] = view
        for peer in view.get("peers", []):
            region, address = str(peer["region"]), str(peer["http"])
            nodes = self._nodes.setdefault(region, [])
            named = [address, *(str(node["http"]) for node in peer.get("nodes", []))]
            nodes += [each for each in dict.fromkeys(named) if each not in nodes]
            knows = better if region == name else not _leads(views.get(region))
            if knows or region not in self.http:
                self.http[region] = address
        if better and len(self._nodes.get(name, [])) > 1:
            self._told_by[name] = _own_address(view, url)
            if _leads(view):
                self.http[name] = self._told_by[name]

    def _in_need(self, views: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the addresses of the regions for which nobody has spoken who leads them."""
        missing = (name for name in self._nodes if not _leads(views.get(name)))
        return [url for name in missing for url in self._nodes[name]]

    def _ask(self, url: str) -> dict[str, Any] | None:
        try:
            view = request(url, "GET", "/v1/region", timeout_s=CONNECT_TIMEOUT_S)
        except (OSError, ApiError, BadUrl) as error:
            self.dead[url] = str(error) or type(error).__name__
            if isinstance(error, ApiError) and error.status in NOT_ALLOWED:
                self._not_allowed = error
            return None
        if not isinstance(view, dict) or "region" not in view:
            self.dead[url] = "it is not a Tidemark node"
            return None
        return view

    def address_of(self, region: str) -> str:
        """Return the HTTP address of a region's node that answers; raises `NoNode`, `UnknownRegion`."""
        views = self.views()
        if region not in self.http:
            known = ", ".join(sorted(self.http)) or "none"
            raise UnknownRegion(f"no region is called {region!r}; there are: {known}")
        address = self.http[region]
        if region not in views:
            others = ", ".join(sorted(views))
            raise NoNode(
                f"region {region} does not answer at {self.tried(region)}: start its node first, or choose another region;"
                f" there answer: {others}. Nothing was changed."
            )
        return address

    def tried(self, region: str) -> str:
        """Return the addresses of a region's nodes, with why each of them does not answer."""
        nodes = self._nodes.get(region) or [self.http[region]]
        return ", ".join(f"{url} ({self.dead.get(url, 'no answer')})" for url in nodes)

    def nodes_of(self, region: str) -> list[str]:
        """Return the HTTP addresses of a region's nodes, who leads it first; raises `NoNode`, `UnknownRegion`."""
        return list(dict.fromkeys([self.address_of(region), *self._nodes.get(region, [])]))

    def acts_already(self, region: str) -> str:
        """Return how `region` acts, "" where it does not; raises `NoNode`."""
        view = self.views().get(region)
        if view is None or not view["acting"]:
            return ""
        return f"region {region} acts already, under region epoch {view['region_epoch']}"

    def acting(self) -> str:
        """Return the HTTP address of the primary region's node; raises `NoNode`."""
        acting = {
            int(view["region_epoch"]): name for name, view in self.views().items() if view["acting"]
        }
        if not acting:
            why = "; ".join(
                f"{name}: {view['reason_not_acting']}" for name, view in self.views().items()
            )
            raise NoNode(f"no region acts now ({why}). See tidemark region status.")
        return self.http[acting[max(acting)]]


def whole(
    view: dict[str, Any], needs: str = "Describe on the cluster is needed, or a token for readers"
) -> dict[str, Any]:
    """Return a view of a region; raises `ApiError` where it is what those are told who may not see it."""
    if view.get("in_brief"):
        raise ApiError(403, "forbidden", f"you may see which region acts, and no more: {needs}")
    return view


def _leads(view: Mapping[str, Any] | None) -> bool:
    """Return whether a view is that of who speaks for its region; a region of one node always has it."""
    return view is not None and view.get("role") != "follower"


def _standing(view: Mapping[str, Any] | None) -> tuple[int, int, bool]:
    """Return how much a node has to say for its region: the one that leads, under the newest leader epoch, or acts."""
    if view is None:
        return -1, 0, False
    if view.get("stands_aside"):
        return 0, 0, False
    return 2 if _leads(view) else 1, view.get("leader_epoch") or 0, bool(view["acting"])


def _own_address(view: Mapping[str, Any], url: str) -> str:
    """Return the address that the cluster names of the node whose view it is, else where it answered."""
    for peer in view["peers"]:
        for node in peer.get("nodes", []):
            if peer["region"] == view["region"] and node["node_id"] == view["node_id"]:
                return str(node["http"])
    return url
