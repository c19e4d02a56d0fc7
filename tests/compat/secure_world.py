"""A region that clients of others come in to over TLS: logins at its `kafka` address, certificates at another one, and the files for each case.

`kafka`: SASL_SSL with SCRAM, PLAIN, OAUTHBEARER (keys at an address of the issuer, by HTTPS) and delegation tokens. `MUTUAL`: SSL, certificates required, with a CRL.
Only alice may do anything: by her password, her tokens, and her certificate.
"""

import base64
import json
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from joserfc import jws
from joserfc.jwk import ECKey, KeySet
from typing_extensions import override

from region_broker.ports.system.clock import SystemClock
from region_broker.security.login import Security
from region_broker.security.sasl.scram_keys import keys_of, line_of
from region_broker.security.tls_contents import TlsFiles
from region_broker.workbench.credentials import present_as
from region_broker.workbench.node_http import metrics_text
from tests.compat.secure_cases import BEARER, CERTIFICATE, LOGIN, RIGHT, TOKEN, Case, Told
from tests.fixtures.certificates import (
    NOW,
    authority,
    crl_of,
    node_certificate,
    put,
    user_certificate,
)
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.fixtures.secret_scan import save_metrics
from tests.process.tls_cluster import TlsCluster, open_tls_cluster

USER: Final = "alice"
TOPIC: Final = "orders"
ISSUER, AUDIENCE = "https://issuer.invalid", "tidemark"
_ASK_S: Final = 20.0
_ISSUED, _OTHERS = (ECKey.generate_key("P-256", {"kid": "ec"}) for _ in range(2))
_CREATE_TOPICS, _HANDSHAKE, _AUTHENTICATE, _CREATE_TOKEN = (19, 5), (17, 1), (36, 2), (38, 3)


class World:
    """The region, and what each case is told."""

    def __init__(self, cluster: TlsCluster, folder: Path, password: str) -> None:
        """Make the files of all cases in `folder`; asks as alice from now on."""
        self.cluster = cluster
        self._password = password
        other = authority("another CA")
        self._nobody = put(folder / "nobody", None)
        self._fooled = put(folder / "fooled", None, trusted=[other])
        self._users = {
            RIGHT: put(folder / RIGHT, user_certificate(USER)),
            "expired": put(folder / "expired", user_certificate(USER, now=NOW - timedelta(days=400))),
            "of another CA": put(folder / "of-another", user_certificate(USER, by=other)),
            "revoked": put(folder / "revoked", cluster_revoked()),
            "none": self._nobody,
            "the node is not trusted": put(folder / "fooled-user", user_certificate(USER), trusted=[other]),
        }  # fmt: skip
        present_as(Security(user=USER, password=password))
        with Raw(self._bootstrap, self._nobody.ca) as raw:
            raw.log_in(USER, password)
            raw.create_topic(TOPIC)
            self._tokens = {RIGHT: raw.token(-1), "expired": raw.token(1)}

    @property
    def _bootstrap(self) -> str:
        return f"localhost:{self.cluster.plan.nodes[0].kafka_port}"

    def told(self, case: Case, value: str) -> Told:
        """Return what a program is told for a case; `value` is what it writes."""
        base = Told(bootstrap=self._bootstrap, topic=TOPIC, value=value, ca=self._nobody.ca)
        if case.mechanism == CERTIFICATE:
            return self._by_certificate(base, self._users[case.name])
        if case.mechanism == BEARER:
            return replace(base, mechanism=BEARER, user=USER, secret=bearer(case.name))
        if case.mechanism == TOKEN:
            return self._by_token(base, case.name)
        return replace(
            base,
            mechanism=case.mechanism,
            user="nobody" if case.name == "unknown user" else USER,
            secret="wrong" if case.name == "wrong password" else self._password,
            ca=self._fooled.ca if case.is_tls else base.ca,
        )

    def _by_certificate(self, base: Told, files: TlsFiles) -> Told:
        at = f"localhost:{self.cluster.listening['MUTUAL']}"
        return replace(base, bootstrap=at, ca=files.ca, certificate=files.certificate, key=files.key)  # fmt: skip

    def _by_token(self, base: Told, name: str) -> Told:
        token_id, secret = self._tokens["expired" if name == "expired" else RIGHT]
        if name == "wrong secret":
            secret = base64.b64encode(b"x" * 32).decode()
        return replace(base, mechanism="SCRAM-SHA-256", user=token_id, secret=secret, is_token=True)

    def counted(self, reason: str) -> float:
        """Return how often the node has refused for a reason; a login's are all one."""
        named = (
            r'tidemark_logins_total\{[^}]*outcome="refused"[^}]*\}'
            if reason == LOGIN
            else rf'tidemark_tls_handshakes_failed_total\{{port="kafka",reason="{reason}"\}}'
        )
        text = metrics_text(self.cluster.plan.nodes[0].http)
        return sum(float(found) for found in re.findall(rf"^{named} (\S+)$", text, re.MULTILINE))


def cluster_revoked() -> Any:
    """Return the certificate that the CRL names."""
    return _REVOKED


_REVOKED: Final = user_certificate(USER)


def bearer(name: str) -> str:
    """Return the token of a case, as an issuer would sign it."""
    now_s = SystemClock().wall_ms() // 1_000
    claims: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": now_s + 3_600}
    if name == "expired":
        claims["exp"] = now_s - 3_600
    if name == "of another issuer":
        claims["iss"] = "https://other.invalid"
    key = _OTHERS if name == "signed by another's key" else _ISSUED
    return jws.serialize_compact({"alg": "ES256", "kid": "ec"}, json.dumps(claims), key, ["ES256"])


class Raw:
    """One connection over TLS that speaks through kio, for what few clients can ask for."""

    def __init__(self, bootstrap: str, ca: str) -> None:
        """Connect."""
        host, _, port = bootstrap.partition(":")
        context = ssl.create_default_context(cafile=ca)
        plain = socket.create_connection((host, int(port)), timeout=_ASK_S)
        self._socket = context.wrap_socket(plain, server_hostname=host)
        self._read = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Close it."""
        self._read.close()
        self._socket.close()

    def ask(self, api: tuple[int, int], **values: Any) -> Any:
        """Return the answer to a request."""
        frame = frame_of(*api, values)
        self._socket.sendall(len(frame).to_bytes(4) + frame)
        return parse_answer(*api, self._read.read(int.from_bytes(self._read.read(4))))[1]

    def log_in(self, user: str, password: str) -> None:
        """Log in by PLAIN."""
        assert self.ask(_HANDSHAKE, mechanism="PLAIN").error_code == 0
        answer = self.ask(_AUTHENTICATE, auth_bytes=f"\0{user}\0{password}".encode())
        assert answer.error_code == 0, answer.error_message

    def create_topic(self, name: str) -> None:
        """Create a topic of one partition."""
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}  # fmt: skip
        answer = self.ask(_CREATE_TOPICS, topics=[topic], timeout=10_000, validate_only=False)
        assert [each.error_code for each in answer.topics] == [0], answer

    def token(self, lifetime_ms: int) -> tuple[str, str]:
        """Return the id and the secret of a new delegation token; -1: as long as may be."""
        made = self.ask(
            _CREATE_TOKEN, renewers=[], max_lifetime=lifetime_ms, owner_principal_type=None, owner_principal_name=None,
        )  # fmt: skip
        assert made.error_code == 0, made
        return made.token_id, base64.b64encode(made.hmac).decode()


class _Keys(BaseHTTPRequestHandler):
    """What an issuer publishes."""

    def do_GET(self) -> None:  # the name that `http.server` asks for
        """Answer with the keys."""
        keys = json.dumps(KeySet([_ISSUED]).as_dict(private=False)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(keys)))
        self.end_headers()
        self.wfile.write(keys)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def issuer(files: TlsFiles) -> Iterator[str]:
    """Publish the issuer's keys on this machine, and yield where."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Keys) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"https://localhost:{server.server_port}/keys"
        server.shutdown()
        serving.join()


@contextmanager
def open_world(folder: Path) -> Iterator[World]:
    """Start the region in `folder`, and yield it once it serves."""
    password = secrets.token_urlsafe(16)
    users = [
        line_of(keys_of(USER, mechanism, password.encode(), secrets.token_bytes(16), 4096))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    (folder / "users.txt").write_text("\n".join(users) + "\n")
    (folder / "tokens.secret").write_text(secrets.token_urlsafe(48))
    published = put(folder / "issuer", node_certificate())
    settings: dict[str, Any] = {
        "security_protocol": "SASL_SSL", "sasl_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "sasl_users_file": str(folder / "users.txt"), "sasl_token_secret_file": str(folder / "tokens.secret"),
        "sasl_oauth_issuer": ISSUER, "sasl_oauth_audience": AUDIENCE, "sasl_oauth_jwks_ca": published.ca,
        "super_users": f"User:{USER};User:CN={USER}",
    }  # fmt: skip
    crl = crl_of(cluster_revoked())
    with (
        issuer(published) as address,
        open_tls_cluster(
            folder / "cluster", 1, crl=crl, further=True, sasl_oauth_jwks=address, **settings
        ) as cluster,
    ):
        cluster.start()
        yield World(cluster, folder, password)
        save_metrics(cluster)
