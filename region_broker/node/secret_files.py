"""Files of a node that hold what others must not read, and who on this machine may.

INV-NSF1  a secret's file that everyone on this machine can read is remarked, whichever key of the configuration, or of the file of keys, names it
          1. A token secret was made by `openssl rand ... > f`, which is mode 0644. 2. Who reads it can log in as every owner of a delegation
          token. 3. Only the key of TLS was looked at.

No start is refused for it: who may be on this machine is its operator's affair. Not here: what is in the files (`node_tls`, `logins`, `sealing`).
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from region_broker.config.node_config import NodeConfig
from region_broker.ports.disk import Disk
from region_broker.security.sealing.key_ring import Ring, RingError, ring_bytes, ring_of

KEYS: Final = (
    "tls_key", "sasl_users_file", "sasl_token_secret_file", "http_tokens_file", "encryption_keys_file",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SecretFile:
    """`what`: who names it; `mode`: its permissions."""

    what: str
    path: Path
    mode: int

    @property
    def is_open(self) -> bool:
        """Return whether everyone on this machine can read it."""
        return bool(self.mode & stat.S_IROTH)

    @property
    def mend(self) -> str:
        """Return what to do about it."""
        return f"everyone on this machine can read it: chmod 600 {self.path}"


def secret_files(config: NodeConfig, disk: Disk) -> Iterator[SecretFile]:
    """Yield those that are there. Waits for the disk."""
    named = [(key, Path(path)) for key in KEYS if (path := getattr(config, key))]
    for what, path in (*named, *_sources(config, disk)):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # whoever needs it says so
        yield SecretFile(what, path, stat.S_IMODE(mode))


def _sources(config: NodeConfig, disk: Disk) -> Iterator[tuple[str, Path]]:
    for name, key in ring_on_file(config, disk).items():
        if key.source.file:
            yield f"the source of the key {name!r}", Path(key.source.file)


def ring_on_file(config: NodeConfig, disk: Disk) -> Ring:
    """Return the keys that the file of keys names; none where there is no such file, or one that is wrong: a problem, told by itself."""
    path = Path(config.encryption_keys_file)
    try:
        return ring_of(ring_bytes(disk, path), path) if config.encryption_keys_file else {}
    except RingError:
        return {}


def open_secrets(config: NodeConfig, disk: Disk) -> Iterator[str]:
    """Yield what is to be remarked of them. Waits for the disk."""
    for each in secret_files(config, disk):
        if each.is_open:
            yield f"{each.what}, {each.path} (mode {each.mode:04o}): {each.mend}"
