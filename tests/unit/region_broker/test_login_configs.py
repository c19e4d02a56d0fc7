"""What a node's configuration says of logins, and what a start refuses of it (INV-CFL1, INV-SUF2, INV-STC2)."""

from pathlib import Path
from typing import Any, cast

import pytest

from region_broker.config.node_config import ConfigError
from region_broker.node import Node, NodeRefused
from region_broker.node.logins import compose_logins, login_remarks
from region_broker.node.start_checks import look_around
from region_broker.node.storage import Storage
from region_broker.security.access import Access
from region_broker.security.sasl.bearer import BearerRules
from region_broker.security.sasl.scram_keys import keys_of, line_of
from region_broker.security.sasl.tokens import TokenRules, TokenSecret
from tests.fixtures.failover_regions import free_ports
from tests.unit.region_broker.test_start_checks import PORTS, config_of, found

# RFC 8037, appendix A.2.
ED_KEY = '{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}'
LINE = line_of(keys_of("root", "SCRAM-SHA-256", b"pw", b"salt", 4096))


def built(folder: Path, **changed: Any) -> Any:
    return config_of(folder, free_ports(3), security_protocol="SASL_PLAINTEXT", **changed)


def test_what_can_be_heard_is_not_offered_where_it_can_be(tmp_path: Path) -> None:
    assert built(tmp_path).sasl_mechanisms == "SCRAM-SHA-256,SCRAM-SHA-512"
    with pytest.raises(ConfigError, match="PLAIN, which would send passwords"):
        built(tmp_path, sasl_mechanisms="SCRAM-SHA-256,PLAIN")
    config_of(tmp_path, free_ports(3), sasl_mechanisms="PLAIN")  # nobody logs in there


def test_tokens_are_taken_of_a_named_issuer_only(tmp_path: Path) -> None:
    """INV-CFL2."""
    tls = {"security_protocol": "SASL_SSL", "tls_certificate": "c.pem", "tls_key": "k.pem"}
    named = {"sasl_oauth_issuer": "i", "sasl_oauth_audience": "a", "sasl_oauth_jwks": "https://i/keys"}  # fmt: skip
    offered = {"sasl_mechanisms": "OAUTHBEARER", **tls}
    assert config_of(tmp_path, free_ports(3), **offered, **named).sasl_oauth_issuer == "i"
    for missing in named:
        with pytest.raises(ConfigError, match=missing):
            config_of(tmp_path, free_ports(3), **offered, **(named | {missing: ""}))
    for wrong in (
        "http://i/keys",
        "https://",
        "https://user:pw@i/keys",
        "file://x",
        "https://i/\n",
    ):
        with pytest.raises(ConfigError, match="sasl_oauth_jwks"):
            config_of(tmp_path, free_ports(3), **offered, **(named | {"sasl_oauth_jwks": wrong}))


@pytest.mark.parametrize(
    "content",
    [b"", b"short", None, pytest.param(b"0" * (1 << 20) + b"1", id="a log, say: over 1 MiB")],
)
async def test_a_start_refuses_a_secret_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    secret = tmp_path / "secret.txt"
    if content is not None:
        secret.write_bytes(content)
    config = built(tmp_path / "data", sasl_token_secret_file=str(secret))
    [problem] = await found(config)
    assert problem.key.startswith("sasl_token_secret_file")
    assert "short" not in str(problem)


@pytest.mark.parametrize("wrong", ["", "SCRAM-SHA-1", "PLAIN,PLAIN", ","])
def test_mechanisms_are_known_ones(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="sasl_mechanisms"):
        built(tmp_path, sasl_mechanisms=wrong)


@pytest.mark.parametrize("content", ["root SCRAM", f"{LINE}\n{LINE}\n", "\xff", None])
async def test_a_start_refuses_a_file_of_users_that_is_not_right(
    tmp_path: Path, content: str | None
) -> None:
    users = tmp_path / "users.txt"
    if content is not None:
        users.write_bytes(content.encode("latin-1"))
    config = built(tmp_path / "data", sasl_users_file=str(users))
    [problem] = await found(config)
    assert problem.key.startswith("sasl_users_file")
    assert str(problem).count("sasl_users_file") == 1, "it is said once which key it is"
    with pytest.raises(NodeRefused, match=r"users\.txt"):
        await Node.open(config, PORTS)


@pytest.mark.parametrize(
    ("content", "remarked"),
    [
        (None, "No such file"),
        ("no JSON", "no set of keys"),
        ('{"tokens": []}', "no set of keys"),
        ('{"keys": []}', "no key that came can be used"),
        (f'{{"keys": [{ED_KEY}]}}', ""),
    ],
)
async def test_a_look_remarks_a_file_of_an_issuers_keys_that_lets_nobody_in(
    tmp_path: Path, content: str | None, remarked: str
) -> None:
    """The keys are read when the first login needs them: an operator heard nothing before."""
    jwks = tmp_path / "jwks.json"
    if content is not None:
        jwks.write_text(content)
    named = {"sasl_oauth_issuer": "i", "sasl_oauth_audience": "a", "sasl_oauth_jwks": str(jwks)}
    tls = {"security_protocol": "SASL_SSL", "tls_certificate": "c.pem", "tls_key": "k.pem"}
    config = config_of(
        tmp_path / "data", free_ports(3), sasl_mechanisms="OAUTHBEARER", **tls, **named
    )
    told = list(login_remarks(config, PORTS.disk))
    assert len(told) == bool(remarked)
    assert all(remarked in each and each.count(str(jwks)) == 1 for each in told)


async def test_files_of_logins_are_looked_at_beside_a_running_node(tmp_path: Path) -> None:
    """A rolling restart checks first, while the node runs: what it will refuse it must say then, not when it is down."""
    users = tmp_path / "users.txt"
    users.write_text(f"{LINE}\n")
    config = built(tmp_path / "data", sasl_users_file=str(users), super_users="User:root")
    storage = await Storage.open(config, PORTS)
    try:
        assert (await look_around(config, PORTS)).in_use
        assert await found(config) == []
        users.write_text("root SCRAM\n")
        [problem] = await found(config)
        assert problem.key.startswith("sasl_users_file")
    finally:
        await storage.close()


async def test_a_start_takes_a_file_of_users(tmp_path: Path) -> None:
    users = tmp_path / "users.txt"
    users.write_text(f"# the first one\n\n{LINE}\n")
    assert await found(built(tmp_path / "data", sasl_users_file=str(users))) == []


async def test_a_desk_goes_by_what_the_configuration_says(tmp_path: Path) -> None:
    users, secret = tmp_path / "users.txt", tmp_path / "secret.txt"
    users.write_text(f"{LINE}\n")
    secret.write_bytes(b" " + b"s" * 40 + b"\n")
    named: dict[str, Any] = {
        "tls_certificate": "c.pem", "tls_key": "k.pem", "sasl_mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl_users_file": str(users), "sasl_token_secret_file": str(secret), "sasl_max_reauth_ms": 61_000,
        "sasl_failed_delay_ms": 77, "sasl_token_lifetime_max_ms": 7_200_000, "sasl_token_expiry_ms": 3_600_000,
        "sasl_oauth_issuer": "i", "sasl_oauth_audience": "a", "sasl_oauth_jwks": "https://i/keys",
        "sasl_oauth_algorithms": "ES256", "sasl_oauth_principal_claim": "email", "sasl_oauth_clock_skew_ms": 5_000,
    }  # fmt: skip
    outside = {
        "name": "OUTSIDE", "bind": "127.0.0.1:9", "advertised": "localhost:9", "security_protocol": "SASL_SSL",
    }  # fmt: skip
    for where in ({"security_protocol": "SASL_SSL"}, {"listeners": [outside]}):
        config = config_of(tmp_path, free_ports(3), **named, **where)
        desk = compose_logins(config, PORTS, Access)
        assert desk is not None
        said = desk.settings
        assert said.mechanisms == ("SCRAM-SHA-512", "OAUTHBEARER")
        assert (said.max_reauth_ms, said.failed_delay_ms) == (61_000, 77)
        assert said.token_rules == TokenRules(lifetime_max_ms=7_200_000, expiry_ms=3_600_000)
        assert said.file_users.keys() == {("root", "SCRAM-SHA-256")}
        assert said.token_secret is not None
        assert said.token_secret.hmac_of("x") == TokenSecret(b"s" * 40).hmac_of("x")
        assert cast("Any", said.bearers)._rules == BearerRules(
            issuer="i", audience="a", algorithms=("ES256",), principal_claim="email", skew_ms=5_000
        )
    assert compose_logins(config_of(tmp_path, free_ports(3), **named), PORTS, Access) is None
