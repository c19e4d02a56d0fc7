"""kcat, the Debian package with its own librdkafka (2.0.2): a client from another decade.

It is part of what `.ci/setup test` installs; where it is missing these tests fail.
"""

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.compat.confluent_client import ConfluentClient

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
TIMEOUT_S = 60


def kcat(*arguments: str, stdin: str = "") -> str:
    """Run kcat and return what it printed; fails on any exit code but 0."""
    program = shutil.which("kcat")
    assert program is not None, "kcat is missing: .ci/setup test installs it (apt-get install kcat)"
    done = subprocess.run(
        [program, "-X", "topic.metadata.refresh.fast.interval.ms=50", *arguments],
        input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def topic(bootstrap: str, fresh: Fresh) -> str:
    name = fresh("kcat")
    client = ConfluentClient()
    client.create_topic(bootstrap, name, 1, {})
    for _ in range(400):
        if name in client.topics(bootstrap):
            return name
    pytest.fail(f"{name} is not there")


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_writes_with_each_codec_and_reads_back(bootstrap: str, topic: str, codec: str) -> None:
    kcat("-b", bootstrap, "-P", "-t", topic, "-z", codec, stdin=lines(100))
    assert kcat("-b", bootstrap, "-C", "-t", topic, "-c", "100", "-q") == lines(100)


def test_kcat_writes_idempotently_and_reads_in_a_group(
    bootstrap: str, topic: str, fresh: Fresh
) -> None:
    kcat("-b", bootstrap, "-P", "-t", topic, "-X", "enable.idempotence=true", stdin=lines(50))
    group = [
        "-b",
        bootstrap,
        "-X",
        "auto.offset.reset=earliest",
        "-G",
        fresh("kcat-group"),
        "-q",
        topic,
    ]
    assert kcat("-c", "30", *group) == lines(30)
    # kcat commits what it printed when it leaves: the group goes on where it was.
    rest = kcat("-c", "20", *group)
    assert rest == "".join(f"line {number}\n" for number in range(30, 50))


def test_kcat_reads_only_what_was_committed(bootstrap: str, topic: str, fresh: Fresh) -> None:
    writer = ConfluentClient().writer(bootstrap, fresh("t"))
    for value, commit in ((b"kept", True), (b"dropped", False), (b"end", True)):
        writer.begin()
        writer.send(topic, value)
        writer.flush()
        if commit:
            writer.commit()
        else:
            writer.abort()
    read = ["-b", bootstrap, "-C", "-t", topic, "-q"]
    assert kcat(*read, "-c", "2", "-X", "isolation.level=read_committed") == "kept\nend\n"
    uncommitted = kcat(*read, "-c", "3", "-X", "isolation.level=read_uncommitted")
    assert uncommitted == "kept\ndropped\nend\n"


def test_kcat_writes_a_transaction(bootstrap: str, topic: str, fresh: Fresh) -> None:
    kcat(
        "-b", bootstrap, "-P", "-t", topic, "-X", f"transactional.id={fresh('kcat-txn')}",
        stdin=lines(10),
    )  # fmt: skip
    read = ["-b", bootstrap, "-C", "-t", topic, "-q", "-X", "isolation.level=read_committed"]
    assert kcat(*read, "-c", "10") == lines(10)


def test_kcat_lists_the_cluster(bootstrap: str, topic: str) -> None:
    """A node that follows hears of a new topic a moment after who made it, as in Kafka."""
    wanted = f'topic "{topic}" with 1 partitions'
    assert any(wanted in kcat("-b", bootstrap, "-L") for _ in range(50))
