"""For every tidy test: a million nodes of syntax trees are kept, none is garbage, so none is looked at for that."""

import gc
from collections.abc import Iterator

import pytest

from tests.tidy.tree import tree_of


@pytest.fixture(scope="package", autouse=True)
def _no_search_for_garbage() -> Iterator[None]:
    """Keep trees while tidy tests run, without a look at them at each collection; then let them go."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()
