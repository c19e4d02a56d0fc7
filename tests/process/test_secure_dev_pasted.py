"""What `tidemark dev --secure` prints to paste lets its reader in as it is printed: librdkafka, Python, our commands, and curl.

What it prints for Java is used by Kafka's own tools in `tests.compat.java_logins --tls`.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.process.test_cli import TIDEMARK, TIMEOUT_S

pytestmark = [pytest.mark.process, pytest.mark.slow]
SENDS = """
import asyncio

async def main():
    async with producer:
        print((await producer.send("orders", b"1")).offset)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield what a cluster that runs has printed, by the title above each part; titles of files are their names."""
    folder = tmp_path_factory.mktemp("pasted") / "cluster"
    words = ("dev", "--secure", "--regions", "1", "--port", "0", "--data-dir", str(folder))
    with subprocess.Popen([*TIDEMARK, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "ready\n"))
        parts = re.split(r"^# (.+)\n", "".join(lines), flags=re.MULTILINE)[1:]
        yield {Path(title).name: text for title, text in zip(parts[::2], parts[1::2], strict=True)}
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)


def shell(text: str, folder: Path) -> str:
    """Run what was pasted into a shell, where `tidemark` is ours."""
    binary = folder / "bin" / "tidemark"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {" ".join(TIDEMARK)} "$@"\n')
    binary.chmod(0o755)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("TIDEMARK_")},
        "PATH": f"{binary.parent}:{os.environ['PATH']}", "TIDEMARK_CONTEXTS": str(folder / "contexts.json"),
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-e", "-c", text], env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_of_it_is_printed(printed: Mapping[str, str]) -> None:
    assert list(printed) == ["client.conf", "client.properties", "Python", "commands, and curl"]


def test_librdkafka_takes_its_part(printed: Mapping[str, str], tmp_path: Path) -> None:
    pasted = tmp_path / "security" / "client.conf"
    pasted.parent.mkdir()
    pasted.write_text(printed["client.conf"])
    pasted.chmod(0o600)
    done = subprocess.run(
        ["kcat", "-F", str(pasted), "-L", "-m", "20"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 brokers" in done.stdout
    rows = (line.partition("=") for line in printed["client.conf"].split("\n") if line)
    config: dict[str, Any] = {key: value for key, _, value in rows}
    client = AdminClient({**config, "log_level": 0})
    assert len(client.list_topics(timeout=20).brokers) == 1


def test_python_takes_its_part(printed: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", printed["Python"] + SENDS], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_a_shell_takes_its_part(printed: Mapping[str, str], tmp_path: Path) -> None:
    said = shell(
        printed["commands, and curl"] + "tidemark topic create pasted\ntidemark topic list\n",
        tmp_path,
    )
    assert '"checks"' in said, "curl is told all of /readyz, as who has said who they are"
    assert "pasted" in said
