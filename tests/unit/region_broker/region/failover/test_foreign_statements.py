"""Loss statements of another region that are none, or not the one: whoever returns goes on without them (INV-FS6)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geo_replicator.failover import Phase
from idempotency.identity import RegionEpoch
from region_broker.region.failover.messages import AskStatement, StatementAnswer
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import PeerSession, Reply
from tests.fixtures.failover_regions import Pair, fail_over

TAKEN = RegionEpoch(17)
UNREADABLE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b'{"domain": "main"}', id="of a release with other fields"),
    pytest.param(b'{"domain": "\xff\xfe"}', id="no UTF-8"),
    pytest.param(b'{"none": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="very deep"),
]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """The mirror took over from the primary, which is down."""
    async with Pair(tmp_path) as regions:
        await regions.eu.write("first")
        await regions.reached("first")
        await regions.eu.kill()
        await fail_over(regions.us)
        yield regions


async def returned(pair: Pair, attached: bytes) -> None:
    """Let the former primary return, to which the other one sends this as its statement."""

    async def tell(_session: PeerSession, _message: AskStatement, _rest: memoryview) -> Reply:
        return Reply(StatementAnswer(found=True), [attached])

    del pair.us.server._handlers._requests[AskStatement.__name__]
    pair.us.server.register(AskStatement, tell)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)


def folders(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_dir()]


@pytest.mark.parametrize("attached", UNREADABLE)
async def test_INV_FS6_a_statement_that_cannot_be_read_ends_no_return(
    pair: Pair, attached: bytes
) -> None:
    await returned(pair, attached)
    assert pair.eu.quarantine.statement("main", TAKEN) is None


@pytest.mark.parametrize(
    "wrong",
    [{"domain": "../../outside"}, {"region_epoch": 24}, {"tidemark_number": 999}],
    ids=str,
)
async def test_INV_FS6_a_statement_of_something_else_is_not_kept(
    pair: Pair, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    stated = pair.us.quarantine.statement("main", TAKEN)
    assert stated is not None
    await returned(pair, msgspec.json.encode(msgspec.structs.replace(stated, **wrong)))
    assert pair.eu.quarantine.statement("main", TAKEN) is None
    assert pair.eu.quarantine.statement("main", RegionEpoch(24)) is None
    assert "outside" not in [path.name for path in folders(tmp_path)]


async def test_INV_FS6_the_statement_of_the_takeover_is_kept(pair: Pair) -> None:
    stated = pair.us.quarantine.statement("main", TAKEN)
    await returned(pair, msgspec.json.encode(stated))
    assert pair.eu.quarantine.statement("main", TAKEN) == stated


@pytest.mark.parametrize("domain", ["", "..", "../eu", "\0", "x" * 300])
async def test_a_statement_of_a_domain_that_is_none_is_refused_and_no_file_is_looked_for(
    pair: Pair, domain: str
) -> None:
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    question = AskStatement(domain=domain, region_epoch=TAKEN)
    with pytest.raises(PeerRefused, match="no domain is called"):
        await pair.eu.driver.parts.peers.ask("us", question, StatementAnswer, timeout_ms=5_000)
    assert pair.us.role.acting
