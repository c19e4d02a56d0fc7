"""Clients in other languages, unmodified, against real regions: `python -m tests.compat.run [CLIENT ...]`.

Not part of the test run: it fetches the clients from Maven Central, the Go module proxy and npm into a cache outside
the repository (`$TIDEMARK_COMPAT_CACHE`, or `~/.cache/tidemark-compat`). Each client's program in `foreign/` uses its
public API only, reads back what it wrote, and prints `ok|FAIL|skip <tab> check <tab> reason` a line. It is run in each place:
against one region alone, against the mirror of a pair, which forwards writes and reads up to its last tidemark, and against a
region of three nodes, by the address of one that follows, and of one whose partitions are led by all three.

    python -m tests.compat.run java --only 'admin: list offsets' --place one
    python -m tests.compat.run --place nodes    # all, where one region has three nodes
    python -m tests.compat.run --write          # all, and the table in docs/reference/compatibility.md

A whole result is kept in the cache; `--write` takes the last one of each client and place, and leaves in the table what was
not run on this machine.

Exit codes: 0 all checks passed; 1 a check failed; 2 a tool or a download is missing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from region_broker.workbench.local_cluster import LocalCluster
from tests.compat.foreign_clients import CLIENTS, REASONS, MissingToolError
from tests.compat.places import PLACES, start

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"

PROGRAM_S: Final = 420
_TABLE: Final = re.compile(
    r"(?P<head><!-- measured: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(?P<tail><!-- end -->)",
    re.DOTALL,
)


class Outcome(NamedTuple):
    """How one check went."""

    check: str
    passed: bool
    reason: str
    skipped: bool = False
    """It did not run, by its own decision; `passed` is true then."""

    @property
    def word(self) -> str:
        """The result, as the table says it."""
        return "skipped" if self.skipped else "passed" if self.passed else "failed"


Found = dict[tuple[str, str], list[Outcome]]
"""The outcomes by client and place."""


def main(arguments: Sequence[str]) -> int:
    """Run what was asked; returns the exit code."""
    options = _options(arguments)
    names = options.clients or list(CLIENTS)
    found: Found = {}
    try:
        commands = {name: prepared(name, options.log) for name in names}
    except (MissingToolError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 2
    for place in options.place or list(PLACES):
        for name in names:
            print(
                f"--- {CLIENTS[name].title} {CLIENTS[name].version}, {PLACES[place].title}",
                flush=True,
            )
            found[name, place] = _against(place, commands[name], CLIENTS[name].settings, options)
    print(table(found))
    if not options.only:
        keep(found)
    if options.write:
        write(DOCUMENT, table(written(DOCUMENT.read_text("utf-8")) | kept()))
    return 0 if all(outcome.passed for outcomes in found.values() for outcome in outcomes) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.compat.run", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("clients", nargs="*", choices=[[], *CLIENTS], help="which clients (all)")
    parser.add_argument("--place", action="append", choices=list(PLACES), help="where to aim (all)")
    parser.add_argument("--only", action="append", default=[], help="a check by name (all)")
    parser.add_argument(
        "--log",
        default="off",
        help="log level of the client, to find out why: warn, info, debug (off)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the last result of each client and place into the documentation",
    )
    options = parser.parse_args(arguments)
    if options.write and options.only:
        parser.error("--write wants whole programs: give no --only with it")
    return options


def prepared(name: str, log_level: str) -> list[str]:
    """Fetch and build a client; return its command. Raises `MissingToolError`."""
    client = CLIENTS[name]
    missing = [tool for tool in client.tools if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(
            f"{name} needs {', '.join(client.tools)} on the path and {client.source} within reach;"
            f" missing: {', '.join(missing)}"
        )
    cache = _cache(name)
    cache.mkdir(parents=True, exist_ok=True)
    return client.build(cache, log_level)


def _cache(name: str) -> Path:
    home = os.environ.get("TIDEMARK_COMPAT_CACHE") or Path.home() / ".cache" / "tidemark-compat"
    return Path(home) / name / CLIENTS[name].version


def keep(found: Found) -> None:
    """Keep whole results beside the clients, so that a table can be written from several runs."""
    for (name, place), outcomes in found.items():
        (_cache(name) / f"{place}.json").write_bytes(msgspec.json.encode(outcomes))


def kept() -> Found:
    """Return the last whole result of each client and place."""
    return {
        (name, place): msgspec.json.decode(path.read_bytes(), type=list[Outcome])
        for name in CLIENTS
        for place in PLACES
        for path in [_cache(name) / f"{place}.json"]
        if path.exists()
    }


def written(text: str) -> Found:
    """Return what the table in the document says: what was run on other machines, or before, and is kept nowhere else."""
    titles = {client.title: name for name, client in CLIENTS.items()}
    places = {place.title: key for key, place in PLACES.items()}
    found: Found = {}
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        head = cells if cells[:3] == ["client", "version", "what was done"] else head
        if not cells or len(cells) != len(head) or cells[0] not in titles:
            continue
        for title, word in zip(head, cells, strict=True):
            if title in places and word != "not run":
                reason = "" if word == "passed" else cells[-1].replace("\\|", "|")
                outcome = Outcome(cells[2], word != "failed", reason, word == "skipped")
                found.setdefault((titles[cells[0]], places[title]), []).append(outcome)
    return found


def _against(
    place: str, command: list[str], settings: Mapping[str, object], options: argparse.Namespace
) -> list[Outcome]:
    """Run one program against fresh regions; what it printed but could not judge is passed through."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-compat-") as folder,
        LocalCluster.open(
            Path(folder),
            region_count=PLACES[place].region_count,
            node_count=PLACES[place].node_count,
            port=0,
            new_cluster_id=UUID(int=1),
            settings=settings,
        ) as cluster,
    ):
        start(cluster, PLACES[place])
        bootstrap = cluster.plan.nodes[-1].bootstrap
        try:
            done = subprocess.run(
                [*command, bootstrap, "compat", *options.only], stdout=subprocess.PIPE, text=True,
                timeout=PROGRAM_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [Outcome("the program", passed=False, reason=f"not done within {PROGRAM_S} s")]
        outcomes = outcomes_of(done.stdout, done.returncode)
        if ended := cluster.dead():
            outcomes.append(Outcome("the region lives on", passed=False, reason=f"ended: {ended}"))
        if not all(outcome.passed for outcome in outcomes):
            _keep_logs(cluster, place)
    for outcome in outcomes:
        print(f"{outcome.word:7} {outcome.check}  {outcome.reason}", flush=True)
    return outcomes


def _keep_logs(cluster: LocalCluster, place: str) -> None:
    """Keep what the nodes said beside a failure: it may not come again."""
    for node in cluster.plan.nodes:
        name = node.name.replace("/", "-")
        kept_at = Path(tempfile.gettempdir()) / f"tidemark-compat-{place}-{name}.log"
        shutil.copy(cluster.data_dir(node.name) / "node.log", kept_at)
        print(f"the log of {node.title} is kept: {kept_at}", file=sys.stderr)


def outcomes_of(printed: str, exit_code: int) -> list[Outcome]:
    """Return what a program printed; a program that fell over, or checked nothing, has failed."""
    outcomes = []
    for line in printed.splitlines():
        word, _, rest = line.partition("\t")
        if word in {"ok", "FAIL", "skip"}:
            check, _, reason = rest.partition("\t")
            passed, skipped = word != "FAIL", word == "skip"
            outcomes.append(Outcome(check, passed, reason.strip(), skipped))
        elif line:
            print(line)
    if not outcomes or (exit_code != 0 and all(outcome.passed for outcome in outcomes)):
        outcomes.append(Outcome("the program", passed=False, reason=f"ended with {exit_code}"))
    return outcomes


def table(found: Found) -> str:
    """Return the Markdown table: one line per client and check, one column per place."""
    places = [place for place in PLACES if any(key[1] == place for key in found)]
    lines = [
        f"| client | version | what was done | {' | '.join(PLACES[place].title for place in places)} | why not passed, and what to do |",
        "|---" * (4 + len(places)) + "|",
    ]
    for name, client in CLIENTS.items():
        by_place = {p: {o.check: o for o in found.get((name, p), [])} for p in places}
        for check in dict.fromkeys(c for outcomes in by_place.values() for c in outcomes):
            results = [by_place[place].get(check) for place in places]
            said = next((o.reason for o in results if o and o.reason), "")
            reason = REASONS.get((name, check), said) if said else ""
            cells = ["not run" if o is None else o.word for o in results]
            line = [client.title, client.version, check, *cells, reason.replace("|", "\\|")]
            lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


def write(document: Path, rows: str) -> None:
    """Put the table, and today's date, into the document."""
    fresh = {"foreign-clients": rows, "when": f"Last run: {date.today().isoformat()}."}  # noqa: DTZ011
    text = _TABLE.sub(
        lambda match: (
            f"{match['head']}{fresh.get(match['name'], match['body'].rstrip())}\n{match['tail']}"
        ),
        document.read_text("utf-8"),
    )
    document.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
