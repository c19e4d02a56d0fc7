"""Rule T19: a takeover is above every region epoch that its region has heard of, also where it was started again since."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import Event
from region_broker.node import Node
from tests.simulation.region_pair import region_pair, until
from tests.simulation.test_folders_without_history import shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_T19_a_region_that_heard_of_an_epoch_and_is_started_again_takes_a_higher_one(
    tmp_path: Path,
) -> None:
    """1. us acts; eu is back, hears of it, and is ended. 2. us is lost; eu is started, and takes over by an operator's word.
    3. us is back: what eu has acknowledged since counts.
    """
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.eu.kill()
        await pair.fail_over()
        fenced = False

        def ends_when_fenced(node: Node) -> None:
            async def stand(_state: State, _learn: object) -> Event:
                nonlocal fenced
                fenced = True
                raise OSError("it is ended here")

            node.failover.steps.stand_fenced = stand  # type: ignore[method-assign,assignment]

        pair.eu.on_open = ends_when_fenced
        eu = pair.regions.pop("eu")
        await eu.begin()
        await until(lambda: fenced, "it has heard of us")
        await eu.kill()
        eu.on_open = None
        await pair.us.kill()
        us = pair.regions.pop("us")
        await eu.begin()
        pair.regions["eu"] = eu
        await pair.until(lambda: "failover --to" in eu.node.role.reason_not_acting, "it says so")
        assert eu.phase is Phase.FENCED
        operation = eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        await write(eu, b"four")
        await us.begin()
        pair.regions["us"] = us
        await pair.until(
            lambda: Phase.MIRRORING in (us.phase, eu.phase), "one of both follows the other"
        )
        assert (operation.region_epoch > 17, us.phase, shown(eu)) == (True, Phase.MIRRORING, 4)
