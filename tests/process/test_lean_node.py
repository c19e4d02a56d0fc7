"""What a node that was given nothing of security does not import, looked at in its own process."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from region_broker.workbench.cluster_plan import free_ports

TIDEMARK = (sys.executable, "-m", "region_broker")
NOT_NEEDED = {"cryptography", "joserfc", "re2", "_re2"}
A_LIFE = """
import os, sys
before = dict(os.environ)
from region_broker.cli.main import main
try:
    main(["broker", "--config", sys.argv[1], "--stop-with-stdin"])
except SystemExit as end:
    print("ended", end.code)
print("imported", *sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None}))
print("certificates", sys.modules["aiohttp.connector"]._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509_ca"], os.environ == before)
"""


def test_INV_LEAN3_INV_LEAN4_a_node_without_security_imports_and_reads_nothing_for_it(
    tmp_path: Path,
) -> None:
    """From its start, over its readiness, to its end: what it imports late counts as well."""
    with ExitStack() as held:
        kafka, http, peer = free_ports(3, held)
        node = {"name": "eu", "ordinal": 0, "node_id": 1, "kafka": f"127.0.0.1:{kafka}",
                "http": f"127.0.0.1:{http}", "peer": f"127.0.0.1:{peer}"}  # fmt: skip
        config = tmp_path / "node.json"
        config.write_text(
            json.dumps({"region": "eu", "cluster_id": "c", "data_dir": str(tmp_path / "eu"), "initial_primary_region": "eu",
                        "regions": [node]})
        )  # fmt: skip
        subprocess.run([*TIDEMARK, "init", "--config", str(config), "--no-history-elsewhere"], check=True, capture_output=True)  # fmt: skip
        with (tmp_path / "log").open("w") as log, subprocess.Popen(
            [sys.executable, "-c", A_LIFE, str(config)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        ) as life:  # fmt: skip
            assert life.stdout is not None
            assert life.stdout.readline().startswith("ready")
            said = life.communicate("")[0].splitlines()
    assert said[0] == "ended 0"
    imported = set(said[1].split()[1:])
    assert "aiohttp" in imported, "what a node does need is seen"
    assert not imported & NOT_NEEDED
    assert said[2] == "certificates 0 True"
