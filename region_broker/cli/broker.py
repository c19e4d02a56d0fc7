"""`tidemark broker`: one node in this process, until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from region_broker.cli.lean import (
    calm_collector,
    import_leanly,
    keep_freed_memory,
    skip_what_is_there,
)
from region_broker.cli.output import EXIT_USAGE, fail
from region_broker.config.node_config import ConfigError, NodeConfig, unknown_overlays
from region_broker.ports.system.core_files import leave_no_core_file
from region_broker.ports.system.descriptors import raise_descriptor_limit

if TYPE_CHECKING:
    from region_broker.node import Ports
    from region_broker.node.start_checks import Findings

_LEDGER_FAILED: Final = (
    "tidemark: the node ended, because no region acts without all of its ledgers: {}. Where that cannot be mended, let"
    " another region act (tidemark region failover)"
)
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


@click.command(
    epilog="""\b
Examples:
  tidemark broker --config node.toml --check    whether a start would be refused, and what running nodes have otherwise
  tidemark broker --config node.toml
  TIDEMARK_DATA_DIR=/srv/eu tidemark broker --config node.toml
"""
)
@click.option(
    "--config", "config_path", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="The node's configuration: docs/reference/config.md lists every key.",
)  # fmt: skip
@click.option(
    "--check",
    is_flag=True,
    help="Check the configuration, its folder and its ports, and what nodes that run say of it; write nothing, and stop.",
)
@click.option("--stop-with-stdin", is_flag=True, hidden=True, help="Stop when stdin is closed.")
def broker(config_path: Path, check: bool, stop_with_stdin: bool) -> None:
    """Run one node. Prints one line, `ready …`, once it serves; logs go to standard error."""
    try:
        config = NodeConfig.load(config_path)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    strange = [overlay.name for overlay in unknown_overlays(os.environ)]
    if check:
        _check(config, config_path, strange)
        return
    leave_no_core_file()
    import_leanly()
    _configure_logs(config.log_level)
    if strange:
        logging.getLogger("tidemark.node").warning("no command reads %s", ", ".join(strange))
    raise_descriptor_limit()
    with _runner() as runner:
        code = runner.run(_serve(config, config_path, stop_with_stdin))
    sys.exit(code)


def _check(config: NodeConfig, path: Path, strange: Sequence[str]) -> None:
    from region_broker.cli.config_compare import differences
    from region_broker.cli.context.credentials import present_if_possible

    present_if_possible()

    for name in strange:
        click.echo(f"{name} overlays no key, and no command reads it", err=True)
    try:
        found = asyncio.run(_look_around(config, path))
    except ConfigError as error:
        fail(str(error))
    if found.in_use:
        click.echo(
            f"a node runs on {config.data_dir}: its ports were not tried, nor what is in the folder",
            err=True,
        )
    for remark in (*found.remarks, *differences(config)):
        click.echo(remark, err=True)
    if found.unborn:
        click.echo(
            f"{config.data_dir} has no history: a node started on it joins the region that acts, or waits. If the whole"
            f" cluster is new: tidemark init, once, at its primary region; if this region of several nodes is: at one of them"
            f" (tidemark init --help)",
            err=True,
        )
    click.echo(f"{path} is a valid configuration of region {config.region}")


async def _look_around(config: NodeConfig, path: Path) -> "Findings":
    """Return what a start would meet; raises `ConfigError` with what would refuse it."""
    from region_broker.node.start_checks import look_around

    found = await look_around(config, _ports())
    if found.problems:
        raise ConfigError(str(path), found.problems)
    return found


def _ports() -> "Ports":
    from region_broker.node import Ports
    from region_broker.ports.system.chance import SystemChance
    from region_broker.ports.system.clock import SystemClock
    from region_broker.ports.system.disk import RealDisk
    from region_broker.ports.system.network import AsyncioNetwork

    return Ports(SystemClock(), SystemChance(), RealDisk(), AsyncioNetwork())


async def _serve(config: NodeConfig, path: Path, stop_with_stdin: bool) -> int:
    from region_broker.controller.raft.failures import RaftStoreFailed
    from region_broker.groups import ports as of_groups
    from region_broker.groups.records import LedgerRecordError
    from region_broker.node import START_REFUSALS, GrowingNode
    from region_broker.ports.system.threads import Threads
    from txn_coordinator.ports import LedgerFailed

    calm_collector()  # all is imported, and nobody waits yet
    try:
        for remark in (await _look_around(config, path)).remarks:
            logging.getLogger("tidemark.node").warning("%s", remark)
        loop = asyncio.get_running_loop()
        threads = Threads(loop)
        node = await GrowingNode.open(config, _ports(), until_threads_ended=threads.until_ended)
        node.on_node = lambda joined: joined.configs.follow(_set_log_level)
        loop.set_exception_handler(node.handle)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, node.stop)
        if stop_with_stdin:
            await loop.connect_read_pipe(lambda: _StopAtEnd(node.stop), sys.stdin)
        own = config.own_node
        ready = f"ready region={config.region} kafka={own.kafka} http={own.http} peer={own.peer}"
        await node.run(lambda: _settle(ready))
    except (ConfigError, *START_REFUSALS, OSError) as error:
        click.echo(f"tidemark: {error}", err=True)
        return 1
    except ExceptionGroup as ended:
        refused, others = ended.split(START_REFUSALS)
        if others is None:  # a node of a region with several looks further when it has joined
            click.echo(f"tidemark: {'; '.join(_texts(refused))}", err=True)
            return 1
        of_disk, others = ended.split(RaftStoreFailed)
        if others is None:  # INV-M19: others of the region go on
            click.echo(f"tidemark: {'; '.join(_texts(of_disk))}", err=True)
            return 1
        failed, others = ended.split((LedgerFailed, of_groups.LedgerFailed, LedgerRecordError))
        if others is not None:
            raise
        click.echo(_LEDGER_FAILED.format("; ".join(_texts(failed))), err=True)
        return 1
    return 0


def _texts(error: BaseException | None) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _texts(each)
    elif error is not None:
        yield str(error)


def _settle(ready: str) -> None:
    """Say that the node serves."""
    skip_what_is_there()
    keep_freed_memory()
    click.echo(ready)


class _StopAtEnd(asyncio.Protocol):
    """Calls `stop` when the pipe that it reads is closed by the other side."""

    def __init__(self, stop: object) -> None:
        assert callable(stop)
        self._stop = stop

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()


def _runner() -> asyncio.Runner:
    with suppress(ImportError):
        import uvloop

        return asyncio.Runner(loop_factory=uvloop.new_event_loop)
    return asyncio.Runner()


def _set_log_level(config: NodeConfig) -> None:
    """Log by the level that counts now."""
    logging.getLogger().setLevel(_LEVELS[config.log_level])


def json_lines() -> logging.Formatter:
    """Return what makes one line of JSON of each event: what a client has said stands in it as a text, and ends no line."""
    import structlog

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )


def _configure_logs(level: str) -> None:
    """Log JSON lines to standard error, one per event."""
    handler = logging.StreamHandler()
    handler.setFormatter(json_lines())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler])
    for foreign in ("alembic", "aiosqlite", "asyncio", "sqlalchemy"):
        logging.getLogger(foreign).setLevel(logging.WARNING)  # their every step is no event of ours
