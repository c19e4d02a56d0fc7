"""Who a connection speaks for: a principal, where it comes from, and for how long that is known.

INV-SID2  a host is named alike in every identity, however its client came in: an ACL that denies it is not passed by another way in
INV-SID3  what an ACL says of an address counts for whoever comes from it, however the ACL writes it: Kafka's own tools write all eight groups of an
          IPv6 one, as Java does, and an address that is compared by its letters alone is denied to nobody
INV-SID1  an identity comes from what proved it (a certificate, a SASL exchange, another node that this one trusts by certificate),
          never from a field of a request
Principals are written as Kafka writes them, `TYPE:NAME` (KafkaPrincipal).
Not here: what a principal may do (`access`), how it is proved (SASL, TLS).
"""

from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

import msgspec

from region_broker.ports.addresses import network_of

USER_TYPE: Final = "User"
ANONYMOUS_NAME: Final = "ANONYMOUS"


class Identity(msgspec.Struct, frozen=True):
    """`principal`: as `User:alice`. `host`: the address it speaks from, of the client itself where a node forwards for it.

    `mechanism`: what proved it (`SCRAM-SHA-256`, `TLS`, ...), "" where nothing did. `until_wall_ms`: when what proved it ends, 0: never
    (KIP-368). `token_id`: of the delegation token that proved it, "" where none did (KIP-48).
    """

    principal: str
    host: str = ""
    mechanism: str = ""
    until_wall_ms: int = 0
    token_id: str = ""

    @property
    def is_anonymous(self) -> bool:
        """Return whether nobody has said who this is."""
        return self.principal == ANONYMOUS_PRINCIPAL

    def counted_as(self, host: str) -> str:
        """Return who counts as one where those who ask take turns: the principal, or the network of `host` where nobody has said who this is."""
        return network_of(host) if self.is_anonymous else self.principal


def host_of(address: str) -> str:
    """Return the IP address of `address:port`, as ACLs name it."""
    return acl_host(address.rpartition(":")[0])


def acl_host(host: str) -> str:
    """Return an IP address as ACLs name it: without brackets, and an IPv4 one that came over IPv6 as what it is."""
    host = host.strip("[]")
    return host.removeprefix("::ffff:") if "." in host else host


@lru_cache(maxsize=10_000)
def is_same_host(written: str, host: str) -> bool:
    """Return whether an ACL's host is that of an identity, both compared as addresses where it is an IPv6 one (INV-SID3)."""
    if written == host or ":" not in written:
        return written == host
    try:
        rule = IPv6Address(written.strip("[]"))
        if rule.ipv4_mapped is not None:
            return str(rule.ipv4_mapped) == host
        client = IPv6Address(host)
    except ValueError:
        return False  # one of them is none
    return int(rule) == int(client) and rule.scope_id in (None, client.scope_id)


def user(name: str) -> str:
    """Return the principal of a user."""
    return f"{USER_TYPE}:{name}"


ANONYMOUS_PRINCIPAL: Final = user(ANONYMOUS_NAME)
ANONYMOUS: Final = Identity(ANONYMOUS_PRINCIPAL)
