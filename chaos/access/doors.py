"""A drill's cluster with every port shut: who may come in, who must not, and what an operator renews while it runs.

INV-DRA1  who writes and who reads has the ACLs for that and no others; the administrator's name is for orders and for judges
Not here: certificates and the administrator (`workbench.secure_cluster`), what changes meanwhile (`changes`).
"""

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from region_broker.security.login import Security
from region_broker.workbench import stage
from region_broker.workbench.credentials import present_as
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import SecuredCluster, client_files, secured

KEY: Final = "drill"
SEALED: Final[Mapping[str, str]] = {"tidemark.encryption": KEY}
"""What a topic is told to be sealed."""
WRITER: Final = "writer"
READER: Final = "reader"
LOOKER: Final = "looker"
"""May know of the topics, and neither write nor read them."""
ITERATIONS: Final = 4096
_CALL_S: Final = 20.0
_RENEWED_S: Final = 60.0
Grant = tuple[str, ResourceType, str, ResourcePatternType, AclOperation]
"""User, and what it may do with which resources."""


class Doors:
    """Shuts the doors of a cluster that is planned and not started."""

    def __init__(self, cluster: LocalCluster) -> None:
        """Make certificates, users and keys, and ask as the administrator from now on. Raises OSError."""
        self._cluster = cluster
        self._made: SecuredCluster = secured(cluster.folder, cluster.plan)
        self.admin = self._made.admin
        self._keys = self._made.folder / "keys.toml"
        if not self._keys.exists():
            self._tidemark("key", "make", str(self._keys), KEY, "--file", str(self._made.folder / "keys.secret"))  # fmt: skip
        of_node = {
            name: {**settings, "encryption_keys_file": str(self._keys_of(region.name))}
            for region in cluster.plan.regions
            for name, settings in self._made.of_node.items()
            if name in [node.name for node in region.nodes]
        }
        self._hand_out(region.name for region in cluster.plan.regions)
        cluster.tell(self._made.settings, of_node, "https")
        present_as(self.admin)

    def login(self, user: str) -> Security:
        """Return as whom `user` comes."""
        return replace(self.admin, user=user, password=password_of(user, ITERATIONS), http_token="")

    def properties(self, user: str) -> Path:
        """Return a file that has the same for the Java client."""
        path = self._made.folder / f"{user}.properties"
        path.write_text(client_files(self.login(user), "")["client.properties"].partition("\n")[2])
        path.chmod(0o600)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """Return what a command is told of the administrator."""
        return {
            **os.environ, "TIDEMARK_CA": self.admin.ca, "TIDEMARK_USER": self.admin.user, "TIDEMARK_PASSWORD": self.admin.password,
            "TIDEMARK_HTTP_TOKEN": self.admin.http_token,
        }  # fmt: skip

    def let_in(self, bootstrap: str, grants: Iterable[Grant]) -> None:
        """Make the users of a drill, and give them what they need (INV-DRA1); raises `KafkaException`."""
        admin = AdminClient({"bootstrap.servers": bootstrap, **self.admin.kafka_config()})
        users: list[Any] = [upsertion(user, ITERATIONS) for user in (WRITER, READER, LOOKER)]
        for made in admin.alter_user_scram_credentials(users, request_timeout=_CALL_S).values():
            made.result(_CALL_S)
        acls = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", may, AclPermissionType.ALLOW)
            for user, kind, name, pattern, may in grants
        ]
        for given in admin.create_acls(acls, request_timeout=_CALL_S).values():
            given.result(_CALL_S)

    def renew(self, name: str) -> None:
        """Give a node another certificate and key, and wait until its Kafka port shows it; raises `StageError`."""
        node, files = self._cluster.node(name), self._made.of_node[name]
        for path in files.values():
            Path(path).rename(f"{path}.old")
        secured(self._cluster.folder, self._cluster.plan)
        wanted = ssl.PEM_cert_to_DER_cert(Path(files["tls_certificate"]).read_text())
        host, _, port = node.bootstrap.rpartition(":")

        def shown() -> bool:
            try:
                pem = ssl.get_server_certificate((host, int(port)), timeout=_CALL_S)
            except OSError:
                return False
            return ssl.PEM_cert_to_DER_cert(pem) == wanted

        stage.wait_until(f"{name} to show its new certificate", _RENEWED_S, shown)

    def rotate(self, *, mirror: str, acting: str) -> None:
        """Seal under a new version of the key from now on: who reads hears of it first."""
        self._tidemark("key", "rotate", str(self._keys), KEY)
        self._hand_out(dict.fromkeys((mirror, acting)))

    def quotas(self, bootstrap: str) -> subprocess.CompletedProcess[str]:
        """Return what `tidemark quota list` has said."""
        return self.command("quota", "list", "-o", "json", "--bootstrap", bootstrap)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the administrator."""
        return subprocess.run(
            [sys.executable, "-m", "region_broker", *arguments],
            env=self.environment, capture_output=True, text=True, check=False, timeout=3 * _CALL_S,
        )  # fmt: skip

    def _tidemark(self, *arguments: str) -> None:
        done = self.command(*arguments)
        if done.returncode:
            raise OSError(f"`tidemark {' '.join(arguments)}` ends with {done.returncode}: {done.stderr.strip()}")  # fmt: skip

    def _keys_of(self, region: str) -> Path:
        return self._made.folder / f"keys-{region}.toml"

    def _hand_out(self, regions: Iterable[str]) -> None:
        for region in regions:
            path = self._keys_of(region)
            new = path.with_suffix(".new")
            shutil.copyfile(self._keys, new)
            new.chmod(0o600)
            new.rename(path)


def password_of(user: str, iterations: int) -> str:
    """Return a user's password: another one for each number of iterations."""
    return f"{user}-behind-{iterations}-doors"


def upsertion(user: str, iterations: int) -> UserScramCredentialUpsertion:
    """Return the order that gives a user the password that goes with these iterations, which everybody may see."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, iterations)
    return UserScramCredentialUpsertion(user, info, password_of(user, iterations).encode())


def aiokafka_login(login: Security | None) -> dict[str, Any]:
    """Return what aiokafka is told; nothing where nobody logs in."""
    if login is None:
        return {}
    return {
        "security_protocol": "SASL_SSL", "ssl_context": login.ssl_context(), "sasl_mechanism": login.mechanism,
        "sasl_plain_username": login.user, "sasl_plain_password": login.password,
    }  # fmt: skip


def librdkafka_login(login: Security | None) -> dict[str, Any]:
    """Return what librdkafka is told; nothing where nobody logs in."""
    return {} if login is None else login.kafka_config()
