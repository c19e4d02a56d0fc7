"""One Spark session for all tests of this folder: starting it costs more than all of them."""

import warnings
from collections.abc import Iterator

import pytest

from geo_replicator.reconciliation.job import Engine

with warnings.catch_warnings():
    # PySpark 4.3 warns about pandas 3, which is here for its own tests and which we do not use.
    warnings.simplefilter("ignore")
    from geo_replicator.reconciliation.spark_job import SparkEngine, spark_session


@pytest.fixture(scope="package")
def spark_engine() -> Iterator[Engine]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with spark_session("local[2]") as session:
            yield SparkEngine(session)
