"""kafka-python's own integration tests of TLS and logins against a region: `python -m tests.compat.kafka_python_secure`.

The suite starts a Kafka for each of them; here each is given the address of one node that speaks what it asks for. PLAIN goes over TLS, as it
is not offered in the clear. Fetched as by `tests.compat.run kafka-python`. Prints a line for each test.

Exit codes: 0 all passed; 1 one did not; 2 a download is missing.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from typing_extensions import override

from region_broker.security.sasl.scram_keys import keys_of, line_of
from region_broker.workbench.cluster_plan import free_ports
from tests.compat.foreign_clients import MissingToolError
from tests.compat.run import outcomes_of, prepared
from tests.process.tls_cluster import TlsCluster

TESTS: Final = ("test_ssl_integration.py", "test_sasl_integration.py")
FURTHER: Final = ("SSL", "SASL_PLAINTEXT")
SUITE_S: Final = 420


class SuiteCluster(TlsCluster):
    """Its node speaks SASL_SSL at its first address, and at others what a test may ask for; `listening`: the ports of those."""

    @override
    def _config(self, name: str) -> dict[str, Any]:
        return super()._config(name) | {
            "listeners": [
                {"name": speaks, "security_protocol": speaks, "bind": f"127.0.0.1:{port}", "advertised": f"localhost:{port}"}
                for speaks, port in self.listening.items()
            ],
        }  # fmt: skip


def played(command: list[str], folder: Path) -> int:
    """Play the tests against a region in `folder`; return how many did not pass."""
    user, password = "alice", b"alice-secret"  # what the suite logs in as
    lines = [
        line_of(keys_of(user, mechanism, password, b"salty" * 4, 4096))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    (folder / "users").write_text("\n".join(lines) + "\n")
    settings = {
        "security_protocol": "SASL_SSL", "sasl_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN", "sasl_users_file": str(folder / "users"),
        "super_users": f"User:{user};User:ANONYMOUS", "auto_create_topics": True,
    }  # fmt: skip
    with (
        contextlib.ExitStack() as held,
        SuiteCluster.open(
            folder / "cluster",
            region_count=1,
            port=0,
            new_cluster_id=UUID(int=7),
            settings=settings,
        ) as cluster,
    ):
        further = dict(zip(FURTHER, free_ports(len(FURTHER), held), strict=True))
        cluster.further = {cluster.plan.nodes[0].name: further}
        cluster.start()
        node = cluster.plan.nodes[0]
        ca = Path(cluster.issue(node.name).ca)
        (folder / "ca-cert").write_bytes(ca.read_bytes())
        ports = {**cluster.listening, "SASL_SSL": node.kafka_port}
        done = subprocess.run(
            [*command, node.bootstrap, "compat", *TESTS], stdout=subprocess.PIPE, text=True, timeout=SUITE_S, check=False,
            env={**os.environ, "SECURE_PORTS": json.dumps(ports), "SECURE_CA": str(folder)},
        )  # fmt: skip
    outcomes = outcomes_of(done.stdout, done.returncode)
    for outcome in outcomes:
        print(f"{outcome.word:7} {outcome.check}  {outcome.reason}", flush=True)
    return sum(outcome.word != "passed" for outcome in outcomes)


def main() -> int:
    """Fetch and play; return the exit code."""
    try:
        command = prepared("kafka-python", "off")
    except (MissingToolError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tidemark-suite-") as folder:
        return 1 if played(command, Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
