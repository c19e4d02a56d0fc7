"""What is said of an end, and when."""

import pytest

from region_broker.security.certificate_ends import End, Urgency, first_end_by_file, judge

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


def test_a_file_ends_with_the_first_of_what_is_in_it() -> None:
    ca = End("ca", "/etc/ca.pem", "CN=a", 7)
    earlier, other = End("ca", "/etc/ca.pem", "CN=b", 5), END
    assert first_end_by_file([ca, earlier, other]) == {"/etc/ca.pem": earlier, END.path: END}
