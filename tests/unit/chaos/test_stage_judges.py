"""What stages ask before they act, the same for processes and simulations: contacts, who alone knows, and the word to give."""

from random import Random
from typing import Any

from chaos.judges.contacts import NEVER, Contacts
from chaos.judges.knowledge import Knowledge
from chaos.judges.operator import Order, settled, without_counts, word_for
from chaos.story import Separation


def view(phase: str, number: int, *, role: str = "mirror", epoch: int = 8) -> dict[str, Any]:
    """What a region says of itself."""
    return {
        "phase": phase, "role": role, "acting": role == "acting", "region_epoch": epoch,
        "reason_not_acting": "", "tidemark": {"region_epoch": epoch, "number": number},
    }  # fmt: skip


ACTS = view("acting", 5, role="acting")


def test_a_separation_lasts_from_when_two_lost_touch_until_they_talk_again() -> None:
    found: list[Separation] = []
    contacts = Contacts(("eu", "us", "ap"), found)
    contacts.note(1.0, lambda one, other: "eu" in (one, other))
    assert (contacts.alone_since_s("eu"), contacts.alone_since_s("us")) == (1.0, NEVER)
    contacts.note(2.0, lambda one, other: (one, other) == ("eu", "us"))
    assert found == [Separation(1.0, 2.0, "ap", "eu")]
    contacts.end()
    assert found[1:] == [Separation(1.0, NEVER, "eu", "us")]


def test_INV_SHS3_a_folder_is_taken_away_only_where_a_whole_one_knows_as_much() -> None:
    views = {"eu": ACTS, "us": view("mirroring", 4)}
    knowledge = Knowledge()
    assert knowledge.others_know("us", views, views.get, alone=False)
    knowledge.note_damage("eu")
    assert not knowledge.others_know("us", views, views.get, alone=False)
    views["us"] = view("mirroring", 5)  # it has reached all that the damaged one published
    assert knowledge.others_know("us", views, views.get, alone=False)


def test_INV_SHS3_a_number_that_a_mirror_had_reached_before_the_damage_proves_nothing() -> None:
    """An older copy acts out of touch, and publishes the numbers again that only the mirror knows the content of."""
    views = {"eu": view("acting", 6, role="acting"), "us": view("mirroring", 6)}
    knowledge = Knowledge()
    assert knowledge.others_know("us", views, views.get, alone=False)
    knowledge.note_damage("eu")
    views["eu"] = view("acting", 4, role="acting")
    assert not knowledge.others_know("us", views, views.get, alone=False)
    views["eu"] = view("acting", 6, role="acting")
    assert not knowledge.others_know("us", views, views.get, alone=False)
    views |= {"eu": view("acting", 7, role="acting"), "us": view("mirroring", 7)}
    assert knowledge.others_know("us", views, views.get, alone=False)


def test_INV_SHS3_who_acts_alone_keeps_its_folder_while_another_acts_out_of_reach() -> None:
    views = {"eu": ACTS, "us": view("acting", 7, role="acting", epoch=17)}
    assert not Knowledge().others_know("eu", views, views.get, alone=True)
    assert Knowledge().others_know("eu", views, views.get, alone=False)


def test_the_word_goes_to_who_has_shown_most_and_to_nobody_without_history() -> None:
    fenced, later = view("fenced", 9), view("fenced", 2, epoch=17)
    assert word_for({"eu": fenced, "us": later}, Random(1)) == Order("failover", "us")
    assert word_for({"eu": view("disputed", 9)}, Random(1)) == Order("accept-loss", "eu")
    assert word_for({"eu": view("unborn", 0)}, Random(1)) is None


def test_regions_are_settled_when_one_acts_and_the_others_mirror_its_epoch() -> None:
    mirror = view("mirroring", 5)
    assert settled({"eu": ACTS, "us": mirror})
    assert not settled({"eu": ACTS, "us": view("mirroring", 5, epoch=17)})
    assert not settled({"eu": ACTS, "us": ACTS})
    assert without_counts("waits since 12 s, 3 ms") == without_counts("waits since 13 s, 4 ms")
