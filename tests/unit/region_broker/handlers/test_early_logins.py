"""Another login on a connection at once behind the last one (KIP-368, INV-LGI5)."""

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from region_broker.security.audit.events import Outcome
from region_broker.security.sasl.login import AGAIN_AFTER_MS
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.node_logs import ManualClock
from tests.unit.region_broker.handlers.test_logins import BOUNDED, SCRAM, log_in, port, shake, works


async def test_INV_LGI5_who_logs_in_again_too_soon_is_told_of_as_refused_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with port(tmp_path, BOUNDED, clock=clock) as fixture:
        client = await fixture.connect()
        await log_in(client)
        trail = fixture.services.audit = ToldTrail()
        for _ in range(2):
            clock.pass_ms(AGAIN_AFTER_MS // 2 - 1)
            assert (await shake(client)).error_code is ErrorCode.illegal_sasl_state
        assert await works(client)
        clock.pass_ms(2)
        assert (await log_in(client)).error_code is ErrorCode.none
        counted = fixture.services.metrics.logins.labels(SCRAM, "refused")._value.get()
    why = "User:alice has logged in less than 1000 ms ago"
    assert counted == 2
    told = [(each.actor.principal, each.actor.host, each.outcome, each.reason) for each in trail.told]  # fmt: skip
    refused = ("User:alice", "127.0.0.1", Outcome.REFUSED, why)
    assert told == [refused, refused, ("User:alice", "127.0.0.1", Outcome.DONE, "")]
    assert [line for line in caplog.messages if why in line]
