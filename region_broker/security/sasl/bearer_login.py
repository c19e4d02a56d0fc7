"""OAUTHBEARER as an exchange: the token is judged by the keys of its issuer; a refusal is told as RFC 7628 has it.

INV-SBL1  a token that is refused counts, is recorded and is held back with its challenge, and once: not every client says more (franz-go)
A token that is not right is answered with a challenge in JSON, as Kafka does; the client says that it has understood, and the login fails then.
Not here: what makes a token right (`bearer`), the keys (`jwks`).
"""

import asyncio
from typing import Final

from idempotency.ports import Clock
from region_broker.security.identity import user
from region_broker.security.sasl.bearer import NAME, BearerRules, judged, read_bearer
from region_broker.security.sasl.jwks import KeySource
from region_broker.security.sasl.login import Outcome, Proved
from region_broker.security.sasl.refusals import LoginRefused

_CHALLENGE: Final = b'{"status":"invalid_token"}'


class BearerJudge:
    """Begins exchanges."""

    def __init__(self, rules: BearerRules, keys: KeySource, clock: Clock) -> None:
        """Judge by `rules`, and by what `keys` has."""
        self._rules = rules
        self._keys = keys
        self._clock = clock

    def begin(self) -> "BearerExchange":
        """Return an exchange."""
        return BearerExchange(self)

    async def proved(self, message: bytes) -> Proved:
        """Return whom a message proves; raises `LoginRefused`."""
        bearer = read_bearer(message)
        keys = await self._keys.keys(bearer.kid)
        now_ms = self._clock.wall_ms()
        token = await asyncio.to_thread(judged, bearer, keys, self._rules, now_ms)
        return Proved(user(token.principal_name), token.until_wall_ms)


class BearerExchange:
    """One login."""

    def __init__(self, judge: BearerJudge) -> None:
        """Have `judge` say."""
        self._judge = judge
        self._why_refused: str | None = None

    async def step(self, message: bytes) -> Outcome:
        """See `Exchange`."""
        if self._why_refused is not None:
            # Made now: a kept one would get a traceback, whose frames keep this exchange (INV-PN7).
            raise self._refusal(self._why_refused)
        try:
            return Outcome(b"", await self._judge.proved(message))
        except LoginRefused as refused:
            self._why_refused = str(refused)
            return Outcome(_CHALLENGE, refused=self._refusal(self._why_refused))

    def _refusal(self, why: str) -> LoginRefused:
        return LoginRefused(NAME, why, _CHALLENGE.decode())
