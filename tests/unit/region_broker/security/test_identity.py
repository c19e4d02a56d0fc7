"""One name for each host, whatever way its client comes in by."""

import pytest

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.identity import host_of


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("192.0.2.7:4711", "192.0.2.7"),
        ("::ffff:192.0.2.7:4711", "192.0.2.7"),
        ("[::ffff:192.0.2.7]:4711", "192.0.2.7"),
        ("2001:db8::7:4711", "2001:db8::7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
    ],
)
def test_INV_SID2_who_logs_in_comes_from_the_host_that_a_certificate_or_another_node_would_name(
    peer: str, host: str
) -> None:
    """A listener at `::` sees clients of IPv4 by addresses of IPv6 that hold theirs (RFC 4291, 2.5.5.2)."""
    ctx = RequestContext(
        services=None,  # type: ignore[arg-type]
        connection_id=1, api_key=36, version=2, correlation_id=1, peer=peer,
    )  # fmt: skip
    assert ctx.host == host_of(peer) == host
