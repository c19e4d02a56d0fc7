"""The CLI's side of the HTTP API: finds the node of a region through any node that answers.

A dead address among several is no error; no live one is. A redirect is followed only to an address that the cluster
itself named, and only once. Not here: one request (`workbench.node_http`), what is printed (`region`, `admin`).
"""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import click

from region_broker.cli.context.store import DEFAULT_URL, ContextError, chosen
from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    EXIT_USAGE,
    fail,
)
from region_broker.workbench.node_http import CONNECT_TIMEOUT_S, ApiError, BadUrl, request, urls_of

URL_VARIABLE: Final = "TIDEMARK_URL"
_REDIRECT: Final = 307
_NOT_FOUND: Final = 404

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
    return option(command)


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
        except BrokenPipeError:
            raise  # whoever reads our output has read enough: click ends without a word
        except OSError as error:
            fail(f"the connection broke: {error}")

    return run


def _exit_code(error: ApiError) -> int:
    if error.code in {"timed-out", "outcome-unknown"}:
        return EXIT_UNKNOWN_OUTCOME
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
        self.http: dict[str, str] = {}
        self.dead: dict[str, str] = {}
        self.aside: dict[str, tuple[str, str]] = {}

    def views(self) -> dict[str, dict[str, Any]]:
        """Return `GET /v1/region` of every region that answers, by name; raises `NoNode`.

        `http` then holds the address of every region known, `dead` why one did not answer, `aside` as which region
        and why a node stands aside: the view of a region is that of its other node, where that answers.
        """
        if self._views is not None:
            return self._views
        views: dict[str, dict[str, Any]] = {}
        asked: set[str] = set()
        waiting = list(self._urls)
        while waiting:
            url = waiting.pop(0)
            if url in asked:
                continue
            asked.add(url)
            view = self._ask(url)
            if view is None:
                continue
            name = str(view["region"])
            if why := view.get("stands_aside"):
                self.aside[url] = name, str(why)
                views.setdefault(name, view)
            elif not views.get(name, {}).get("acting"):  # of several nodes, the one that leads
                views[name] = view
            for peer in view.get("peers", []):
                self.http[str(peer["region"])] = str(peer["http"])
                waiting.append(str(peer["http"]))
        if not views:
            tried = "; ".join(
                why if why.startswith(url) else f"{url}: {why}" for url, why in self.dead.items()
            )
            raise NoNode(
                f"no node answers ({tried}). Give the HTTP address of any live node with --url or"
                f" {URL_VARIABLE}, several with commas."
            )
        self._views = views
        return views

    def _ask(self, url: str) -> dict[str, Any] | None:
        try:
            view = request(url, "GET", "/v1/region", timeout_s=CONNECT_TIMEOUT_S)
        except (OSError, ApiError, BadUrl) as error:
            self.dead[url] = str(error) or type(error).__name__
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
                f"region {region} does not answer at {address}"
                f" ({self.dead.get(address, 'no answer')}): start its node first, or choose another region;"
                f" there answer: {others}. Nothing was changed."
            )
        return address

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
