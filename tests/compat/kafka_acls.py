"""Kafka's own `kafka-acls.sh` against a node: `python -m tests.compat.kafka_acls [--tls]`.

Not part of the test run: it takes Kafka's jars from Maven Central, into the cache that `tests.compat.run` uses. The tool adds, lists and removes what
the examples of Kafka's documentation do ("Authorization and ACLs", Command Line Interface); what it lists is held against what they say. `--tls`: against a region of its own over TLS, as a super user who logs in (`--command-config`).

Exit codes: 0 as Kafka says; 1 not so, each difference on a line; 2 the jars, or java, are missing.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from region_broker.security.authorizer import AclAuthorizer
from tests.compat.apache_kafka import jars
from tests.compat.java_logins import JVM_OF_A_TOOL, TOOL_S, Java, open_region
from tests.fixtures.kafka_port import wire_fixture

_ENTRY: Final = re.compile(
    r"\(principal=(?P<who>[^,]+), host=(?P<host>[^,]+), operation=(?P<how>[A-Z_]+), permissionType=(?P<may>[A-Z]+)\)"
)
_PATTERN: Final = re.compile(
    r"ResourcePattern\(resourceType=(?P<kind>[A-Z_]+), name=(?P<name>[^,]+), patternType=(?P<pattern>[A-Z]+)\)"
)
Rule = tuple[str, str, str, str, str, str, str]
"""Resource type, name, pattern type, principal, host, operation, permission."""

EXAMPLES: Final[Sequence[tuple[str, set[Rule]]]] = (
    (
        "--add --allow-principal User:Bob --allow-principal User:Alice --allow-host 198.51.100.0 --operation Read --topic Test-topic",
        {("TOPIC", "Test-topic", "LITERAL", who, "198.51.100.0", "READ", "ALLOW") for who in ("User:Bob", "User:Alice")},
    ),
    (
        "--add --allow-principal User:* --deny-principal User:BadBob --deny-host 198.51.100.3 --operation Read --topic Test-topic",
        {("TOPIC", "Test-topic", "LITERAL", "User:*", "*", "READ", "ALLOW"),
         ("TOPIC", "Test-topic", "LITERAL", "User:BadBob", "198.51.100.3", "READ", "DENY")},
    ),
    (
        "--add --allow-principal User:Jane --producer --topic Test- --resource-pattern-type prefixed",
        {("TOPIC", "Test-", "PREFIXED", "User:Jane", "*", how, "ALLOW") for how in ("WRITE", "DESCRIBE", "CREATE")},
    ),
    (
        "--add --allow-principal User:Bob --consumer --topic Test-topic --group Group-1",
        {("TOPIC", "Test-topic", "LITERAL", "User:Bob", "*", how, "ALLOW") for how in ("READ", "DESCRIBE")}
        | {("GROUP", "Group-1", "LITERAL", "User:Bob", "*", "READ", "ALLOW")},
    ),
    (
        "--add --allow-principal User:ops --operation Alter --cluster",
        {("CLUSTER", "kafka-cluster", "LITERAL", "User:ops", "*", "ALTER", "ALLOW")},
    ),
    (
        "--add --allow-principal User:tokenRequester --operation CreateTokens --user-principal owner1",
        {("USER", "owner1", "LITERAL", "User:tokenRequester", "*", "CREATE_TOKENS", "ALLOW")},
    ),
)  # fmt: skip


class Place(NamedTuple):
    """Where the tool asks, and the file that says as whom; "" for nobody."""

    bootstrap: str
    config: str = ""


def rules_in(text: str) -> set[Rule]:
    """Return the ACLs that the tool lists."""
    found: set[Rule] = set()
    about = ("", "", "")
    for line in text.splitlines():
        if pattern := _PATTERN.search(line):
            about = (pattern["kind"], pattern["name"], pattern["pattern"])
        for entry in _ENTRY.finditer(line):
            found.add((*about, entry["who"], entry["host"], entry["how"], entry["may"]))
    return found


def tool(found: Path, place: Place, words: str) -> str:
    """Run the tool; raises `CalledProcessError` where it fails."""
    done = subprocess.run(
        ["java", *JVM_OF_A_TOOL, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{found}/*",
         "org.apache.kafka.tools.AclCommand", "--bootstrap-server", place.bootstrap,
         *(("--command-config", place.config) if place.config else ()), *words.split()],
        capture_output=True, text=True, timeout=TOOL_S, check=True, input="",
    )  # fmt: skip
    return done.stdout


def differences(found: Path, place: Place) -> list[str]:
    """Play the examples; return what is not as Kafka says."""
    wrong: list[str] = []
    expected: set[Rule] = set()
    for words, made in EXAMPLES:
        tool(found, place, words)
        expected |= made
        listed = rules_in(tool(found, place, "--list"))
        wrong += [f"{words}: {each}" for each in sorted(listed ^ expected)]
    affecting = {each for each in expected if each[0] == "TOPIC"}
    matched = rules_in(tool(found, place, "--list --topic Test-topic --resource-pattern-type match"))  # fmt: skip
    wrong += [f"match: {each}" for each in sorted(matched ^ affecting)]
    for words, made in EXAMPLES:
        tool(found, place, words.replace("--add", "--remove --force"))
        expected -= made
        listed = rules_in(tool(found, place, "--list"))
        wrong += [f"removed, {words}: {each}" for each in sorted(listed ^ expected)]
    return wrong


async def played(found: Path) -> list[str]:
    """Play against a node whose anonymous clients are super users."""
    with tempfile.TemporaryDirectory() as folder:
        async with wire_fixture(Path(folder)) as wire:
            wire.services.authorizer = AclAuthorizer(
                lambda: wire.store.image.access, frozenset({"User:ANONYMOUS"})
            )
            return await asyncio.to_thread(differences, found, Place(f"127.0.0.1:{wire.server.port}"))  # fmt: skip


def played_over_tls(found: Path) -> list[str]:
    """Play against a region, as a super user who logs in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_region(folder, {"super_users": "User:root"}, is_tls=True) as (bootstrap, ca):
            config = Java(found, bootstrap, folder, ca).login("root", "first")
            return differences(found, Place(bootstrap, config))


def main(arguments: Sequence[str]) -> int:
    """Play, and print what differs."""
    parser = argparse.ArgumentParser(prog="tests.compat.kafka_acls", description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("--tls", action="store_true", help="over TLS, logged in")
    is_tls = parser.parse_args(arguments).tls
    found = jars()
    if found is None:
        return 2
    try:
        wrong = played_over_tls(found) if is_tls else asyncio.run(played(found))
    except FileNotFoundError:
        print("java is not on the path", file=sys.stderr)
        return 2
    print("\n".join(wrong) or f"{len(EXAMPLES)} examples of Kafka's documentation: as it says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
