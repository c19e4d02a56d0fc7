"""How long delegation tokens are good for, and what is derived for them (INV-DTK1, INV-DTK2); KIP-48."""

import pytest

from region_broker.security.access import DelegationToken
from region_broker.security.sasl.tokens import (
    TokenRules,
    TokenSecret,
    is_live,
    issued,
    may_change,
    renewed,
)

RULES = TokenRules(lifetime_max_ms=1_000, expiry_ms=300)
PLAIN = DelegationToken("id", "User:alice", "User:bob", ("User:carol",), 10_000, 0, 0)


@pytest.mark.parametrize(
    ("asked_ms", "expires_ms", "ends_ms"),
    [(-1, 10_300, 11_000), (0, 10_300, 11_000), (200, 10_200, 10_200), (500, 10_300, 10_500), (9_000, 10_300, 11_000)],
)  # fmt: skip
def test_nobody_is_given_a_longer_life_than_there_is(
    asked_ms: int, expires_ms: int, ends_ms: int
) -> None:
    made = issued(PLAIN, asked_ms, RULES)
    assert (made.expires_wall_ms, made.ends_wall_ms) == (expires_ms, ends_ms)


def test_a_renewal_moves_the_expiry_and_never_beyond_the_end() -> None:
    made = issued(PLAIN, 500, RULES)
    ends = [renewed(made, 10_100, period_ms, RULES) for period_ms in (-1, 0, 50, 9_000)]
    assert [each.expires_wall_ms for each in ends] == [10_400, 10_100, 10_150, 10_500]
    assert {each.ends_wall_ms for each in ends} == {10_500}


def test_a_token_is_live_before_its_expiry_and_before_its_end() -> None:
    made = issued(PLAIN, 500, RULES)
    assert [is_live(made, now_ms) for now_ms in (10_000, 10_299, 10_300)] == [True, True, False]
    over = DelegationToken("id", "User:a", "User:a", (), 1, expires_wall_ms=50, ends_wall_ms=40)
    assert [is_live(over, now_ms) for now_ms in (39, 40)] == [True, False]


def test_owner_requester_and_renewers_may_change_it_and_nobody_else() -> None:
    may = [may_change(PLAIN, f"User:{name}") for name in ("alice", "bob", "carol", "dave")]
    assert may == [True, True, True, False]


def test_a_salt_tells_nothing_of_the_secret_of_its_token() -> None:
    """Whoever begins a login is shown the salt."""
    secret = TokenSecret(bytes(range(32)))
    keys = secret.keys_of("id", "SCRAM-SHA-256")
    assert keys.salt not in secret.hmac_of("id")
    assert secret.hmac_of("id") != secret.hmac_of("other")
    assert secret.is_of("id", secret.hmac_of("id"))
    assert not secret.is_of("other", secret.hmac_of("id"))
