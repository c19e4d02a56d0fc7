"""Packages that a node does not import: hidden while others are imported, there again afterwards."""

import importlib
import sys

import pytest

from region_broker.cli.lean import without


def test_INV_LEAN1_a_hidden_package_is_not_there_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with without("this"), pytest.raises(ImportError):
        importlib.import_module("this")
    assert "this" not in sys.modules


def test_what_is_imported_already_stays() -> None:
    with without("importlib"):
        assert sys.modules["importlib"] is importlib
    assert sys.modules["importlib"] is importlib


def test_it_is_there_again_after_an_error() -> None:
    with pytest.raises(RuntimeError), without("no_such_package"):
        raise RuntimeError
    assert "no_such_package" not in sys.modules
