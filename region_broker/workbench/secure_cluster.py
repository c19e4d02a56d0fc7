"""A local cluster whose every port is shut: a private CA, an administrator with a password and a token, and what nodes are told of it.

INV-WSC1  what is secret lies in one folder of its owner's (0700), in files of mode 0600, is drawn once, and is the same when the cluster comes up again
INV-WSC2  the administrator is in the file of users that nodes read, and a super user: the first login needs nothing that is there before
The folder `security` of the cluster has the CA (`ca/`), a certificate and key for each node, `users.txt`, `tokens.json`, and for the
administrator `password`, `http.token`, `client.conf` (librdkafka) and `client.properties` (Java).
For development and shows: a CA beside its nodes proves nothing to whoever has the machine.
Not here: certificates (`security.certificates`), users (`security.sasl`), tokens (`security.http_tokens`).
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.security import authority_folder, certificates
from region_broker.security.authority_folder import AuthorityFolder
from region_broker.security.http_tokens import Role, file_of, made_token
from region_broker.security.login import DEFAULT_MECHANISM, Security
from region_broker.security.node_names import NodeName
from region_broker.security.sasl.scram import HASHES, ITERATIONS_MIN
from region_broker.security.sasl.scram_keys import SALT_BYTES, keys_of, line_of
from region_broker.workbench.cluster_plan import ClusterPlan, NodePlace

FOLDER: Final = "security"
ADMIN: Final = "admin"
MECHANISM: Final = DEFAULT_MECHANISM
SECRET_MODE: Final = authority_folder.SECRET_MODE
_PASSWORD_BITS: Final = 192
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredCluster:
    """`admin`: as whom its administrator asks. `settings`: what every node is told; `of_node`: what each one is, by name."""

    admin: Security
    settings: Mapping[str, Any]
    of_node: Mapping[str, Mapping[str, Any]]
    folder: Path

    def announced(self) -> dict[str, str]:
        """Return what `dev --secure -o json` says of it: these are the secrets, and nothing else prints them."""
        return {
            "ca": self.admin.ca, "mechanism": self.admin.mechanism, "username": self.admin.user, "password": self.admin.password,
            "http_token": self.admin.http_token,
        }  # fmt: skip


def secured(folder: Path, plan: ClusterPlan) -> SecuredCluster:
    """Make what the cluster of `plan` in `folder` lacks of its security, and return all of it; raises OSError, `CertificateRefused`."""
    place = folder / FOLDER
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(place / "ca")
    of_node = {
        node.name: _node_files(place, authority, plan, region.name, node)
        for region in plan.regions
        for node in region.nodes
    }
    password, token = _password(place), _token(place)
    ca = str(authority.certificate_path)
    admin = Security(ca=ca, mechanism=MECHANISM, user=ADMIN, password=password, http_token=token)
    settings = {
        "security_protocol": "SASL_SSL",
        "peer_security_protocol": "SSL",
        "http_security_protocol": "SSL",
        "tls_ca": ca,
        "sasl_users_file": str(place / "users.txt"),
        "super_users": f"User:{ADMIN}",
        "http_tokens_file": str(place / "tokens.json"),
    }
    bootstrap = ",".join(region.bootstrap for region in plan.regions)
    for name, text in client_files(admin, bootstrap).items():
        authority_folder.write(place / name, text.encode(), SECRET_MODE, replace=True)
    return SecuredCluster(admin=admin, settings=settings, of_node=of_node, folder=place)


def client_files(admin: Security, bootstrap: str) -> dict[str, str]:
    """Return configurations for clients, by the names of their files: to use, or to paste from."""
    librdkafka = {"bootstrap.servers": bootstrap, **admin.kafka_config()}
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{admin.user}" password="{admin.password}";'
    )
    java = {
        "bootstrap.servers": bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": admin.mechanism, "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM", "ssl.truststore.location": admin.ca,
    }  # fmt: skip
    return {
        name: "".join(f"{key}={value}\n" for key, value in settings.items())
        for name, settings in (("client.conf", librdkafka), ("client.properties", java))
    }


def python_text(place: Path, bootstrap: str) -> str:
    """Return how the Python client is made; the password stays in its file."""
    return (
        "from pathlib import Path\n"
        "from region_broker.client import Producer, Security\n\n"
        f"FOLDER = Path({str(place)!r})\n"
        f'SECURITY = Security(ca=str(FOLDER / "ca" / "ca.pem"), user={ADMIN!r}, password=(FOLDER / "password").read_text().strip(),\n'
        '                    http_token=(FOLDER / "http.token").read_text().strip())\n'
        f"producer = Producer(bootstrap={bootstrap!r}, security=SECURITY)\n"
    )


def _authority(place: Path) -> AuthorityFolder:
    if place.exists():
        return AuthorityFolder.load(place)
    return AuthorityFolder.create(place, "Tidemark development CA", _now(), certificates.CA_DAYS)


def _node_files(
    place: Path, authority: AuthorityFolder, plan: ClusterPlan, region: str, node: NodePlace
) -> dict[str, str]:
    """Return where a node's certificate and key are; makes them where they are not."""
    name = node.name.replace("/", "-")
    certificate, key_path = place / f"{name}.pem", place / f"{name}-key.pem"
    if not (certificate.exists() and key_path.exists()):
        key = certificates.new_key()
        hosts = list(dict.fromkeys((node.host, *_HOSTS)))
        made = certificates.issue_node(
            authority.authority,
            NodeName(region, node.node_id, plan.cluster_id),
            hosts,
            key.public_key(),
            now=_now(),
        )
        with authority.locked():
            authority.remember(made)
        authority_folder.write(key_path, certificates.key_pem(key), SECRET_MODE, replace=True)
        authority_folder.write(certificate, certificates.pem_of(made), replace=True)
    return {"tls_certificate": str(certificate), "tls_key": str(key_path)}


def _password(place: Path) -> str:
    path, users = place / "password", place / "users.txt"
    if path.exists() and users.exists():
        return path.read_text().strip()
    chance = SystemChance()
    drawn = chance.randbits(_PASSWORD_BITS).to_bytes(_PASSWORD_BITS // 8, "big")
    password = base64.urlsafe_b64encode(drawn).decode()
    lines = []
    for mechanism in HASHES:
        salt = chance.randbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
        lines.append(line_of(keys_of(ADMIN, mechanism, password.encode(), salt, ITERATIONS_MIN)))
    authority_folder.write(users, ("\n".join(lines) + "\n").encode(), SECRET_MODE, replace=True)
    authority_folder.write(path, f"{password}\n".encode(), SECRET_MODE, replace=True)
    return password


def _token(place: Path) -> str:
    path, tokens = place / "http.token", place / "tokens.json"
    if path.exists() and tokens.exists():
        return path.read_text().strip()
    token, row = made_token(ADMIN, Role.ADMIN, SystemChance(), SystemClock().wall_ms())
    authority_folder.write(tokens, file_of([row]), SECRET_MODE, replace=True)
    authority_folder.write(path, f"{token}\n".encode(), SECRET_MODE, replace=True)
    return token


def _now() -> Any:
    return certificates.instant(SystemClock().wall_ms())
