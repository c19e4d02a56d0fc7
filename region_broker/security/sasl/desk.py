"""The desk where connections log in: runs the mechanisms, looks users up, holds failures back.

INV-SDK1  PLAIN and OAUTHBEARER are offered on encrypted connections alone: what they send can be used again by whoever hears it
INV-SDK2  what takes long runs beside the event loop, PROVING_MAX at once, and of one address one at a time: addresses take turns, so no
          flood of logins keeps those of others waiting for more than one each
INV-SDK3  the same is computed for a user or token that is not there as for one that is: nothing ends early
INV-SDK4  whoever asks two nodes, or one before and after its start, for a name that is not there is shown the same by both: else what
          differs would tell that nobody has it
Not here: the requests (`handlers.sasl`), what the mechanisms say to each other (their modules).
"""

import asyncio
import base64
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from idempotency.ports import Chance, Clock
from region_broker.ports.addresses import network_of
from region_broker.ports.fair_turns import FairTurns
from region_broker.security.access import Access, DelegationToken, ScramKeys
from region_broker.security.identity import Identity, user
from region_broker.security.sasl import plain
from region_broker.security.sasl.attempts import FailedAttempts
from region_broker.security.sasl.login import Exchange, Login, Outcome, Proved
from region_broker.security.sasl.plain import read_plain
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.scram import HASHES, ScramServer
from region_broker.security.sasl.scram_keys import Kind, fits, played_keys, usual
from region_broker.security.sasl.tokens import EXTENSION, TokenRules, TokenSecret, is_live
from region_broker.security.sasl.users_file import Users

PROVING_MAX: Final = 2
LOOKED_AT_MAX: Final = 1_000
"""Keys that are looked at for what keys usually look like: all of them would take the loop too long."""
TOKEN_RULES: Final = TokenRules(lifetime_max_ms=7 * 24 * 3_600_000, expiry_ms=24 * 3_600_000)
"""Kafka's `delegation.token.max.lifetime.ms` and `delegation.token.expiry.time.ms`."""
BEARER: Final = "OAUTHBEARER"
_ENCRYPTED_ONLY: Final = frozenset({plain.NAME, BEARER})
_SAY_EVERY_MS: Final = 1_000
_NONCE_BITS: Final = 144
_SECRET_BITS: Final = 256
logger: Final = logging.getLogger("tidemark.logins")


class BeginsBearers(Protocol):
    """Begins exchanges of OAUTHBEARER (`bearer_login`, which only nodes import that offer it)."""

    def begin(self) -> Exchange:
        """Return an exchange."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """What an operator says of logins. `max_reauth_ms`: the longest session, 0: as long as what proved it."""

    mechanisms: tuple[str, ...]
    max_reauth_ms: int = 0
    failed_delay_ms: int = 100
    file_users: Users = field(default_factory=dict)
    bearers: BeginsBearers | None = None
    token_secret: TokenSecret | None = None
    token_rules: TokenRules = TOKEN_RULES


def nothing_is_shared() -> str:
    """Return "": a node by itself."""
    return ""


class LoginDesk:
    """One of each node."""

    def __init__(
        self, settings: LoginSettings, access: Callable[[], Access], clock: Clock, chance: Chance,
        *, shared: Callable[[], str] = nothing_is_shared,
    ) -> None:  # fmt: skip
        """Judge by `access`, as it is when a login comes. `shared`: what all nodes of the cluster know and clients do not, "" for nothing yet."""
        self._shared = shared
        self.settings: Final = settings
        self._access = access
        self._clock = clock
        self._chance = chance
        self._secret = chance.randbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        self._token_secret = settings.token_secret or TokenSecret(self._secret)
        self._attempts = FailedAttempts(settings.failed_delay_ms)
        self._proving = Proving()
        self._usual: tuple[Sequence[ScramKeys] | None, Mapping[str, Kind]] = (None, {})
        self._said_ms = -_SAY_EVERY_MS
        self._unsaid = 0

    def mechanisms(self, *, is_encrypted: bool) -> tuple[str, ...]:
        """Return what a connection may log in by (INV-SDK1)."""
        return tuple(
            name for name in self.settings.mechanisms if is_encrypted or name not in _ENCRYPTED_ONLY
        )

    def begin(self, mechanism: str, host: str) -> Exchange:
        """Return an exchange of one of `mechanisms`, with a client at `host`."""
        if mechanism == plain.NAME:
            return _PlainExchange(self, host)
        if mechanism == BEARER:
            assert self.settings.bearers is not None, "it is offered"
            return self.settings.bearers.begin()
        nonce = self._chance.randbits(_NONCE_BITS).to_bytes(_NONCE_BITS // 8, "big")
        server = ScramServer(mechanism, base64.b64encode(nonce).decode())
        return _ScramExchange(self, host, server)

    async def step(self, login: Login, host: str, message: bytes) -> Outcome:
        """Take a message of the exchange that is under way; raises `LoginRefused`."""
        exchange = login.exchange
        assert exchange is not None, "INV-LGI1: the handshake comes first"
        self._refuse_unjudged(login.mechanism, host)
        login.is_busy = True
        try:
            return await exchange.step(message)
        finally:
            login.is_busy = False

    def identity_of(self, login: Login, proved: Proved, host: str) -> tuple[Identity, int]:
        """Return whom a login has proved, and for how many ms that counts, 0: for ever; raises `LoginRefused`."""
        identity = Identity(
            proved.principal, host=host, mechanism=login.mechanism,
            until_wall_ms=proved.until_wall_ms, token_id=proved.token_id,
        )  # fmt: skip
        before = login.identity
        if before is not None and before.principal != identity.principal:  # INV-LGI2
            why = f"{before.principal} may not log in again as {identity.principal}"
            raise LoginRefused(login.mechanism, why, "Cannot change principals during re-authentication")  # fmt: skip
        bounds = [self.settings.max_reauth_ms] if self.settings.max_reauth_ms else []
        if proved.until_wall_ms:
            left_ms = proved.until_wall_ms - self._clock.wall_ms()
            if left_ms <= 0:
                raise LoginRefused(login.mechanism, f"what proves {identity.principal} has ended")
            bounds.append(left_ms)
        return identity, min(bounds, default=0)

    def _refuse_unjudged(self, mechanism: str, host: str) -> None:
        """Raise `LoginRefused` where so many refusals of an address wait that no more of it is judged (INV-SAT2)."""
        if self._attempts.is_full(host):
            why = "too many failed logins of its address wait"
            said = "Too many failed logins come from this address: try again later"
            raise LoginRefused(mechanism, why, said, is_judged=False)

    async def hold_back(self, host: str, *, is_judged: bool = True) -> None:
        """Count a failure, and return when its answer may be sent (INV-SAT1)."""
        held = self._attempts.failed(host, self._clock.monotonic_ms(), is_judged=is_judged)
        try:
            if held.delay_ms:
                await self._clock.sleep_ms(held.delay_ms)
        finally:
            held.left()

    def tell(self, peer: str, refused: LoginRefused) -> None:
        """Log a failure; a storm of them makes a line a second, which says how many it stands for."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._said_ms + _SAY_EVERY_MS:
            self._unsaid += 1
            return
        self._said_ms, unsaid, self._unsaid = now_ms, self._unsaid, 0
        logger.warning("login of %s refused: %s (%d more since the last line)", peer, refused, unsaid)  # fmt: skip

    def keys_for(self, mechanism: str, name: str) -> tuple[ScramKeys, bool]:
        """Return a user's keys, and True; or those of nobody, and False (INV-SKY1)."""
        found = self._found(mechanism, name)
        played = played_keys(self._played_by(), name, self._usual_kinds()[mechanism])
        return (played, False) if found is None else (found, True)

    def keys_for_password(self, name: str) -> tuple[ScramKeys, bool]:
        """Return the keys to check a password by: the strongest that the user has, or those of nobody."""
        order = sorted(HASHES, reverse=True)
        found = [keys for keys in (self._found(mechanism, name) for mechanism in order) if keys]
        played = played_keys(self._played_by(), name, self._usual_kinds()[plain.NAME])
        return (found[0], True) if found else (played, False)

    async def password_fits(self, host: str, keys: ScramKeys, password: bytes) -> bool:
        """Return whether a password has these keys, beside the event loop (INV-SDK2)."""
        async with self._proving.turn(host):
            self._refuse_unjudged(plain.NAME, host)  # those before it may have failed since it came
            return await asyncio.to_thread(fits, keys, password)

    def live_token(self, token_id: str) -> DelegationToken | None:
        """Return the token of that id, if it is good for a login."""
        token = self._access().tokens_by_id.get(token_id)
        if token is None or self.settings.token_secret is None:
            return None
        return token if is_live(token, self._clock.wall_ms()) else None

    async def token_keys(self, host: str, mechanism: str, token_id: str) -> ScramKeys:
        """Return the keys of a token, there or not, made beside the event loop (INV-SDK2, INV-DTK3)."""
        async with self._proving.turn(host):
            self._refuse_unjudged(mechanism, host)
            return await asyncio.to_thread(self._token_secret.keys_of, token_id, mechanism)

    def _played_by(self) -> bytes:
        """Return what keys of nobody are made of: the same at all nodes, as far as they share anything (INV-SDK4)."""
        token_secret, shared = self.settings.token_secret, self._shared()
        if token_secret is not None:
            return token_secret.for_nobody()
        return hashlib.sha256(b"keys of nobody\0" + shared.encode()).digest() if shared else self._secret  # fmt: skip

    def _found(self, mechanism: str, name: str) -> ScramKeys | None:
        known = self._access().keys_of(name)
        if known:  # INV-SUF1
            return next((keys for keys in known if keys.mechanism == mechanism), None)
        return self.settings.file_users.get((name, mechanism))

    def _usual_kinds(self) -> Mapping[str, Kind]:
        """Return what keys look like, by mechanism; of PLAIN: those that passwords are checked by."""
        present = self._access().keys
        if self._usual[0] is not present:
            rows = [*present[:LOOKED_AT_MAX], *self.settings.file_users.values()]
            kinds = {mechanism: usual(rows, mechanism) for mechanism in HASHES}
            strongest = {row.user: row.mechanism for row in sorted(rows, key=lambda row: row.mechanism)}  # fmt: skip
            counts = Counter(strongest.values())
            most = max(counts, key=lambda each: (counts[each], each), default=max(HASHES))
            self._usual = present, {**kinds, plain.NAME: kinds[most]}
        return self._usual[1]


class Proving:
    """Lets work begin, in turns (INV-SDK2)."""

    def __init__(self) -> None:
        """Let PROVING_MAX work at once."""
        self._turns: Final = FairTurns(PROVING_MAX)

    def turn(self, host: str) -> AbstractAsyncContextManager[None]:
        """Work within."""
        return self._turns.turn(network_of(host))


class _ScramExchange:
    """SCRAM, by the keys of a user."""

    def __init__(self, desk: LoginDesk, host: str, server: ScramServer) -> None:
        self._desk = desk
        self._host = host
        self._server = server
        self._proved: Proved | None = None

    async def step(self, message: bytes) -> Outcome:
        """See `Exchange`."""
        if self._proved is None:
            first = self._server.first(message)
            if first.extensions.get(EXTENSION) == "true":
                return await self._challenge_token(first.user)
            self._proved = Proved(user(first.user))
            keys, is_real = self._desk.keys_for(self._server.mechanism, first.user)
            return Outcome(self._server.challenge(keys, is_real=is_real))
        answer = self._server.final(message)
        return Outcome(answer, self._proved)

    async def _challenge_token(self, token_id: str) -> Outcome:
        """Go on by the keys of a delegation token, of which there may be none (INV-DTK3)."""
        token = self._desk.live_token(token_id)
        self._proved = (
            Proved("", 0) if token is None else Proved(token.owner, token.expires_wall_ms, token_id)
        )
        keys = await self._desk.token_keys(self._host, self._server.mechanism, token_id)
        return Outcome(self._server.challenge(keys, is_real=token is not None))


class _PlainExchange:
    """PLAIN, by the same keys."""

    def __init__(self, desk: LoginDesk, host: str) -> None:
        self._desk = desk
        self._host = host

    async def step(self, message: bytes) -> Outcome:
        """See `Exchange`."""
        said = read_plain(message)
        keys, is_real = self._desk.keys_for_password(said.user)
        is_right = await self._desk.password_fits(self._host, keys, said.password)
        if not (is_right and is_real):
            why = "the password is wrong" if is_real else "there is no such user"
            raise LoginRefused(plain.NAME, f"{why}: {said.user!r}", tried=said.user)
        return Outcome(b"", Proved(user(said.user)))
