"""What is printed to paste where all doors are shut: by `demo --secure` as by `dev --secure` (played by `tests.process.test_secure_dev_pasted`)."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from uuid import UUID

from region_broker.cli.demo import secure
from region_broker.workbench.local_cluster import LocalCluster


def test_the_demo_prints_what_lets_librdkafka_java_and_python_in(tmp_path: Path) -> None:
    said = StringIO()
    opened = LocalCluster.open(tmp_path, region_count=2, port=0, new_cluster_id=UUID(int=7))
    try:
        with (
            opened as cluster,
            redirect_stdout(said),
        ):  # it is secret, and in no report of this test
            secure.announce(cluster, secure.shut(cluster))
    finally:
        secure.leave()
    _, *parts = re.split(r"^# (.+)\n", said.getvalue(), flags=re.MULTILINE)
    by_title = {Path(title).name: text for title, text in zip(parts[::2], parts[1::2], strict=True)}
    password = (tmp_path / "security" / "password").read_text().strip()
    assert list(by_title) == ["client.conf", "client.properties", "Python", "commands, and curl"]
    assert f"sasl.password={password}\n" in by_title["client.conf"]
    assert f'password="{password}";' in by_title["client.properties"]
    assert "Security(ca=" in by_title["Python"]
    assert password not in by_title["Python"] + by_title["commands, and curl"]
    assert by_title["commands, and curl"].startswith("tidemark context set demo ")
    for name in ("client.conf", "client.properties"):
        assert by_title[name].rstrip("\n") == (tmp_path / "security" / name).read_text().rstrip(
            "\n"
        )
