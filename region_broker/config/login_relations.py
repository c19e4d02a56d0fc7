"""What the keys of logins must be together; a part of `config.relations`.

INV-CFL1  a mechanism that sends what can be used again by whoever hears it is configured only where some listener with logins is encrypted
INV-CFL2  no token is taken without an issuer, an audience and keys that the operator has named
Pure. Not here: whether the files are there and right (`node.start_checks`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from region_broker.config.rules import Problem, listed
from region_broker.config.tls_relations import ListenerTable

SASL_PROTOCOLS: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
_SAFE_WHEN_HEARD: Final = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})


def login_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield where a login would send what others must not hear on connections that they can."""
    listeners: Sequence[ListenerTable] = values.get("listeners", ())
    protocols = {values.get("security_protocol")}
    protocols |= {each.values.get("security_protocol") for each in listeners}
    mechanisms = values.get("sasl_mechanisms")
    if mechanisms is not None and protocols & SASL_PROTOCOLS:
        yield from _bearer_problems(values, listed(mechanisms))
    if mechanisms is None or protocols & SASL_PROTOCOLS != {"SASL_PLAINTEXT"}:
        return
    heard = [name for name in listed(mechanisms) if name not in _SAFE_WHEN_HEARD]
    if heard:
        yield Problem(
            f"sasl_mechanisms = {mechanisms!r}",
            f"has {' and '.join(heard)}, which would send passwords or tokens in clear text",
            'SCRAM-SHA-256 and SCRAM-SHA-512 alone, or security_protocol = "SASL_SSL"',
        )


def _bearer_problems(values: Mapping[str, Any], mechanisms: Sequence[str]) -> Iterator[Problem]:
    """Yield what OAUTHBEARER lacks: no token is taken whose issuer, audience and keys nobody has named."""
    for key, what in _NEEDED:
        if "OAUTHBEARER" in mechanisms and values.get(key) == "":
            yield Problem(key, "is missing beside OAUTHBEARER of sasl_mechanisms", what)


_NEEDED: Final = (
    ("sasl_oauth_issuer", "what `iss` of a token must be, letter by letter"),
    ("sasl_oauth_audience", "what `aud` of a token must be, or hold"),
    (
        "sasl_oauth_jwks",
        "where the keys of the issuer are: an https address, or the path of a file",
    ),
)
