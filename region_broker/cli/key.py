"""`tidemark key`: the named keys that topics are sealed under at rest, in the file that nodes have as `encryption_keys_file`.

Each command reads the file, changes it, and puts it back as a whole; nodes notice within seconds. Copies on other nodes and in other regions are
the operator's. No key is ever printed.

INV-CKY1  what a command changes it has read, and judged, behind the lock of the file (INV-CCH1), and behind the question: a version that another
          command made meanwhile stays, and one that it destroyed does not come back
INV-CKY2  a source that is made is durable before a version depends on it
INV-CKY3  a source that was made for a change that fails is told of, and stays: whether the file of keys names it by then may not be known, and
          another command may have wrapped a key by it

Not here: what is in the file (`security.sealing.key_ring`), topics (`tidemark topic`).
"""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from region_broker.cli.changed_files import locked, replace_file
from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    agreed,
    fail,
    output_option,
    print_rows,
)
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.security.sealing.key_ring import (
    Ring,
    RingError,
    check_name,
    destroyed,
    read_ring,
    rewrapped,
    unlock,
    with_version,
    write_ring,
)
from region_broker.security.sealing.key_sources import (
    KeySource,
    KeySources,
    SourceFailed,
    new_source_key,
)

_DISK: Final = RealDisk()
_SOURCES: Final = KeySources(_DISK)
_File = click.argument("file", type=click.Path(path_type=Path))


@click.group(epilog="Example: tidemark key make /etc/tidemark/keys.toml orders --file orders.key")
def key() -> None:
    """Keys that records are sealed under at rest: list, make, rotate, rewrap, destroy."""


def _tells(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (RingError, SourceFailed) as error:
            fail(str(error), EXIT_FAILED)
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}", EXIT_FAILED)

    return run


def _sources(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--wrap", help="Beside --unwrap: the command that wraps new versions."),
        click.option("--unwrap", help="A command: gets what is wrapped, writes the key, in base64."),
        click.option("--env", help="A variable of the nodes' environment that holds it, in base64."),
        click.option("--file", "source_file", type=click.Path(path_type=Path),
                     help="A file that holds it, in base64; made where there is none."),
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def _source(source_file: Path | None, **rest: str | None) -> Iterator[KeySource]:
    """Give out a source, of which the file is made where there is none, and say what became of that (INV-CKY3)."""
    source = _described(source_file, **rest)
    if source_file is None or source_file.exists():
        yield source
        return
    from region_broker.security.authority_folder import SECRET_MODE, write

    write(source_file, f"{new_source_key()}\n".encode(), SECRET_MODE)  # INV-CKY2
    try:
        yield source
    except BaseException:
        click.echo(
            f"tidemark: {source_file} was made for this and stays, although this fails: where the file of keys does not name it, it"
            " opens nothing. Remove it, or give it again",
            err=True,
        )
        raise
    click.echo(f"{source_file} was made: only who runs nodes may read it; keep a copy elsewhere")


def _described(
    source_file: Path | None, env: str | None, unwrap: str | None, wrap: str | None
) -> KeySource:
    try:
        return KeySource(
            file=str(source_file.absolute()) if source_file else "",
            env=env or "",
            unwrap=tuple(shlex.split(unwrap or "")),
            wrap=tuple(shlex.split(wrap or "")),
        )
    except ValueError as error:
        fail(f"{error}: give --file, --env, or --unwrap with --wrap", EXIT_USAGE)


def _now() -> str:
    now = datetime.fromtimestamp(SystemClock().wall_ms() // 1000, UTC)
    return now.isoformat().replace("+00:00", "Z")


@contextmanager
def _changing(file: Path, *, may_be_new: bool = False) -> Iterator[Ring]:
    """Give out the ring of a file that no other command changes meanwhile (INV-CKY1)."""
    if not file.parent.is_dir():
        fail(f"the folder {file.parent} is not there: make it, or name another one", EXIT_FAILED)
    with locked(file):
        yield {} if may_be_new and not file.exists() else read_ring(_DISK, file)


def _put(file: Path, data: bytes) -> None:
    replace_file(file, data, new_mode=0o640, mode_max=0o777)


def _alive(ring: Ring, name: str) -> list[str]:
    return [each.id for each in ring[name].versions if each.wrapped]


@key.command("list", epilog="Example: tidemark key list /etc/tidemark/keys.toml -o json")
@_File
@click.option(
    "--check", is_flag=True, help="Ask the sources, too, whether each key can be used here."
)
@output_option
@_tells
def list_keys(file: Path, check: bool, output: str) -> None:
    """List the keys in FILE and their versions; none of them is shown."""
    ring = read_ring(_DISK, file)
    usable = unlock(_SOURCES, ring) if check else {}
    rows = []
    for name, found in sorted(ring.items()):
        alive = [each.id for each in found.versions if each.wrapped]
        for each in found.versions:
            state = "newest" if alive and each.id == alive[-1] else "kept for reading"
            row = {
                "key": name, "version": each.id, "made": each.made, "source": str(found.source),
                "state": state if each.wrapped else f"destroyed {each.destroyed}",
            }  # fmt: skip
            if check:
                row["here"] = (usable[name].missing or "yes") if each.wrapped else "no"
            rows.append(row)
    print_rows(rows, output, title="keys")


@key.command(
    "make",
    epilog="""\b
Examples:
  tidemark key make /etc/tidemark/keys.toml orders --file /etc/tidemark/orders.key
  tidemark key make keys.toml orders --unwrap "kms-client decrypt prod" --wrap "kms-client encrypt prod"
""",
)
@_File
@click.argument("name")
@_sources
@_tells
def make(file: Path, name: str, **source: Any) -> None:
    """Make a key NAME in FILE, with a first version that its source wraps."""
    with _changing(file, may_be_new=True) as ring:
        check_name(ring, name, is_new=True)  # before a file is made for its source
        with _source(**source) as new:
            write_ring(_put, file, with_version(_SOURCES, ring, name, new, _now()))
    click.echo(
        f"key {name} was made. Give every node this file (encryption_keys_file) and the source, then"
        f" seal topics by tidemark.encryption={name}"
    )


@key.command("rotate", epilog="Example: tidemark key rotate /etc/tidemark/keys.toml orders")
@_File
@click.argument("name")
@_tells
def rotate(file: Path, name: str) -> None:
    """Give the key NAME a new version: what is written from then on is sealed under it."""
    with _changing(file) as ring:
        write_ring(_put, file, with_version(_SOURCES, ring, name, None, _now()))
    click.echo(
        f"key {name} has a new version. Give this file to the nodes that only read first, then to those that write: what is sealed under a version"
        " is read by nodes that have it. Older versions stay for what they sealed"
    )


@key.command(
    "rewrap",
    epilog="Example: tidemark key rewrap keys.toml orders --file /etc/tidemark/new-orders.key",
)
@_File
@click.argument("name")
@_sources
@_tells
def rewrap(file: Path, name: str, **source: Any) -> None:
    """Put all versions of NAME under another source, or a new key of the same service; no log is touched."""
    with _changing(file) as ring:
        check_name(ring, name, is_new=False)
        with _source(**source) as new:
            write_ring(_put, file, rewrapped(_SOURCES, ring, name, new))
    click.echo(
        f"key {name} is wrapped by the new source. The old one still opens older copies of this file: destroy those, or it"
    )


@key.command("destroy", epilog="Example: tidemark key destroy keys.toml orders --yes")
@_File
@click.argument("name")
@click.option("--version", help="Only this version; the newest goes only with all others.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_tells
def destroy(file: Path, name: str, version: str | None, yes: bool) -> None:
    """Destroy the key NAME in FILE: what is sealed under it can be read by nobody any more.

    Other copies of the file, and backups, still have it until they are destroyed, too; so have they all once the source's own key is.
    """
    seen = read_ring(_DISK, file)
    destroyed(seen, name, version, _now())  # what is refused is not asked for
    what = f"version {version} of {name}" if version else f"all versions of {name}"
    if not yes:
        agreed(f"Destroy {what} for good? Records sealed under it are lost")
    with _changing(file) as ring:
        changed = destroyed(ring, name, version, _now())
        if version is None and _alive(ring, name) != _alive(seen, name):
            fail(f"the versions of {name} have changed meanwhile: nothing is destroyed. Look at them (tidemark key list {file}), and destroy again", EXIT_FAILED)  # fmt: skip
        write_ring(_put, file, changed)
    click.echo(f"{what} destroyed here. Replace or destroy the other copies of this file, too")
