"""Nobody logs in by way of another node: logins belong to connections (INV-SID1)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.sasl_authenticate import handle_sasl_authenticate
from region_broker.handlers.sasl.sasl_handshake import handle_sasl_handshake
from region_broker.security.sasl.login import Login, Stage


class Touched:
    """A desk that nobody may ask."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize("stage", [Stage.STRANGER, Stage.CHOSEN, Stage.KNOWN])
async def test_a_login_that_was_forwarded_is_out_of_order(stage: Stage) -> None:
    state = SimpleNamespace(must_log_in=True, is_encrypted=True, login=Login(stage, "PLAIN"))
    ctx = cast(
        "RequestContext",
        SimpleNamespace(
            is_forwarded=True, connection_state=state, version=1, services=SimpleNamespace(logins=Touched()),
        ),
    )  # fmt: skip
    asked = SimpleNamespace(mechanism="PLAIN", auth_bytes=b"\0alice\0secret")
    for handle in (handle_sasl_handshake, handle_sasl_authenticate):
        assert (await handle(ctx, asked))["error_code"] is ErrorCode.illegal_sasl_state
