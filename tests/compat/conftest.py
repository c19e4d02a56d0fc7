"""Real brokers for the compatibility tests: one region alone, the mirror region of two, and a region of three nodes.

The mirror's bootstrap is the harder one: its node forwards every write and coordinator request to the acting
region and serves reads itself, up to the last tidemark it reached. A client must not notice. Of three nodes the address of one
that follows is given: clients must find the one that leads. They end with the last test of this folder: idle nodes beside all
other tests of a run took a fifth of a machine of two cores.
"""

import gc
import itertools
import warnings
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from region_broker.workbench.local_cluster import LocalCluster
from tests.compat.places import NEW_GROUPS, PLACES, TESTED_PLACES, start
from tests.fixtures import secret_scan
from tests.fixtures.sealing_keys import keys_in_files

_NUMBERS = itertools.count()


@pytest.fixture(scope="package", params=TESTED_PLACES)
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the bootstrap address of a running broker."""
    place = PLACES[request.param]
    folder = tmp_path_factory.mktemp("compat")
    with LocalCluster.open(
        folder, region_count=place.region_count, node_count=place.node_count, port=0,
        new_cluster_id=UUID(int=1),
        settings={"encryption_keys_file": str(keys_in_files(folder / "keys", "secret"))} | NEW_GROUPS,
    ) as cluster:  # fmt: skip
        start(cluster, place)
        yield cluster.plan.nodes[-1].bootstrap
        assert cluster.dead() == {}
        secret_scan.save_metrics(cluster)
    if secret_scan.is_scanned(secret_scan.SEALED_FOR_CLIENTS):
        secret_scan.fail_where_found(folder)


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return names that no other test uses: `fresh("t")`."""
    number = next(_NUMBERS)
    return lambda prefix: f"{prefix}-{number}"


@pytest.fixture(autouse=True)
def _sockets_that_kafka_python_forgets() -> Iterator[None]:
    """Collect what kafka-python leaves unclosed here, so that it is not held against another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
