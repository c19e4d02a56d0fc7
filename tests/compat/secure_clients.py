"""Clients of others come in over TLS, by every mechanism that they have, right and wrong: `python -m tests.compat.secure_clients [--clients franz,java]`.

A real region with logins (SASL_SSL) and required certificates (SSL); each case of `secure_cases` is a process of its own, in which a client
lists, writes and reads. What is right must work. What is not must be refused by the client within 30 s, with the reason, and counted by the
node for that reason; and nothing of it may be in the topic. Prints a line for each case; `--said` prints what clients say, too.

Programs of other languages are fetched as by `tests.compat.run`, into the same cache.
Exit codes: 0 all as expected; 1 a case was not; 2 a tool or a download is missing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from tests.compat.foreign_clients import HERE, MissingToolError
from tests.compat.java_logins import JVM_OF_A_TOOL
from tests.compat.run import prepared
from tests.compat.secure_cases import (
    LACKS,
    LIMIT_S,
    Case,
    Played,
    cases,
    faults,
    told_of,
)
from tests.compat.secure_python import librdkafka
from tests.compat.secure_world import TOPIC, World, open_world

BEGUN: Final = "begun\n"
END_S: Final = 4 * LIMIT_S
"""When a program that does not end is ended."""
READ_S: Final = 20.0


def _python(name: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", "tests.compat.secure_python", name]


def _kcat() -> list[str]:
    if shutil.which("kcat") is None:
        raise MissingToolError("kcat needs kcat on the path: install it (Debian: apt install kcat)")
    return _python("kcat")()


def _go(name: str) -> Callable[[], list[str]]:
    return lambda: [*prepared(name, "off"), "--secure"]


def _java() -> list[str]:
    java, *arguments, _main = prepared("java", "off")
    return [java, *JVM_OF_A_TOOL, *arguments, "SecureCheck"]


def _js() -> list[str]:
    program = Path(prepared("js", "off")[-1]).with_name("secure.js")
    shutil.copy(HERE / "js" / "secure.js", program)
    return ["node", str(program)]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    "franz": _go("go"), "sarama": _go("sarama"), "kafkajs": _js, "java": _java,
    "confluent": _python("confluent"), "kcat": _kcat, "aiokafka": _python("aiokafka"),
    "kafka-python": _python("kafka-python"),
}  # fmt: skip
"""How each is fetched and built: returns the command of its program; raises `MissingToolError`."""


def play(world: World, command: Sequence[str], case: Case, value: str) -> Played:
    """Run a program for a case; one that does not end is ended."""
    before = world.counted(case.counted) if case.counted else 0.0
    began_s = time.monotonic()
    printed: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        ends = threading.Timer(END_S, process.kill)
        ends.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(world.told(case, value).text())
        process.stdin.close()
        for line in process.stdout:
            if line == BEGUN:
                began_s = time.monotonic()
            printed.append(line)
        ends.cancel()
    took_s = time.monotonic() - began_s
    counted = world.counted(case.counted) - before if case.counted else 0.0
    return Played("".join(printed), took_s, counted)


def play_all(
    world: World, client: str, command: Sequence[str], *, only: str = "", says: bool = False
) -> list[str]:
    """Play a client's cases; print a line for each, and return what is wrong."""
    wrong: list[str] = []
    right: list[str] = []
    for number, case in enumerate(cases()):
        if only not in case.mechanism:
            continue
        if why := LACKS.get(client, {}).get(case.mechanism):
            print(f"{client}\t{case.mechanism}\t{case.name}\tnot played\t{why}", flush=True)
            continue
        value = f"{client}-{number}"
        right += [value] if case.is_right else []
        played = play(world, command, case, value)
        found = faults(client, case, played)
        expected = "works" if case.is_right else "refused"
        line = f"{client}\t{case.mechanism}\t{case.name}\t{told_of(case, played)}\texpected: {expected}\t{played.took_s:.1f} s"
        print(f"{line}\t{'NOT AS EXPECTED: ' + '; '.join(found) if found else 'ok'}", flush=True)
        if says or found:
            print(played.printed, flush=True)
        wrong += [f"{client}, {case.mechanism}, {case.name}: {each}" for each in found]
    written = [each for each in written_by(world, client) if each not in right]
    return wrong + [f"{client}: {each} was written, and should not have been" for each in written]


def written_by(world: World, client: str) -> list[str]:
    """Return what is in the topic of a client, as alice reads it by a certificate."""
    told = world.told(next(case for case in cases() if case.is_right), "")
    consumer = Consumer({**librdkafka(told), "group.id": "looks", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []
    ends_s = time.monotonic() + READ_S
    while time.monotonic() < ends_s:
        message = consumer.poll(1.0)
        if message is not None and message.error() is not None:
            break  # its end
        if message is not None:
            found.append((message.value() or b"").decode())
    else:
        found.append("(its end was not read in time)")
    consumer.close()
    return [each for each in found if each.startswith((f"{client}-", "("))]


def main(arguments: Sequence[str]) -> int:
    """Play what was asked; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests.compat.secure_clients", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--clients", default=",".join(CLIENTS), help="which, with commas (all)")
    parser.add_argument("--only", default="", help="a mechanism by a word of its name (all)")
    parser.add_argument("--said", action="store_true", help="print what clients say, too")
    options = parser.parse_args(arguments)
    names = options.clients.split(",")
    if unknown := [name for name in names if name not in CLIENTS]:
        parser.error(f"no such client: {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    try:
        commands = {name: CLIENTS[name]() for name in names}
    except (MissingToolError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-secure-") as folder,
        open_world(Path(folder)) as world,
    ):
        wrong = [
            each
            for name, command in commands.items()
            for each in play_all(world, name, command, only=options.only, says=options.said)
        ]
    print("\n".join(wrong) or f"all as expected: {', '.join(names)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
