"""`tidemark reconcile`: prove that two regions hold the same, or show where they do not.

Exit codes: 0 consistent and all covered, 1 differences, 2 usage, 3 incomplete coverage, 4 behind the budget or a
failover not followed yet, 70 internal; the same number is in `summary.json`. Region folders are only read; live ones
too. Nothing heavy (numpy, Arrow, Spark) is imported before a command runs.

Not here: the checks and their outputs (`geo_replicator.reconciliation`).
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import click

from region_broker.cli.doctor import java_major_version
from region_broker.cli.output import EXIT_USAGE, fail, output_option, print_json, print_rows

if TYPE_CHECKING:
    from geo_replicator.lineage import TidemarkPoint
    from geo_replicator.reconciliation.findings import Finding
    from geo_replicator.reconciliation.job import Outcome, Request
    from geo_replicator.reconciliation.plan import Cut, Fork, TopicFacts
    from region_broker.controller.metadata_image import MetadataImage

EXIT_INTERNAL: Final = 70
JAVA_MIN: Final = 17
_SHOWN_MAX: Final = 20
_METADATA_FILE: Final = "metadata.db"

_EXAMPLES: Final = """\b
Examples:
  tidemark reconcile all --primary ./cluster/us --mirror ./cluster/eu
  tidemark reconcile verify --primary ./cluster/us --mirror ./cluster/eu --topics 'orders*' --engine local -o json
  tidemark reconcile transactions --primary ./cluster/us --mirror ./cluster/eu
"""


@click.group(epilog=_EXAMPLES)
def reconcile() -> None:
    """Prove that two regions hold the same, or show where they do not.

    Reads the data folders of both regions (live ones too), recomputes every checksum, compares them up to
    the last tidemark that the mirror has reached, and checks every transaction against the ledger. Writes
    Parquet tables, a JSON summary and an HTML report.

    Exit codes: 0 consistent and all covered, 1 differences, 2 usage, 3 not everything could be read,
    4 mirror behind its budget or has not followed a failover, 70 internal error.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option("--primary", "--source", "source", required=True, metavar="DIR", help="Data folder of the primary region, or its file:// URL."),
            click.option("--mirror", required=True, metavar="DIR", help="Data folder of the mirror region, or its file:// URL."),
            click.option("--topics", multiple=True, metavar="GLOB", help="Only these topics (repeatable)."),
            click.option("--exclude", multiple=True, metavar="GLOB", help="Not these topics (repeatable)."),
            click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", show_default=True,
                         help="`local` runs the same checks in this process, without Java: for small logs."),
            click.option("--master", default="local[*]", show_default=True, help="Spark master."),
            click.option("--work-dir", type=click.Path(file_okay=False, exists=True, path_type=Path),
                         help="Folder that Spark's workers can read too; needed for a master elsewhere."),
            click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="reconciliation",
                         show_default=True, help="Where tables, summary and report go."),
            click.option("--until", type=click.Choice(["cut", "end"]), default="cut", show_default=True,
                         help="Compare up to the last tidemark the mirror reached, or to the end of both logs."),
            click.option("--cut", "cut_file", type=click.Path(dir_okay=False, exists=True, path_type=Path),
                         help='Use this cut: a JSON file {"topic/partition": first offset not held}.'),
            click.option("--max-findings", type=click.IntRange(1), default=10_000, show_default=True,
                         help="Write at most so many; all are counted."),
            click.option("--use-sidecars", is_flag=True,
                         help="Trust the digests written when segments were sealed: faster, finds no bit rot since."),
            click.option("--rpo-records", type=click.IntRange(0), help="Exit 4 if more offsets are not copied."),
            click.option("--rpo-ms", type=click.IntRange(0), help="Exit 4 if the mirror is further behind."),
            output_option,
        )
    ):  # fmt: skip
        command = option(command)
    return command


@reconcile.command(epilog=_EXAMPLES)
@_options
def verify(**options: Any) -> None:
    """Compare record batches: missing, extra, divergent, duplicate, out of order, damaged."""
    _run(("verify",), options)


@reconcile.command(epilog=_EXAMPLES)
@_options
def transactions(**options: Any) -> None:
    """Check every transaction: torn, hanging, visible though aborted, committed but incomplete."""
    _run(("transactions",), options)


@reconcile.command("all", epilog=_EXAMPLES)
@_options
def all_jobs(**options: Any) -> None:
    """Do both in one pass over the logs (and one Spark session)."""
    _run(("transactions", "verify"), options)


def _run(jobs: tuple[str, ...], options: Mapping[str, Any]) -> None:
    _check_machine(options["engine"])
    with _InternalErrors():
        try:
            outcome = _outcome(_request(jobs, options), options)
        except FileNotFoundError as error:
            fail(str(error), EXIT_USAGE)
    _print(outcome, options["output"])
    sys.exit(outcome.exit_code)


class _InternalErrors:
    """Ends the process with 70 on anything unforeseen: 1 would claim that the regions differ."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Print what happened and end, unless it is an orderly end already."""
        if (
            kind is None
            or not issubclass(kind, Exception)
            or issubclass(kind, click.ClickException)
        ):
            return
        traceback.print_exception(error)
        fail("this is an error of reconciliation itself; nothing was concluded", EXIT_INTERNAL)


def _check_machine(engine: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        fail("reconciliation needs PyArrow: pip install 'tidemark[reconcile]'", EXIT_USAGE)
    if engine == "local":
        return
    major = java_major_version()
    if major is None or major < JAVA_MIN:
        found = "there is none" if major is None else f"this is Java {major}"
        fail(
            f"Spark needs Java {JAVA_MIN} or later, and {found}: apt-get install openjdk-17-jre-headless,"
            " or set JAVA_HOME; or run the same checks without it: --engine local",
            EXIT_USAGE,
        )
    try:
        import pyspark  # noqa: F401
    except ImportError:
        fail(
            "PySpark is not installed: pip install 'tidemark[reconcile]', or --engine local",
            EXIT_USAGE,
        )


def _outcome(request: "Request", options: Mapping[str, Any]) -> "Outcome":
    from geo_replicator.reconciliation.job import LocalEngine, reconcile_all

    if options["engine"] == "local":
        return reconcile_all(request, LocalEngine())
    import warnings

    # PySpark warns about a pandas that we do not use.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from geo_replicator.reconciliation.spark_job import SparkEngine, spark_session

    click.echo("tidemark: starting Spark", err=True)
    with spark_session(options["master"]) as session:
        return reconcile_all(request, SparkEngine(session, work_dir=options["work_dir"]))


def _request(jobs: tuple[str, ...], options: Mapping[str, Any]) -> "Request":
    from geo_replicator.reconciliation.job import Region, Request
    from geo_replicator.reconciliation.plan import Options, Until

    source_dir, mirror_dir = (
        _folder(options[name], option)
        for name, option in (("source", "--primary"), ("mirror", "--mirror"))
    )
    source_image, mirror_image = _image(source_dir), _image(mirror_dir)
    return Request(
        source=Region(name=source_dir.name, data_dir=source_dir, topics=_topics(source_image)),
        mirror=Region(
            name=mirror_dir.name,
            data_dir=mirror_dir,
            topics=_topics(mirror_image),
            reached=_reached(mirror_dir),
        ),
        options=Options(
            topics=tuple(options["topics"]),
            exclude=tuple(options["exclude"]),
            until=Until(options["until"]),
            findings_max=options["max_findings"],
            trust_sidecars=options["use_sidecars"],
            rpo_records=-1 if options["rpo_records"] is None else options["rpo_records"],
            rpo_ms=-1 if options["rpo_ms"] is None else options["rpo_ms"],
        ),
        jobs=jobs,
        cut=_cut(options["cut_file"]),
        fork=_fork(source_image, mirror_image),
        out=options["out"],
    )


def _folder(text: str, option: str) -> Path:
    parts = urlsplit(text)
    if parts.scheme == "file":
        text = unquote(parts.path)
    elif parts.scheme in {"http", "https"}:
        fail(
            f"{option} {text}: reading a region over HTTP is not served; name its data folder"
            " (`tidemark dev` prints it, data_dir in the node's configuration), or a copy of it",
            EXIT_USAGE,
        )
    path = Path(text).resolve()
    if not path.is_dir():
        fail(f"{option} {text}: there is no such folder", EXIT_USAGE)
    return path


def _image(folder: Path) -> "MetadataImage | None":
    """Return what a region's metadata says; None where it has no readable database."""
    from region_broker.controller.image_database import MetadataUnreadable, MetadataUnwritable
    from region_broker.controller.metadata_store import stored_image
    from region_broker.ports.system.disk import RealDisk

    try:
        return stored_image(folder / _METADATA_FILE, RealDisk())
    except (MetadataUnreadable, MetadataUnwritable) as error:
        click.echo(f"tidemark: {error} Topic configs are not compared.", err=True)
        return None


def _topics(image: "MetadataImage | None") -> "dict[str, TopicFacts] | None":
    from geo_replicator.reconciliation.plan import TopicFacts
    from region_broker.controller.topic_configs import normal

    if image is None:
        return None
    return {
        # An older version kept values as they came, and a mirror keeps them as their types write them (INV-CT4).
        name: TopicFacts(partition_count=topic.partition_count, configs=normal(topic.configs))
        for name, topic in image.topics.items()
    }


def _reached(folder: Path) -> "TidemarkPoint | None":
    from region_broker.ports.system.disk import RealDisk
    from region_broker.region.tidemarks.reached_store import ReachedFile

    point = ReachedFile.open(RealDisk(), folder).point
    return point if point.number > 0 else None


def _cut(path: Path | None) -> "Cut | None":
    from geo_replicator.reconciliation.plan import Cut

    if path is None:
        return None
    import msgspec

    try:
        positions = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
        return Cut(label=f"the cut in {path.name}", positions=positions)
    except msgspec.DecodeError as error:
        fail(f'--cut {path}: {error}; expected {{"topic/partition": offset, ...}}', EXIT_USAGE)


def _fork(source: "MetadataImage | None", mirror: "MetadataImage | None") -> "Fork | None":
    """Return where the mirror's history parts: the lowest base of the failovers that it has not followed (T23)."""
    from geo_replicator.lineage import in_force, lowest_base
    from geo_replicator.reconciliation.plan import Fork
    from region_broker.region.failover.known_lineage import as_entry

    if source is None or mirror is None:
        return None
    followed = mirror.main_domain.region_epoch
    lineage = source.main_domain.lineage
    unseen = in_force([entry for entry in lineage if entry.region_epoch > followed])
    if not unseen:
        return None
    names = {topic.topic_id: name for name, topic in source.topics.items()}
    base = lowest_base(as_entry(entry) for entry in unseen)
    positions = {
        f"{names[key.topic_id]}/{key.partition}": offset
        for key, offset in base.positions.items()
        if key.topic_id in names
    }
    return Fork(region_epoch=unseen[0].region_epoch, positions=positions)


def _print(outcome: "Outcome", output: str) -> None:
    import msgspec

    from geo_replicator.reconciliation.report import is_fault

    summary = outcome.summary
    facts = msgspec.to_builtins(summary)
    if output == "json":
        shown = [
            {"finding_id": finding.finding_id, **msgspec.to_builtins(finding)}
            for finding in outcome.findings[:_SHOWN_MAX]
        ]
        print_json({**facts, "run_dir": str(outcome.run_dir or ""), "findings": shown})
        return
    click.echo(f"{summary.verdict}: {summary.sentence}")
    click.echo(
        f"compared {summary.compared_offsets:,} of {summary.horizon_offsets:,} offsets"
        f" ({summary.coverage * 100:.4g} %) up to {summary.horizon}, {summary.batches:,} batches,"
        f" {summary.decisions_checked:,} decisions, engine {summary.engine}"
    )
    faults = [finding for finding in outcome.findings if is_fault(finding)]
    if faults:
        print_rows([_row(finding) for finding in faults[:_SHOWN_MAX]], "table", title="Faults")
        if len(faults) > _SHOWN_MAX:
            click.echo(f"... and {len(faults) - _SHOWN_MAX:,} more")
    if summary.lag_offsets:
        click.echo(f"not copied yet: {summary.lag_offsets:,} offsets, {summary.lag_ms:,} ms")
    for text in summary.not_read:
        click.echo(f"not read: {text}")
    click.echo(f"report: {outcome.run_dir}/report.html")


def _row(finding: "Finding") -> dict[str, Any]:
    where = finding.topic if finding.partition < 0 else f"{finding.topic}-{finding.partition}"
    return {
        "kind": finding.kind.value,
        "where": where,
        "offsets": f"{finding.first_offset}..{finding.last_offset}",
        "side": finding.side.shown,
        "primary": finding.digest_source,
        "mirror": finding.digest_mirror,
        "detail": finding.detail,
    }
