"""What is said of an end, and when."""

import pytest

from region_broker.security.certificate_ends import (
    End,
    Urgency,
    first_end_by_file,
    judge,
    judgements,
)

DAY_MS = 86_400_000
END = End("certificate", "/etc/eu-1.pem", "OU=node 1", 1_000 * DAY_MS)


@pytest.mark.parametrize(
    ("days_before", "urgency", "said"),
    [
        (31, Urgency.FAR, "ends in 31 days"),
        (30.01, Urgency.FAR, "ends in 30 days"),
        (30, Urgency.NEAR, "ends in 30 days: renew it"),
        (1, Urgency.NEAR, "ends in 1 day: renew it"),
        (0.25, Urgency.NEAR, "ends in 6 h: renew it"),
        (0, Urgency.OVER, "ended 1 h ago"),
        (-3, Urgency.OVER, "ended 3 days ago"),
    ],
)
def test_it_is_told_30_days_before_an_end(days_before: float, urgency: Urgency, said: str) -> None:
    """INV-CTE1"""
    judgement = judge(END, int((1_000 - days_before) * DAY_MS))
    assert judgement.urgency is urgency
    assert said in judgement.text
    assert "/etc/eu-1.pem" in judgement.text
    assert judgement.left_ms == days_before * DAY_MS


@pytest.mark.parametrize(
    ("early_ms", "said"),
    [
        (59 * 60_000, "in 59 min"),
        (1, "in 1 min"),
        (2 * 3_600_000, "in 2 h"),
        (3 * DAY_MS, "in 3 days"),
    ],
)
def test_INV_CTE2_what_does_not_count_yet_is_told_with_the_clocks_to_look_at(
    early_ms: int, said: str
) -> None:
    """A clock that is an hour slow makes each fresh certificate so, and who shows it is refused as if it had ended."""
    soon = End(
        "certificate", "/etc/eu-1.pem", "OU=node 1", 1_000 * DAY_MS, begins_wall_ms=10 * DAY_MS
    )
    judgement = judge(soon, 10 * DAY_MS - early_ms)
    assert judgement.urgency is Urgency.EARLY
    assert (
        f"counts only {said} by the clock of this machine, and is refused until then"
        in judgement.found
    )
    assert "clock" in judgement.mend
    assert judge(soon, 10 * DAY_MS).urgency is Urgency.FAR


def test_a_file_ends_with_the_first_of_what_is_in_it() -> None:
    ca = End("ca", "/etc/ca.pem", "CN=a", 7)
    earlier, other = End("ca", "/etc/ca.pem", "CN=b", 5), END
    assert first_end_by_file([ca, earlier, other]) == {"/etc/ca.pem": earlier, END.path: END}


OLD = End("ca", "/etc/ca.pem", "CN=old", 50 * DAY_MS)
NEW = End("ca", "/etc/ca.pem", "CN=new", 300 * DAY_MS, begins_wall_ms=40 * DAY_MS)


@pytest.mark.parametrize(
    ("day", "said"),
    [
        (10, {"CN=old": Urgency.FAR, "CN=new": Urgency.EARLY}),
        (40, {"CN=old": Urgency.NEAR}),
        (60, {"CN=old": Urgency.OVER}),
        (290, {"CN=old": Urgency.OVER, "CN=new": Urgency.NEAR}),
        (301, {"CN=old": Urgency.OVER, "CN=new": Urgency.OVER}),
    ],
)
def test_INV_CTE3_one_ca_hides_nothing_of_another_in_its_file(
    day: int, said: dict[str, Urgency]
) -> None:
    """1. A CA is exchanged by way of both. 2. The old one ends, and stays in the file. 3. The new one ends, or did not count yet: nobody said so."""
    found = judgements([OLD, NEW, OLD], day * DAY_MS)
    assert {each.end.subject: each.urgency for each in found} == said


def test_of_a_file_in_which_all_is_well_the_first_end_is_told() -> None:
    later = End("ca", "/etc/ca.pem", "CN=later", 600 * DAY_MS)
    (found,) = judgements([later, NEW], 100 * DAY_MS)
    assert found == judge(NEW, 100 * DAY_MS)
