"""Put raftos 0.2.6 into the tree, unmodified and with its licence: the build hook of the wheel and of an editable install.

raftos pins versions of cryptography and msgpack that nobody can install any more, so it cannot be a declared dependency
(docs/adr/0043-raft-on-raftos.md). pip fetches its source distribution from the index that pip is configured for; the archive
and what was taken out of it are held against their SHA-256. What is in place and sound is left alone, without a network.

By hand: `python .ci/vendor_raftos.py`, or with the path of an archive that was fetched elsewhere.
"""

import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

VERSION: Final = "0.2.6"
ARCHIVE_SHA256: Final = "489449fbd3baa677fea55d8068de2c83a46d63c7db5758d79ccc8229076e3c80"
CONTENT_SHA256: Final = "3a7b50ad1ff48573aa455fa0147138c471398868e65c212d1302756430f17676"
"""Over name, size and bytes of each file that is put in place, by name."""
TARGET: Final = "region_broker/controller/raft/_vendor"
BY_HAND: Final = f"""
On a machine with a network: python -m pip download --no-deps --no-binary raftos raftos=={VERSION}
Then here: python .ci/vendor_raftos.py <the file>. With raftos in place, builds need no network for it.
"""


class VendoringFailed(Exception):
    """raftos is not in the tree; the text says what to do."""


def fill(root: Path, archive: Path | None = None) -> None:
    """Put raftos under `root`, unless it is there; raises VendoringFailed."""
    target = root / TARGET
    if archive is None and digest(placed(target)) == CONTENT_SHA256:
        return
    files = unpacked(fetched() if archive is None else archive.read_bytes())
    beside = target.with_name(f"{target.name}.tmp")
    for folder in (beside, target):
        if folder.exists():
            shutil.rmtree(folder)
    for name, data in files.items():
        path = beside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    beside.rename(target)


def placed(target: Path) -> dict[str, bytes]:
    """Return the files that are in place."""
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def digest(files: dict[str, bytes]) -> str:
    """Return the SHA-256 over all files."""
    found = hashlib.sha256()
    for name, data in sorted(files.items()):
        found.update(f"{name} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()


def fetched() -> bytes:
    """Let pip fetch the archive from wherever it is configured to; pip runs nothing of it before the hash is right."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(f"raftos=={VERSION} --hash=sha256:{ARCHIVE_SHA256}\n", "utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        what = ["--no-deps", "--no-binary", "raftos", "--require-hashes", "--requirement"]
        run = subprocess.run(
            [*pip, *what, str(wanted), "--dest", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        archives = list(Path(folder).glob(f"raftos-{VERSION}.*"))
        if run.returncode != 0 or not archives:
            raise VendoringFailed(
                f"pip could not fetch the source of raftos {VERSION}:\n{run.stdout}{run.stderr}"
                "Check the network and pip's index (`pip config list`, PIP_INDEX_URL).\n"
                f"Without a network:{BY_HAND}"
            )
        return archives[0].read_bytes()


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Return the package's files and its licence, by their place under the target; raises VendoringFailed."""
    found = hashlib.sha256(archive).hexdigest()
    if found != ARCHIVE_SHA256:
        raise VendoringFailed(
            f"this is not raftos {VERSION} as it was released: its SHA-256 is {found}, not {ARCHIVE_SHA256}. Do not use it:"
            f" get the file from another index.{BY_HAND}"
        )
    top = f"raftos-{VERSION}/"
    files: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as held:
        for name in held.namelist():
            inside = name.removeprefix(top)
            if inside.startswith("raftos/") and inside.endswith(".py"):
                files[inside] = held.read(name)
        files["raftos/LICENSE"] = held.read(f"{top}LICENSE")
    assert digest(files) == CONTENT_SHA256, "of an archive that is as it was"
    return files


if __name__ == "__main__":
    try:
        fill(Path(__file__).resolve().parents[1], *map(Path, sys.argv[1:2]))
    except VendoringFailed as error:
        sys.exit(str(error))
else:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class VendorRaftos(BuildHookInterface[Any]):
        """Fills the tree before a wheel or an editable install is made of it."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """See hatchling; what is put in place is git-ignored, so the wheel is told of it."""
            fill(Path(self.root))
            build_data["artifacts"].append(f"/{TARGET}/**/*")
