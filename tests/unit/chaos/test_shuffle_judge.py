"""The judge of random sequences, on stories told by hand: each way to be wrong, and what a word covers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos.shuffle.judge import LASTS_S, NEWS_TAKES_S, judge
from chaos.story import Damage, Gone, Place, Refusal, Separation, Sighting, Story, Word

KEPT = Place("plain", 0, 0, "0.1 1")
LOST = Place("plain", 0, 1, "0.1 2")
FAILOVER = Word("failover", "us", 20.0, 21.0)
NAMED = Gone("plain", 0, 1, 5)


def acked(place: Place, at_s: float, region: str = "eu") -> Sighting:
    return Sighting(at_s, region, place, False)


def shown(place: Place, at_s: float, region: str = "eu") -> Sighting:
    return Sighting(at_s, region, place, True)


def story(
    *sightings: Sighting, words: Sequence[Word] = (), damages: Sequence[Damage] = (),
    separations: Sequence[Separation] = (), gone: Sequence[Gone] = (),
) -> Story:  # fmt: skip
    """Return a story at whose end both regions show `KEPT` and nothing else."""
    return Story(
        sightings=sightings, words=list(words), damages=list(damages), separations=list(separations),
        gone=gone, final={"eu": frozenset({KEPT}), "us": frozenset({KEPT})},
    )  # fmt: skip


def kinds(told: Story) -> list[str]:
    return sorted({each.split(":")[0] for each in judge(told, "plain")})


SILENT = "gone without a word"
UNNAMED = "gone and not named by losses"


def test_a_sound_story_has_nothing_wrong() -> None:
    assert kinds(story(acked(KEPT, 1), shown(KEPT, 2, "us"))) == []


@pytest.mark.parametrize("sighting", [acked(LOST, 1), shown(LOST, 1), shown(LOST, 1, "us")])
def test_INV_SHJ1_what_was_seen_is_there_or_a_word_was_given(sighting: Sighting) -> None:
    assert kinds(story(sighting)) == [SILENT]


def test_INV_SHJ1_an_acknowledgement_without_offset_counts() -> None:
    assert kinds(story(acked(KEPT._replace(offset=-1), 1))) == []
    assert kinds(story(acked(LOST._replace(offset=-1), 1))) == [SILENT]


def test_INV_SHJ1_a_record_that_moved_is_gone_from_where_it_was() -> None:
    assert kinds(story(acked(KEPT._replace(offset=7), 1))) == [SILENT]


def test_INV_SHJ2_a_word_covers_what_was_seen_before_it_was_carried_out() -> None:
    assert kinds(story(acked(LOST, 20.5), words=(FAILOVER,), gone=[NAMED])) == []


def test_INV_SHJ2_what_an_earlier_word_took_from_the_region_that_is_to_act_is_not_held_by_it() -> (
    None
):
    """1. eu shows a record. 2. us takes over without it; it is made again, at the same place. 3. eu takes over without it."""
    back = Word("failover", "eu", 30.0, 31.0)
    seen = shown(LOST, 1, "eu"), shown(LOST, 25, "us")
    assert kinds(story(*seen, words=(FAILOVER, back), gone=[NAMED])) == []
    again = shown(LOST, 21 + NEWS_TAKES_S + 1, "eu")  # and as a mirror of us
    assert kinds(story(*seen, again, words=(FAILOVER, back), gone=[NAMED])) == [SILENT]
    early = shown(LOST, 2, "us")  # the first word did not cover it: us had shown it
    assert kinds(story(*seen, early, words=(FAILOVER, back), gone=[NAMED])) == [SILENT]


def test_INV_SHJ2_a_word_covers_nothing_that_the_region_that_was_to_act_had_shown() -> None:
    told = story(acked(LOST, 1), shown(LOST, 2, "us"), words=(FAILOVER,), gone=[NAMED])
    assert kinds(told) == [SILENT]


def test_INV_SHJ2_unless_its_folder_was_damaged_since() -> None:
    sightings = (acked(LOST, 1), shown(LOST, 2, "us"))
    damaged = [Damage(3.0, "us")]
    assert kinds(story(*sightings, words=(FAILOVER,), damages=damaged)) == []
    again = shown(LOST, 4, "us")
    assert kinds(story(*sightings, again, words=(FAILOVER,), damages=damaged)) == [SILENT]


def test_INV_SHJ2_what_is_seen_after_the_word_in_a_region_that_had_heard_stays() -> None:
    late = acked(LOST, FAILOVER.done_s + NEWS_TAKES_S + 1)
    assert kinds(story(late, words=(FAILOVER,), gone=[NAMED])) == [SILENT]
    assert kinds(story(late._replace(region="us"), words=(FAILOVER,), gone=[NAMED])) == [SILENT]


def test_INV_SHJ2_what_a_region_says_that_was_cut_off_goes_when_it_hears() -> None:
    late = acked(LOST, 50.0)
    cut = [Separation(15.0, 49.0, "eu", "us")]
    assert kinds(story(late, words=(FAILOVER,), gone=[NAMED], separations=cut)) == []
    healed = [Separation(15.0, 50.0 - NEWS_TAKES_S - 1, "eu", "us")]
    assert kinds(story(late, words=(FAILOVER,), gone=[NAMED], separations=healed)) == [SILENT]


def test_INV_SHJ2_an_older_folder_has_not_heard_either() -> None:
    late = acked(LOST, 50.0)
    apart = [Separation(40.0, 52.0, "eu", "us")]
    told = story(late, words=(FAILOVER,), separations=apart)
    assert kinds(replace(told, damages=[Damage(45.0, "eu")])) == []
    assert kinds(told) == [UNNAMED, SILENT]


def test_INV_SHJ2_who_took_over_unheard_takes_with_its_folder_what_it_alone_had() -> None:
    late = acked(LOST, FAILOVER.done_s + 1)._replace(region="us")
    unheard = [Separation(FAILOVER.given_s - 1, FAILOVER.done_s + 30, "eu", "us")]
    emptied = [Damage(FAILOVER.done_s + 3, "us")]
    told = story(late, words=(FAILOVER,), separations=unheard, damages=emptied)
    assert kinds(told) == []
    assert kinds(replace(told, damages=[])) == [UNNAMED, SILENT]
    assert kinds(replace(told, damages=[Damage(FAILOVER.done_s + 0.5, "us")])) == [SILENT]
    heard = [Separation(FAILOVER.given_s - 1, FAILOVER.done_s + 1, "eu", "us")]
    later = [Damage(FAILOVER.done_s + 1 + NEWS_TAKES_S + 1, "us")]
    assert kinds(replace(told, separations=heard, damages=later)) == [SILENT]
    assert kinds(replace(told, words=[])) == [SILENT]


def test_INV_SHJ3_what_a_word_cost_is_named_by_the_losses() -> None:
    told = story(acked(LOST, 1), words=(FAILOVER,))
    assert kinds(told) == [UNNAMED]
    assert kinds(replace(told, listed_all=False)) == []
    assert kinds(replace(told, damages=[Damage(0.5, "eu")])) == []


def test_INV_SHJ4_doubled_disordered_and_differing_records_are_found() -> None:
    twice = KEPT._replace(offset=3)
    before = Place("plain", 0, 4, "0.1 0")
    final = {"eu": frozenset({KEPT, twice, before}), "us": frozenset({KEPT})}
    assert kinds(replace(story(), final=final)) == [
        "doubled in eu",
        "only eu, not us, shows",
        "out of order in eu",
    ]


@pytest.mark.parametrize(
    ("lasts_s", "reason", "wrong"),
    [
        (0.0, "", True),
        (0.0, "it starts", False),
        (LASTS_S, "it has no history", True),
        (LASTS_S, "it has no history: tidemark region failover --to us", False),
    ],
)
def test_INV_SHJ5_a_refusal_says_why_and_one_that_lasts_the_way_out(
    lasts_s: float, reason: str, wrong: bool
) -> None:
    refusal = Refusal("eu", 5.0, 5.0 + lasts_s, {"region": reason})
    told = replace(story(), refusals=[refusal])
    assert kinds(told) == (["a refusal that does not say the way out"] if wrong else [])
