"""The CLI's side of the HTTP API: finds the node of a region through any node that answers.

A dead address among several is no error; no live one is. Every request ends within its time-out, and an answer is
bounded in size. A redirect is followed only to an address that the cluster itself named, and only once.

http.client rather than aiohttp: a command must start within 150 ms.
Not here: what is printed (`region`, `admin`).
"""

import http.client
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from region_broker.cli.context.store import DEFAULT_URL, ContextError, chosen
from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    EXIT_USAGE,
    fail,
)

URL_VARIABLE: Final = "TIDEMARK_URL"
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 3.0
_REDIRECT: Final = 307
_NOT_FOUND: Final = 404

Command = TypeVar("Command", bound=Callable[..., Any])


class NoNode(Exception):
    """No node answered at any of the addresses, or none that acts where one has to."""


class UnknownRegion(Exception):
    """The cluster has no region of that name."""


class BadUrl(Exception):
    """An address that is not http://host:port."""


class ApiError(Exception):
    """A node answered with a problem (RFC 9457)."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        """Keep status and code beside the text."""
        super().__init__(detail)
        self.status = status
        self.code = code


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
    if error.code == "timed-out":
        return EXIT_UNKNOWN_OUTCOME
    return EXIT_NOT_FOUND if error.status == _NOT_FOUND else EXIT_FAILED


def parse_urls(text: str | None) -> list[str]:
    """Return the addresses of a comma list, of `TIDEMARK_URL`, or of the context (INV-CTX1).

    Raises `BadUrl`, `ContextError`.
    """
    source = text or os.environ.get(URL_VARIABLE) or chosen().url
    urls = [part.strip().rstrip("/") for part in source.split(",") if part.strip()]
    for url in urls:
        _split(url)
    return urls


def _split(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise BadUrl(f"{url!r} is not http://host:port ({error})") from error
    if parts.scheme != "http" or parts.hostname is None:
        raise BadUrl(f"{url!r} is not http://host:port")
    return parts.hostname, port or 80


def request(
    url: str, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30.0
) -> Any:
    """Return the JSON answer; raises `ApiError`, OSError (TimeoutError included)."""
    return _decode(url, *_exchange(url, method, path, body, timeout_s))


def metrics_text(url: str, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
    """Return `/metrics` in Prometheus text format; raises `ApiError`, OSError (TimeoutError included)."""
    status, data = _exchange(url, "GET", "/metrics", None, timeout_s)
    if status >= _REDIRECT:
        raise ApiError(status, "", f"{url} answered {status} to /metrics")
    return data.decode(errors="replace")


def _exchange(
    url: str, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
) -> tuple[int, bytes]:
    host, port = _split(url)
    connection = http.client.HTTPConnection(host, port, timeout=min(timeout_s, CONNECT_TIMEOUT_S))
    try:
        connection.connect()
        connection.sock.settimeout(timeout_s)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read(ANSWER_BYTES_MAX + 1)
    except http.client.HTTPException as error:
        raise ConnectionError(
            f"{url} does not speak HTTP; is it the Kafka or the peer port?"
        ) from error
    except BrokenPipeError as error:
        raise ConnectionError(f"{url} closed the connection: {error}") from error
    finally:
        connection.close()
    if len(data) > ANSWER_BYTES_MAX:
        raise ConnectionError(f"{url} answered more than {ANSWER_BYTES_MAX} bytes")
    return response.status, data


def _decode(url: str, status: int, data: bytes) -> Any:
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(
            f"{url} answered {status} without JSON; is it Tidemark, and its HTTP port?"
        ) from error
    if status >= _REDIRECT:
        body = decoded if isinstance(decoded, dict) else {}
        detail = str(body.get("detail", f"{url} answered {status}"))
        raise ApiError(status, str(body.get("code", "")), detail)
    return decoded


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
            else:
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
