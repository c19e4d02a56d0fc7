"""The desk by itself: what it refuses unjudged, and what it looks up (INV-SDK2, INV-SAT2)."""

import asyncio

import pytest

from region_broker.ports.system.chance import SystemChance
from region_broker.security.access import Access
from region_broker.security.sasl import attempts
from region_broker.security.sasl.desk import LoginDesk, LoginSettings
from region_broker.security.sasl.login import Login, Stage
from region_broker.security.sasl.refusals import LoginRefused
from tests.fixtures.scram_users import access_of, rfc_keys
from tests.fixtures.waiting import until

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"


class Held:
    """A clock whose sleeps end when they are let go."""

    def __init__(self) -> None:
        self.sleeping = 0
        self.let_go = asyncio.Event()

    def monotonic_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        assert duration_ms > 0
        self.sleeping += 1
        await self.let_go.wait()


def desk_with(clock: Held, access: Access) -> LoginDesk:
    settings = LoginSettings(mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512"))
    return LoginDesk(settings, lambda: access, clock, SystemChance())


def begun(desk: LoginDesk, host: str, mechanism: str = "SCRAM-SHA-256") -> Login:
    return Login(Stage.CHOSEN, mechanism, desk.begin(mechanism, host))


async def test_INV_SAT2_an_address_whose_refusals_wait_is_refused_unjudged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "WAITING_MAX", 1)
    clock = Held()
    desk = desk_with(clock, access_of(rfc_keys()))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(desk.hold_back("10.0.0.1"))
        await until(lambda: clock.sleeping == 1, "a refusal waits")
        with pytest.raises(LoginRefused, match="too many failed logins"):
            await desk.step(begun(desk, "10.0.0.1"), "10.0.0.1", FIRST)
        assert (await desk.step(begun(desk, "10.0.0.2"), "10.0.0.2", FIRST)).answer
        clock.let_go.set()
    assert (await desk.step(begun(desk, "10.0.0.1"), "10.0.0.1", FIRST)).answer, "it has left"
