"""What a node's configuration says of logins, and what a start refuses of it (INV-CFL1, INV-SUF2, INV-STC2)."""

from pathlib import Path
from typing import Any

import pytest

from region_broker.config.node_config import ConfigError
from region_broker.node import Node, NodeRefused
from region_broker.security.sasl.scram_keys import keys_of, line_of
from tests.fixtures.failover_regions import free_ports
from tests.unit.region_broker.test_start_checks import PORTS, config_of, found

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


@pytest.mark.parametrize("content", [b"", b"short", None])
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
    with pytest.raises(NodeRefused, match=r"users\.txt"):
        await Node.open(config, PORTS)


async def test_a_start_takes_a_file_of_users(tmp_path: Path) -> None:
    users = tmp_path / "users.txt"
    users.write_text(f"# the first one\n\n{LINE}\n")
    assert await found(built(tmp_path / "data", sasl_users_file=str(users))) == []
