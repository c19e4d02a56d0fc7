"""What altering a topic comes to, before anybody is asked."""

import pytest

from region_broker.cli.admin.topic_changes import (
    ChangeError,
    Changes,
    Setting,
    before_and_after,
    parse_configs,
)

SETTINGS = {
    "retention.ms": Setting("5", "604800000", is_default=False),
    "cleanup.policy": Setting("delete", "delete", is_default=True),
}


def changes(
    new: dict[str, str] | None = None, gone: tuple[str, ...] = (), count: int | None = None
) -> Changes:
    return Changes(new_configs=new or {}, gone_configs=gone, partition_count=count)


def test_each_setting_is_shown_before_and_after() -> None:
    asked = changes({"cleanup.policy": "compact"}, ("retention.ms",), 8)
    assert before_and_after(asked, SETTINGS, 3) == [
        {"setting": "cleanup.policy", "before": "delete (default)", "after": "compact"},
        {"setting": "retention.ms", "before": "5", "after": "604800000 (default)"},
        {"setting": "partitions", "before": "3", "after": "8"},
    ]


def test_an_unknown_key_is_left_to_the_broker_to_refuse() -> None:
    (row,) = before_and_after(changes({"retention.sm": "1"}), SETTINGS, 1)
    assert row["before"] == ""


@pytest.mark.parametrize(
    ("new", "gone", "text"),
    [({}, (), "nothing to change"), ({"a": "1"}, ("a",), "both set and deleted")],
)
def test_orders_that_make_no_sense(new: dict[str, str], gone: tuple[str, ...], text: str) -> None:
    with pytest.raises(ChangeError, match=text):
        changes(new, gone)


def test_configs_are_keys_and_values_each_once() -> None:
    assert parse_configs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for words in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(ChangeError, match="--config"):
            parse_configs(words)
