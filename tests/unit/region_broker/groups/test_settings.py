"""Settings of groups that contradict each other are refused."""

import pytest

from region_broker.groups.settings import GroupSettings


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"session_timeout_ms_min": 0}, "group_min_session_timeout_ms"),
        ({"session_timeout_ms_min": 7, "session_timeout_ms_max": 6}, "7 to 6 ms"),
        ({"initial_rebalance_delay_ms": -1}, "must not be negative"),
        ({"retention_check_interval_ms": 0}, "the retention check above 0"),
        ({"consumer_heartbeat_interval_ms": 45_000}, "a heartbeat every 45000 ms"),
        ({"consumer_heartbeat_interval_ms": 0}, "and above 0"),
    ],
)
def test_settings_of_groups_that_contradict_each_other_are_refused(
    changed: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        GroupSettings(**changed)


def test_settings_of_groups_at_their_bounds_are_taken() -> None:
    GroupSettings(session_timeout_ms_min=6, session_timeout_ms_max=6)
    GroupSettings(consumer_heartbeat_interval_ms=1, consumer_session_timeout_ms=2)
    GroupSettings(initial_rebalance_delay_ms=0, retention_check_interval_ms=1)
