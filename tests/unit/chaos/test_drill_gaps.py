"""How long clients stood still, by phase (INV-DRG1)."""

from chaos.drill.gaps import Phase, gaps_s, longest_gap_s


def test_INV_DRG1_a_standstill_is_cut_where_a_phase_ends() -> None:
    outage, after = Phase("outage", 10.0, 14.0, outage=True), Phase("after", 14.0, 20.0)
    commits_s = {"quick": [9.5, 14.5, 15.0, 19.0, 21.0], "stuck": [9.9, 20.5], "silent": []}
    assert gaps_s(commits_s, [outage, after]) == {
        "outage": {"quick": 4.0, "stuck": 4.0, "silent": 4.0},
        "after": {"quick": 4.0, "stuck": 6.0, "silent": 6.0},
    }


def test_a_phase_without_a_pause_has_the_gaps_between_commits() -> None:
    assert longest_gap_s([1.0, 1.5, 3.5, 4.0], Phase("calm", 1.0, 4.0)) == 2.0
