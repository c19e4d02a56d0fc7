"""Whom clients of others come in as over TLS, what must become of each, and how what a client's program prints is judged.

A case is told to a program on its standard input, a `name=value` a line. The program lists topics, writes a record and reads it, each by a
client of its own and at the same time: it prints `begun`, then `STEP <tab> ok` or `STEP <tab> refused <tab> why` for each.
Not here: the region and the files (`secure_world`), the programs and the run (`secure_clients`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

LIMIT_S: Final = 30.0
"""What a client may take to say that it is refused, from when its program has begun: how long a JVM takes to start is not asked."""
STEPS: Final = ("list", "produce", "consume")
PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
BEARER: Final = "OAUTHBEARER"
TOKEN: Final = "delegation token"  # the name of a mechanism
CERTIFICATE: Final = "client certificate"
RIGHT: Final = "right"
LOGIN: Final = "login"


class Case(NamedTuple):
    """Who comes in, by what; `counted`: the reason that the node must count for a refusal, nothing where it is right."""

    mechanism: str
    name: str
    counted: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the client must work."""
        return not self.counted

    @property
    def is_tls(self) -> bool:
        """Whether the handshake is refused, not the login."""
        return self.counted not in {"", LOGIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a program is told: where to, what to believe, and who it is. `ca`, `certificate` and `key` are paths."""

    bootstrap: str
    topic: str
    value: str
    ca: str
    mechanism: str = ""
    user: str = ""
    secret: str = ""
    is_token: bool = False
    certificate: str = ""
    key: str = ""

    def text(self) -> str:
        """Return it as programs read it."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return "".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else value}\n"
            for name, value in values
        )

    @classmethod
    def of(cls, text: str) -> "Told":
        """Return what a text says."""
        found: dict[str, str] = {}
        for line in text.splitlines():
            name, _, value = line.partition("=")
            found[name] = value
        is_token = found.pop("is_token") == "true"
        return cls(is_token=is_token, **found)


def cases() -> Iterator[Case]:
    """Yield all of them, what is right first."""
    for mechanism in PASSWORDS:
        yield Case(mechanism, RIGHT)
        yield Case(mechanism, "wrong password", LOGIN)
        yield Case(mechanism, "unknown user", LOGIN)
    yield Case(BEARER, RIGHT)
    yield Case(BEARER, "expired", LOGIN)
    yield Case(BEARER, "of another issuer", LOGIN)
    yield Case(BEARER, "signed by another's key", LOGIN)
    yield Case(TOKEN, RIGHT)
    yield Case(TOKEN, "wrong secret", LOGIN)
    yield Case(TOKEN, "expired", LOGIN)
    yield Case("SCRAM-SHA-512", "the node is not trusted", "refused_by_peer")
    yield Case(CERTIFICATE, RIGHT)
    yield Case(CERTIFICATE, "expired", "expired")
    yield Case(CERTIFICATE, "of another CA", "unknown_ca")
    yield Case(CERTIFICATE, "revoked", "revoked")
    yield Case(CERTIFICATE, "none", "no_certificate")
    yield Case(CERTIFICATE, "the node is not trusted", "refused_by_peer")


LACKS: Final[Mapping[str, Mapping[str, str]]] = {
    "sarama": {TOKEN: "it has no SCRAM of its own, and the one of its examples knows no tokens"},
    "kafkajs": {TOKEN: "its SCRAM knows no tokens"},
    "confluent": {TOKEN: "librdkafka's SCRAM knows no tokens"},
    "kcat": {
        TOKEN: "librdkafka's SCRAM knows no tokens",
        BEARER: "it takes tokens from an address only, and Debian's build not even so (no libcurl)",
    },
    "aiokafka": {TOKEN: "its SCRAM knows no tokens"},
    "kafka-python": {TOKEN: "its SCRAM knows no tokens"},
}
"""Mechanisms that a client does not have."""

_ADDRESS: Final = re.compile(r"\b\w+://\S+")
"""librdkafka names its protocol in each error (`ssl://host:port`), which says nothing of the reason."""
SAYS_LOGIN: Final = re.compile(r"sasl|authenti", re.IGNORECASE)
SAYS_TLS: Final = re.compile(r"ssl|tls|x509|certificate|handshake", re.IGNORECASE)
VAGUE: Final[Mapping[tuple[str, str], str]] = {
    ("franz", BEARER): "unexpected data in oauth response",
    ("kafkajs", BEARER): "Closed connection",
    ("aiokafka", BEARER): r"Connection at \S+ closed|Unable to bootstrap",
    ("aiokafka", CERTIFICATE): "Unable to bootstrap",
    **{("kafka-python", each): "Unable to bootstrap" for each in (*PASSWORDS, BEARER, CERTIFICATE)},
}
"""What a client says of a refusal in place of the reason, by mechanism. Of a token: they do not know the challenge of RFC 7628, which Kafka sends, too."""
UNCOUNTED: Final = frozenset({("kafkajs", "refused_by_peer"), ("aiokafka", "refused_by_peer"), ("kafka-python", "refused_by_peer")})  # fmt: skip
"""Whose refusal a node cannot tell from a client that leaves: Node.js judges our certificate behind the handshake, asyncio sends no alert."""


class Played(NamedTuple):
    """What a program printed, how long it took, and by how many the node's count of the reason went up."""

    printed: str
    took_s: float
    counted: float = 0.0


def outcomes_of(printed: str) -> dict[str, str]:
    """Return by step what became of it: `ok`, or why it was refused."""
    found = {}
    for line in printed.splitlines():
        step, _, outcome = line.partition("\t")
        if step in STEPS:
            found[step] = outcome.removeprefix("refused\t")
    return found


def faults(client: str, case: Case, played: Played) -> Sequence[str]:
    """Return what is not as it must be, nothing where all is."""
    found = outcomes_of(played.printed)
    wrong = [f"{step}: it said nothing" for step in STEPS if step not in found]
    if case.is_right:
        return wrong + [f"{step}: {why}" for step, why in found.items() if why != "ok"]
    says = _says(client, case)
    wrong += [f"{step}: it was let in" for step, why in found.items() if why == "ok"]
    wrong += [
        f"{step}: no word of the reason in {why!r}"
        for step, why in found.items()
        if why != "ok" and not says.search(_ADDRESS.sub("", why))
    ]
    if played.took_s > LIMIT_S:
        wrong.append(f"it took {played.took_s:.0f} s")
    if played.counted < 1 and (client, case.counted) not in UNCOUNTED:
        wrong.append(f"the node counted no refusal of a {case.counted!r}")
    return wrong


def _says(client: str, case: Case) -> re.Pattern[str]:
    """Return how the reason shows in what a client says."""
    vague = VAGUE.get((client, case.mechanism))
    if vague is not None:
        return re.compile(vague)
    return SAYS_TLS if case.is_tls else SAYS_LOGIN


def told_of(case: Case, played: Played) -> str:
    """Return the outcome for a table: `works`, or what the client says, each different thing once."""
    found = outcomes_of(played.printed)
    if found and all(why == "ok" for why in found.values()):
        return "works"
    kinds = dict.fromkeys(why.partition(": ")[0] for why in found.values())
    return ", ".join(kinds) or "nothing"
