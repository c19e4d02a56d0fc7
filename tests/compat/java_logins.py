"""Kafka's own tools and its Java client against a node that asks for logins: `python -m tests.compat.java_logins [--tls]`; a minute.

Users by kafka-configs, delegation tokens by kafka-delegation-tokens, and a producer whose session ends every five seconds (KIP-368).
Prints a line for each check, and ends with 1 where one has failed. `--tls`: by SASL_SSL, else by SASL_PLAINTEXT.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from region_broker.security.sasl.scram_keys import keys_of, line_of
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import secured

POM: Final = Path(__file__).parent / "foreign" / "kafka_tools" / "pom.xml"
TOOL_S: Final = 300
JVM_OF_A_TOOL: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""It lives for a second: most of what it would compile, it would never use."""
SESSION_MS: Final = 5_000
CONFIGS: Final = "kafka.admin.ConfigCommand"
TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
PRODUCES: Final = "org.apache.kafka.tools.ProducerPerformance"


def jars() -> Path:
    """Return the folder of Kafka's tools, fetched where it is not there."""
    cache = Path(os.environ.get("TIDEMARK_COMPAT_CACHE") or Path.home() / ".cache" / "tidemark-compat")  # fmt: skip
    folder = cache / "kafka-tools" / "logins"
    if not folder.exists():
        subprocess.run(
            ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
             f"-DoutputDirectory={folder}"], check=True, timeout=600,
        )  # fmt: skip
    return folder


class Java:
    """Runs tools as somebody."""

    def __init__(self, found: Path, bootstrap: str, folder: Path, ca: str = "") -> None:
        """Speak TLS where there is a CA."""
        self.ca = ca
        self._speaks = "security.protocol=SASL_PLAINTEXT\n"
        if ca:
            self._speaks = f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
        self._java = ("java", *JVM_OF_A_TOOL, "-cp", f"{found}/*")
        self._bootstrap = bootstrap
        self._folder = folder
        self.failed = 0

    def login(self, user: str, password: str, more: str = "") -> str:
        """Return the path of a client's configuration."""
        path = self._folder / f"{user[:20]}-{len(password)}.properties"
        path.write_text(
            f"{self._speaks}sasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{user}" password="{password}"{more};\n'
        )
        return str(path)

    def ask(self, what: str, tool: str, who: str, *arguments: str, code: int = 0, has: str = "") -> str:  # fmt: skip
        """Run a tool; it must end with `code`, and print `has`."""
        at = ("--bootstrap-server", self._bootstrap, "--command-config", who)
        return self.run(what, tool, *at, *arguments, code=code, has=has)

    def run(self, what: str, tool: str, *arguments: str, code: int = 0, has: str = "") -> str:
        done = subprocess.run(
            [*self._java, tool, *arguments],
            capture_output=True, text=True, check=False, timeout=TOOL_S,
        )  # fmt: skip
        is_right = done.returncode == code and has in done.stdout + done.stderr
        self.failed += not is_right
        print(f"{'ok' if is_right else 'FAIL'}\t{what}", flush=True)
        if not is_right:
            print(done.stdout[-1_000:], done.stderr[-1_000:], sep="\n")
        return done.stdout


def check(java: Java, bootstrap: str) -> None:
    """Go through users, tokens and sessions."""
    root = java.login("root", "first")
    of_alice = ("--entity-type", "users", "--entity-name", "alice")
    keys = "SCRAM-SHA-512=[iterations=8192,password=secret],SCRAM-SHA-256=[password=secret]"
    java.ask("a user is made", CONFIGS, root, "--alter", *of_alice, "--add-config", keys)
    java.ask("a user is shown", CONFIGS, root, "--describe", *of_alice, has="iterations=8192")
    java.ask("the first user acts", TOPICS, root, "--create", "--topic", "orders")
    made = java.ask("a token is made", TOKENS, root, "--create", "--max-life-time-period", "-1",
                    "--renewer-principal", "User:alice")  # fmt: skip
    token_id, secret = made.strip().splitlines()[-1].split()[:2]
    by_token = java.login(token_id, secret, " tokenauth=true")
    java.ask("a token logs in", TOPICS, by_token, "--list", has="orders")
    alice, named = java.login("alice", "secret"), ("--hmac", secret)
    java.ask("a renewer sees it", TOKENS, alice, "--describe", "--owner-principal", "User:root", has=token_id)  # fmt: skip
    java.ask("a renewer renews it", TOKENS, alice, "--renew", "--renew-time-period", "-1", *named)
    java.ask("its owner has it expire", TOKENS, root, "--expire", "--expiry-time-period", "-1", *named)  # fmt: skip
    wrong = "Authentication failed"
    java.ask("it logs in no more", TOPICS, by_token, "--list", code=1, has=wrong)
    other = java.login("alice", "other")
    java.ask("a wrong password is refused", TOPICS, other, "--list", code=1, has=wrong)
    java.run(
        "a producer goes on over three sessions", PRODUCES, "--topic", "orders", "--num-records", "1300", "--record-size", "100",
        "--throughput", "80", "--producer.config", root, "--producer-props", f"bootstrap.servers={bootstrap}",
        has="1300 records sent",
    )  # fmt: skip
    if java.ca:  # `client.properties` is beside the folder of the CA
        pasted = str(Path(java.ca).parent.with_name("client.properties"))
        java.ask("what dev --secure prints for Java", TOPICS, pasted, "--list", has="orders")
    java.ask("a user goes", CONFIGS, root, "--alter", *of_alice, "--delete-config", "SCRAM-SHA-512,SCRAM-SHA-256")  # fmt: skip
    java.ask("and logs in no more", TOPICS, alice, "--list", code=1, has=wrong)


@contextmanager
def open_region(
    folder: Path, more: Mapping[str, Any], *, is_tls: bool
) -> Iterator[tuple[str, str]]:
    """Start a region whose first user is root, a super user, with TLS beside the administrator of `dev --secure`; yield its address, and the path of the CA of its nodes, "" without TLS."""
    root = line_of(keys_of("root", "SCRAM-SHA-512", b"first", b"salty" * 4, 4096)) + "\n"
    users = folder / "users"
    users.write_text(root)
    with LocalCluster.open(
        folder / "cluster", region_count=1, port=0, new_cluster_id=UUID(int=13)
    ) as cluster:
        settings: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT"}
        of_node: Mapping[str, Mapping[str, Any]] = {}
        ca = ""
        if is_tls:
            made = secured(cluster.folder, cluster.plan)
            settings, of_node, ca = dict(made.settings), made.of_node, made.admin.ca
            users.write_text(root + Path(settings["sasl_users_file"]).read_text())
        settings |= {"sasl_users_file": str(users), **more}
        cluster.tell(settings, of_node, "https" if is_tls else "http")
        cluster.start()
        yield cluster.plan.regions[0].bootstrap, ca


def main(arguments: Sequence[str]) -> int:
    """Run all of it; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.compat.java_logins", description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("--tls", action="store_true", help="by SASL_SSL")
    is_tls = parser.parse_args(arguments).tls
    found = jars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "secret").write_text("s" * 48)
        settings = {
            "super_users": "User:root;User:alice;User:admin", "sasl_token_secret_file": str(folder / "secret"), "sasl_max_reauth_ms": SESSION_MS,
        }  # fmt: skip
        with open_region(folder, settings, is_tls=is_tls) as (bootstrap, ca):
            java = Java(found, bootstrap, folder, ca)
            check(java, bootstrap)
    return 1 if java.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
