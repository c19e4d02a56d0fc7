"""Keys of TLS and of listeners (INV-CFT1, INV-CFT2): what they must be together, and what a look at the files says."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from region_broker.config.exposure import warning_of
from region_broker.config.node_config import ConfigError, NodeConfig
from region_broker.node import NodeRefused, Ports
from region_broker.node.node_tls import NodeTls, tls_problems
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.security.certificate_ends import DAY_MS
from region_broker.security.certificates import issue_node
from region_broker.security.node_names import NodeName
from region_broker.security.tls_contents import TlsFiles
from region_broker.wire.listening import NoIdentity
from tests.fixtures.certificates import (
    NOW,
    authority,
    crl_of,
    leaf_key,
    node_certificate,
    put,
    user_certificate,
)
from tests.unit.region_broker.test_config import whole

PAIR: dict[str, Any] = {"tls_certificate": "own.pem", "tls_key": "own-key.pem"}
LISTENER = {
    "name": "OUTSIDE", "bind": "0.0.0.0:9095", "advertised": "eu.example.org:19095", "security_protocol": "PLAINTEXT",
}  # fmt: skip


def problems(**changed: Any) -> list[str]:
    try:
        NodeConfig.build(whole(**changed), "node.toml")
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "wanted",
    [
        {"security_protocol": "SSL"},
        {"security_protocol": "SASL_SSL"},
        {"http_security_protocol": "SSL"},
        {"peer_security_protocol": "SSL", "tls_ca": "ca.pem"},
        {"listeners": [{**LISTENER, "security_protocol": "SSL"}]},
        {"listeners": [{**LISTENER, "security_protocol": "SASL_SSL"}]},
    ],
)
def test_INV_CFT1_who_speaks_tls_has_a_certificate_and_its_key(wanted: dict[str, Any]) -> None:
    assert problems(**wanted, **PAIR) == []
    for lacking in ("tls_certificate", "tls_key"):
        pair = {key: value for key, value in PAIR.items() if key != lacking}
        (problem,) = problems(**wanted, **pair)
        assert f"needs {lacking}:" in problem


def test_INV_CFT1_half_of_a_pair_is_refused_where_nothing_speaks_tls_yet() -> None:
    for given, lacking in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        (problem,) = problems(**{given: PAIR[given]})
        assert f"has no {lacking} beside it" in problem


@pytest.mark.parametrize("wanted", ["requested", "required"])
def test_INV_CFT1_who_looks_at_certificates_has_a_ca(wanted: str) -> None:
    secured = {**PAIR, "security_protocol": "SSL", "tls_client_auth": wanted}
    assert problems(**secured, tls_ca="ca.pem") == []
    assert ["has no tls_ca" in each for each in problems(**secured)] == [True]
    listener = {**LISTENER, "security_protocol": "SSL", "tls_client_auth": wanted}
    assert problems(**PAIR, tls_ca="ca.pem", listeners=[listener]) == []
    assert ["has no tls_ca" in each for each in problems(**PAIR, listeners=[listener])] == [True]
    for plain in (
        {"tls_client_auth": wanted},
        {"listeners": [{**LISTENER, "tls_client_auth": wanted}]},
    ):
        assert ["has no TLS to ask in" in each for each in problems(**plain)] == [True]
    assert ["has no tls_ca" in e for e in problems(**PAIR, peer_security_protocol="SSL")] == [True]
    assert ["has no tls_ca" in e for e in problems(tls_crl="crl.pem")] == [True]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([LISTENER, {**LISTENER, "bind": "0.0.0.0:9096"}], "is that of listeners[0], too"),
        (
            [LISTENER, {**LISTENER, "name": "outside", "bind": "0.0.0.0:9096"}],
            "is that of listeners[0], too",
        ),
        ([LISTENER, {**LISTENER, "name": "B"}], "is taken by listeners[0].bind"),
        ([{**LISTENER, "bind": "0.0.0.0:9092"}], "is taken by kafka"),
        ([{**LISTENER, "bind": "0.0.0.0:9094"}], "is taken by peer"),
        ([{**LISTENER, "bind": "0.0.0.0:9093"}], "is taken by http"),
        ([{**LISTENER, "advertised": "0.0.0.0:9095"}], "is an address that nobody can reach"),
        ([{**LISTENER, "bind": "9095"}], "is not host:port"),
        ([{**LISTENER, "bynd": "x"}], "is unknown"),
        ([{**LISTENER, "security_protocol": "TLS"}], "is none of the values to choose from"),
        ({"name": "x"}, "is no list of tables"),
    ],
)
def test_INV_CFT2_listeners_are_told_apart(changed: Any, says: str) -> None:
    (problem,) = problems(listeners=changed)
    assert says in problem


def test_INV_CFT2_a_node_binds_where_listen_host_says_and_not_where_others_reach_it() -> None:
    beside = {**LISTENER, "bind": "127.0.0.2:9092"}
    assert problems(listen_host="127.0.0.1", listeners=[beside]) == []
    for taken in ("127.0.0.1", "0.0.0.0"):
        (problem,) = problems(listen_host=taken, listeners=[{**beside, "bind": "127.0.0.1:9092"}])
        assert "is taken by kafka" in problem


def built(folder: Path, files: Any, **changed: Any) -> NodeConfig:
    named = {
        "tls_certificate": files.certificate, "tls_key": files.key, "tls_ca": files.ca, "tls_crl": files.crl,
    }  # fmt: skip
    return NodeConfig.build(whole(data_dir=str(folder / "data"), **named, **changed), "node.toml")


def looked(config: NodeConfig) -> list[str]:
    return [str(each) for each in tls_problems(config, AsyncioNetwork(), SystemClock())[0]]


def test_a_look_remarks_a_certificate_of_a_ca_that_the_node_itself_does_not_believe(
    tmp_path: Path,
) -> None:
    """Most often the wrong file: every other node would refuse this one, after its start."""

    def remarks(**more: Any) -> list[str]:
        files = put(tmp_path / "tls", node_certificate(), **more)
        config = built(tmp_path, files, peer_security_protocol="SSL", node_id=1)
        problems, told = tls_problems(config, AsyncioNetwork(), SystemClock())
        assert problems == []
        return [each for each in told if "is of no CA" in each]

    assert remarks() == []
    assert remarks(trusted=[authority("another"), authority()]) == []
    (remark,) = remarks(trusted=[authority("another")])
    assert "own.pem is of no CA that is in" in remark
    assert "Is it the right file?" in remark


def test_a_look_remarks_a_crl_that_leaves_out_the_ca_of_the_node_itself(tmp_path: Path) -> None:
    """docs/reference/security.md: once there is one, each CA that signs what is to be let in needs one."""

    def remarks(crl: bytes) -> list[str]:
        files = put(tmp_path / "tls", node_certificate(), crl=crl)
        problems, told = tls_problems(
            built(tmp_path, files, peer_security_protocol="SSL", node_id=1), AsyncioNetwork(), SystemClock()
        )  # fmt: skip
        assert problems == []
        return [each for each in told if "has no CRL of the CA" in each]

    assert remarks(b"") == []
    assert remarks(crl_of()) == []
    assert remarks(crl_of(by=authority("another")) + crl_of()) == []
    (remark,) = remarks(crl_of(by=authority("another")))
    assert "crl.pem" in remark
    assert "is refused here" in remark


def test_a_look_says_which_files_are_not_there_or_do_not_fit(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate())
    config = built(tmp_path, files, security_protocol="SSL")
    assert looked(config) == []
    Path(files.key).unlink()
    (problem,) = looked(config)
    assert files.key in problem
    assert "cannot be read" in problem
    rules = built(
        tmp_path, put(tmp_path / "tls", node_certificate()), tls_principal_mapping_rules="RULE:(/x/"
    )
    assert ["tls_principal_mapping_rules" in each for each in looked(rules)] == [True]
    ports = Ports(SystemClock(), SystemChance(), RealDisk(), AsyncioNetwork())
    with pytest.raises(NodeRefused, match="tls_principal_mapping_rules"):
        ports.secured(rules)


def of_another_cluster() -> x509.Certificate:
    name = NodeName("eu", 1, "c2")
    return issue_node(authority(), name, ["localhost"], leaf_key().public_key(), now=NOW)


@pytest.mark.parametrize(
    "other",
    [
        node_certificate("us"), node_certificate("eu", 2), user_certificate("eu"), of_another_cluster(),
    ],
)  # fmt: skip
def test_INV_NTL2_a_node_starts_with_its_own_certificate_only(tmp_path: Path, other: Any) -> None:
    own = built(tmp_path, put(tmp_path / "own", node_certificate()), peer_security_protocol="SSL")
    assert looked(own) == []
    config = built(tmp_path, put(tmp_path / "other", other), peer_security_protocol="SSL")
    (problem,) = looked(config)
    assert "this is node 1 of region eu of cluster c1" in problem
    assert looked(built(tmp_path, put(tmp_path / "other", other), security_protocol="SSL")) == []


def test_INV_NTL2_the_first_certificate_of_a_chain_is_the_nodes_own(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate())
    with Path(files.certificate).open("ab") as chain:
        chain.write(authority().certificate.public_bytes(Encoding.PEM))
    assert looked(built(tmp_path, files, peer_security_protocol="SSL")) == []


def test_INV_NTL2_a_running_node_goes_on_with_its_own_where_anothers_is_put_in_place(
    tmp_path: Path,
) -> None:
    """A mix-up while many are renewed: taken, it would be refused by all others, and nothing here would say why."""
    config = built(
        tmp_path, put(tmp_path / "tls", node_certificate()), peer_security_protocol="SSL"
    )
    tls = NodeTls(config, AsyncioNetwork(), SystemClock())
    contexts = [each.context() for each in tls.state.contexts]
    put(tmp_path / "tls", node_certificate("us"))
    for _ in range(2):
        changed: set[TlsFiles] = set()
        tls.state.look(changed)
        assert not changed
    assert [each.context() for each in tls.state.contexts] == contexts
    assert "changed files of TLS are not taken" in tls.warning()
    assert "is the certificate of node 1 of region us" in tls.warning()
    put(tmp_path / "tls", node_certificate())
    for _ in range(2):
        tls.state.look(set())
    assert "not taken" not in tls.warning()


def test_INV_CTE1_readyz_warns_of_what_ends_soon(tmp_path: Path) -> None:
    """And of what does not count yet by the clock of the node (INV-CTE2)."""
    config = built(
        tmp_path, put(tmp_path / "tls", node_certificate()), peer_security_protocol="SSL"
    )
    tls = NodeTls(config, AsyncioNetwork(), SystemClock())
    (own, *_) = [each for each in tls.state.contexts[0].ends if each.kind == "certificate"]
    assert tls.warning() == ""
    late = NodeTls(config, AsyncioNetwork(), StoppedClock(own.ends_wall_ms - DAY_MS))
    assert "own.pem ends in 1 day: renew it" in late.warning()
    early = NodeTls(config, AsyncioNetwork(), StoppedClock(own.begins_wall_ms - 3_600_000))
    assert "counts only in 1 h by the clock of this machine" in early.warning()


def test_readyz_warns_of_ports_that_are_open() -> None:
    config = NodeConfig.build(whole(insecure=True, listen_host="0.0.0.0"), "node.toml")
    warned = NodeTls(config, AsyncioNetwork(), SystemClock()).warning()
    assert warned.startswith("insecure = true: ")
    assert warned == warning_of(config)


class StoppedClock(SystemClock):
    """Says one time of the wall."""

    def __init__(self, wall_ms: int) -> None:
        super().__init__()
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms


def test_every_address_speaks_what_its_own_keys_say(tmp_path: Path) -> None:
    listeners = [
        {**LISTENER, "name": name, "bind": f"0.0.0.0:{port}", "security_protocol": protocol, "tls_client_auth": asked}
        for name, port, protocol, asked in (
            ("INSIDE", 9095, "SASL_PLAINTEXT", "none"), ("OUTSIDE", 9096, "SSL", "required"), ("OPEN", 9097, "PLAINTEXT", "none"),
        )
    ]  # fmt: skip
    files = put(tmp_path / "tls", node_certificate(), crl=crl_of())
    config = built(
        tmp_path, files, security_protocol="SASL_SSL", tls_client_auth="requested", http_security_protocol="SSL",
        peer_security_protocol="SSL", listeners=listeners,
    )  # fmt: skip
    tls = NodeTls(config, AsyncioNetwork(), SystemClock())
    spoken = [
        (each.name, each.must_log_in, None if each.tls is None else each.tls.client_auth)  # type: ignore[attr-defined]
        for each in (tls.kafka, *(further.listening for further in tls.further))
    ]
    assert spoken == [
        ("SASL_SSL", True, "requested"), ("INSIDE", True, None), ("OUTSIDE", False, "required"), ("OPEN", False, None),
    ]  # fmt: skip
    assert tls.http is not None
    assert tls.http.client_auth == "requested", "who has a certificate may say so over HTTP"
    assert cast("Any", tls.peer_network)._server.client_auth == "required", "INV-PNT1"
    for each in tls.state.contexts:
        assert each.files == files, "the CRL is among them"


async def test_INV_NTL1_all_ports_follow_the_files_together(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate())
    secured = {
        "security_protocol": "SSL",
        "peer_security_protocol": "SSL",
        "http_security_protocol": "SSL",
    }
    tls = NodeTls(built(tmp_path, files, **secured), AsyncioNetwork(), SystemClock())
    assert tls.kafka.tls is not None
    assert tls.http is not None
    before = [each.context() for each in tls.state.contexts]
    assert len(before) == 4, "a listener's, that of HTTP, the peers' server and client"
    _ = put(tmp_path / "tls", node_certificate())
    for each in tls.state.contexts:
        each.look()
        assert each.look()
    assert tls.kafka.tls.context() not in before
    assert tls.http.context() not in before
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(tls.run())
        await asyncio.sleep(0)
        await tls.run()  # somebody follows already
        assert not running.done(), "that one"
        running.cancel()


def test_whom_a_certificate_speaks_for_is_said_by_the_rules(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate())
    rules = "RULE:^CN=([a-z]+)$/$1@example.org/U"
    config = built(tmp_path, files, tls_principal_mapping_rules=rules)
    tls = NodeTls(config, AsyncioNetwork(), SystemClock())
    alice = user_certificate("alice").public_bytes(Encoding.DER)
    assert tls.kafka.principal_of(alice) == "User:ALICE@EXAMPLE.ORG"
    with pytest.raises(NoIdentity):
        tls.kafka.principal_of(user_certificate("b0b").public_bytes(Encoding.DER))


async def test_files_are_followed_by_the_node_that_goes_on_as_one_of_several(
    tmp_path: Path,
) -> None:
    """1. A node runs alone. 2. It grows: what ran ends, the same contexts go on. 3. A certificate is revoked."""
    files = put(tmp_path / "tls", node_certificate())
    looks: list[float] = []

    class Clock(SystemClock):
        async def sleep_ms(self, duration_ms: float) -> None:
            looks.append(duration_ms)
            await asyncio.Event().wait()

    tls = NodeTls(built(tmp_path, files, security_protocol="SSL"), AsyncioNetwork(), Clock())
    for life in (1, 2):
        async with asyncio.TaskGroup() as group:
            following = group.create_task(tls.run())
            for _ in range(3):
                await asyncio.sleep(0)
            await tls.run()  # whoever comes beside it has nothing to do
            following.cancel()
        assert len(looks) == life, "nobody follows the files any more"


def test_readyz_warns_of_keys_that_cannot_be_unlocked() -> None:
    config = NodeConfig.build(whole(), "node.toml")
    warned = NodeTls(config, AsyncioNetwork(), SystemClock()).warning(keys="key 'orders': why")
    assert warned == "keys: key 'orders': why"
