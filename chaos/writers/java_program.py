"""The Java client's jars and our programs on them: fetched from Maven Central once, compiled once a drill.

Jars lie where the test runs of foreign clients keep theirs (`$TIDEMARK_COMPAT_CACHE`, or `~/.cache/tidemark-compat`).
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SOURCES: Final = Path(__file__).resolve().parent / "java"
_POM: Final = (
    Path(__file__).resolve().parents[2] / "tests" / "compat" / "foreign" / "java" / "pom.xml"
)
_VERSION: Final = "4.1.1"
_TOOLS: Final = ("java", "javac", "mvn")
_FETCH_S: Final = 300.0


class JavaMissingError(Exception):
    """Java, or its client, is not there; the text says what to do."""


def fetched() -> Path:
    """Fetch the client where it is not here yet; return the folder of its jars. Raises `JavaMissingError`."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise JavaMissingError(
            f"the Java client needs {', '.join(missing)} on the path: install them, or leave java out by --clients"
        )
    home = os.environ.get("TIDEMARK_COMPAT_CACHE") or Path.home() / ".cache" / "tidemark-compat"
    cache = Path(home) / "java" / _VERSION
    cache.mkdir(parents=True, exist_ok=True)
    jars = cache / "jars"
    if not jars.exists():
        _run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(_POM),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={jars}",
            ],
            cache,
        )
    return jars


def compiled(folder: Path) -> list[str]:
    """Compile into `folder`; return the command that takes a program's name and its arguments. Raises `JavaMissingError`."""
    jars = fetched()
    sources = map(str, sorted(_SOURCES.glob("*.java")))
    _run(["javac", "-d", str(folder), "-cp", f"{jars}/*", *sources], _SOURCES)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return ["java", "-Xmx256m", quiet, "-cp", f"{folder}:{jars}/*"]


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_FETCH_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-15:])
        raise JavaMissingError(
            f"`{' '.join(command)}` ended with {done.returncode}: is Maven Central reachable?\n{end}"
        )
