"""Rule T36: which of several starts of one region goes on."""

from hypothesis import given
from hypothesis import strategies as st

from geo_replicator.folder_life import (
    INCARNATIONS_KEPT,
    LATE_MS,
    LIVES_HEARD_MAX,
    TWICE_MS,
    Chain,
    Shown,
)
from geo_replicator.known_lives import SILENT_MS, KnownLives, Standing

KNOWN, UNDECIDED, REFUSED = Standing.KNOWN, Standing.UNDECIDED, Standing.REFUSED
DEPOSED = Standing.DEPOSED


def start(*incarnations: str, folder: str = "f", aside: bool = False) -> Shown:
    return Shown(
        folder_id=folder,
        incarnations=incarnations,
        incarnation_count=len(incarnations),
        aside=aside,
    )


FIRST, NEXT, COPY = start("a"), start("a", "b"), start("a", "c")


class Region:
    """What one node hears of region eu."""

    def __init__(self, *heard: Shown, remembered: Shown | None = None) -> None:
        self.lives = KnownLives({} if remembered is None else {"eu": remembered})
        self.now_ms = 0
        for shown in heard:
            self.shakes_hands(shown)

    def shakes_hands(
        self, shown: Shown | None, *, after_ms: int = 0, answers: bool = False
    ) -> Standing:
        self.now_ms += after_ms
        return self.lives.hear("eu", shown, self.now_ms, at_address=answers)

    def asks(self, shown: Shown, *, after_ms: int = 0) -> Standing:
        """Hear a request in a session that began with `shown`."""
        self.now_ms += after_ms
        return self.lives.hear("eu", shown, self.now_ms, at_address=False, is_handshake=False)


def test_INV_KL1_a_start_is_let_in_once_the_one_before_it_has_ended() -> None:
    region = Region()
    assert region.shakes_hands(FIRST) is KNOWN
    assert region.shakes_hands(NEXT) is UNDECIDED
    assert region.shakes_hands(NEXT, after_ms=SILENT_MS - 1) is UNDECIDED
    assert region.shakes_hands(NEXT, after_ms=1) is KNOWN
    assert region.lives.known("eu") == NEXT


def test_INV_KL2_a_copy_is_refused_as_soon_as_the_known_start_has_spoken_after_it() -> None:
    for copied in (NEXT, COPY, start("z"), start("a", folder="g")):
        region = Region(FIRST, copied)
        assert region.shakes_hands(FIRST, after_ms=LATE_MS) is KNOWN
        assert region.shakes_hands(copied) is UNDECIDED, "said before its end, and late on its way"
        assert region.shakes_hands(FIRST, after_ms=1) is KNOWN
        assert region.shakes_hands(copied) is REFUSED
        assert region.shakes_hands(FIRST, after_ms=TWICE_MS - 1) is KNOWN
        assert region.shakes_hands(copied) is REFUSED
        assert region.lives.known("eu") == FIRST


def test_INV_KL2_an_answer_at_the_address_tells_at_once_who_runs() -> None:
    region = Region(FIRST, COPY)
    assert region.shakes_hands(FIRST, answers=True) is KNOWN
    assert region.shakes_hands(COPY) is REFUSED


def test_INV_KL3_a_restart_answers_at_the_address_and_is_let_in_at_once() -> None:
    region = Region(FIRST, NEXT)
    assert region.shakes_hands(NEXT, answers=True) is KNOWN
    assert region.shakes_hands(NEXT) is KNOWN


def test_INV_KL3_what_the_one_before_said_last_may_arrive_after_the_handshake_of_the_restart() -> (
    None
):
    region = Region(FIRST, NEXT)
    assert region.shakes_hands(FIRST, answers=True) is KNOWN
    assert region.shakes_hands(NEXT) is REFUSED
    assert region.shakes_hands(NEXT, after_ms=LATE_MS, answers=True) is KNOWN
    for late_ms in (1, LATE_MS):
        region = Region(FIRST, NEXT)
        assert region.shakes_hands(FIRST, after_ms=late_ms) is KNOWN
        assert region.shakes_hands(NEXT, answers=True) is KNOWN


def test_INV_KL3_a_copy_at_the_address_is_refused_while_the_known_one_is_heard() -> None:
    region = Region(FIRST, COPY)
    assert region.shakes_hands(FIRST, after_ms=LATE_MS + 1) is KNOWN
    assert region.shakes_hands(COPY, answers=True) is REFUSED


def test_INV_KL4_a_copy_that_was_refused_waits_longer_than_a_stall_of_the_known_one() -> None:
    region = Region(FIRST, COPY)
    region.shakes_hands(FIRST, answers=True)
    for _ in range(TWICE_MS // 100 - 1):
        assert region.shakes_hands(COPY, after_ms=100) is REFUSED
    assert region.shakes_hands(COPY, after_ms=100) is KNOWN


def test_INV_KL5_a_start_that_stands_aside_keeps_nobody_out() -> None:
    aside = start("a", "c", aside=True)
    region = Region(aside)
    assert region.shakes_hands(FIRST) is KNOWN
    assert region.shakes_hands(aside) is UNDECIDED
    region.shakes_hands(FIRST, answers=True)
    assert region.shakes_hands(aside) is REFUSED


def test_INV_KL5_a_start_that_was_let_in_is_displaced_by_no_copy() -> None:
    aside = start("a", "b", aside=True)
    for region in (Region(FIRST, aside), Region(remembered=FIRST.to_remember())):
        assert region.shakes_hands(aside, answers=True) is KNOWN
        assert region.asks(aside) is KNOWN, "its session tells what was true before"
        assert region.shakes_hands(COPY) is UNDECIDED
        assert region.asks(aside, after_ms=LATE_MS + 1) is KNOWN
        assert region.shakes_hands(COPY) is REFUSED


def test_INV_KL5_a_session_whose_handshake_said_aside_says_so_no_more_once_it_goes_on() -> None:
    aside = start("a", "b", aside=True)
    region = Region(FIRST)
    assert region.shakes_hands(aside, answers=True) is KNOWN
    assert region.shakes_hands(aside) is KNOWN, (
        "its link makes a handshake before it has heard that it was let in"
    )
    for _ in range(SILENT_MS // 1_000):
        assert region.asks(aside, after_ms=1_000) is KNOWN
    assert region.shakes_hands(COPY) is UNDECIDED


def test_INV_KL6_of_two_that_stand_aside_the_one_that_is_left_is_let_in() -> None:
    known, other = start("a", aside=True), start("a", "c", aside=True)
    region = Region(FIRST, COPY)
    region.shakes_hands(FIRST, answers=True)
    assert region.shakes_hands(other) is REFUSED
    region.shakes_hands(known)  # a third region knows the other one, and refuses this one
    assert region.shakes_hands(other, after_ms=TWICE_MS - 1) is REFUSED
    assert region.shakes_hands(other, after_ms=1) is KNOWN


def test_INV_KL5_a_known_start_that_comes_to_stand_aside_gives_way() -> None:
    region = Region(FIRST)
    assert region.shakes_hands(start("a", aside=True)) is KNOWN
    assert region.shakes_hands(COPY) is KNOWN
    assert region.lives.known("eu") == COPY


def test_INV_KL5_of_two_that_stand_aside_neither_takes_the_place_and_neither_is_refused() -> None:
    known, copied = start("a", aside=True), start("a", "c", aside=True)
    region = Region(FIRST, COPY)
    region.shakes_hands(copied)
    for _ in range(2):
        assert region.shakes_hands(known, after_ms=LATE_MS + 1) is KNOWN
        assert region.shakes_hands(copied, answers=True) is UNDECIDED
    assert region.shakes_hands(COPY) is KNOWN, "it was let in elsewhere"


def test_INV_KL2_each_of_several_copies_is_refused() -> None:
    region = Region(FIRST, COPY, start("a", "d"))
    region.shakes_hands(FIRST, answers=True)
    assert region.shakes_hands(COPY) is REFUSED
    assert region.shakes_hands(start("a", "d")) is REFUSED


def test_INV_KL2_a_copy_that_went_away_is_forgotten_and_met_for_the_first_time_when_it_comes_again() -> (
    None
):
    region = Region(FIRST, COPY)
    region.shakes_hands(FIRST, answers=True)
    assert region.lives.is_contested("eu")
    region.shakes_hands(FIRST, after_ms=TWICE_MS + 1)
    assert not region.lives.is_contested("eu")
    assert region.shakes_hands(COPY, answers=True) is KNOWN, (
        "it has the address, and nobody spoke since"
    )


def test_of_many_copies_only_the_last_few_are_remembered() -> None:
    region = Region(FIRST, *(start("a", f"c{number}") for number in range(3 * LIVES_HEARD_MAX)))
    assert len(region.lives._known["eu"].newer) == LIVES_HEARD_MAX


def test_T36_a_start_that_is_remembered_from_before_is_waited_for() -> None:
    region = Region(remembered=FIRST.to_remember())
    assert region.shakes_hands(NEXT, after_ms=SILENT_MS) is UNDECIDED
    assert region.shakes_hands(NEXT, after_ms=SILENT_MS) is KNOWN
    heard = Region(remembered=FIRST.to_remember())
    heard.shakes_hands(COPY)
    assert heard.shakes_hands(FIRST, answers=True) is KNOWN
    assert heard.shakes_hands(COPY) is REFUSED


def test_T36_a_version_that_does_not_tell_its_start_is_let_in() -> None:
    region = Region(FIRST)
    assert region.shakes_hands(None) is KNOWN
    assert region.shakes_hands(Shown()) is KNOWN


def elections(count: int, *, starts: int = 1) -> list[Shown]:
    """Return a chain, start by start: the first ones are of the folder that founded the region, the others are elections."""
    chain, shown = Chain(), []
    for number in range(count):
        chain = chain.with_start(f"i{number}")
        shown.append(
            Shown(
                folder_id="f", incarnations=chain.newest, incarnation_count=chain.count,
                elected=number >= starts,
            )
        )  # fmt: skip
    return shown


BORN, *LED = elections(4)


def test_INV_KL7_who_was_elected_after_the_known_one_is_known_at_once_though_that_one_is_heard() -> (
    None
):
    region = Region(BORN)
    for earlier, later in zip([BORN, *LED], LED, strict=False):
        assert region.shakes_hands(earlier, after_ms=LATE_MS + 1, answers=True) is KNOWN
        assert region.shakes_hands(later) is KNOWN
        assert region.lives.known("eu") == later
        assert not region.lives.is_contested("eu")


def test_INV_KL7_whoever_led_before_is_refused_for_good_also_at_the_address() -> None:
    region = Region(LED[-1])
    for earlier in (BORN, *LED[:-1]):
        assert region.shakes_hands(earlier) is DEPOSED
        assert region.shakes_hands(earlier, answers=True) is DEPOSED
        assert region.asks(earlier, after_ms=2 * TWICE_MS) is DEPOSED, "and nobody else is heard"
    assert region.lives.known("eu") == LED[-1]
    assert not region.lives.is_contested("eu")


def test_INV_KL7_it_is_refused_by_whoever_remembers_the_later_one_from_before() -> None:
    region = Region(remembered=LED[-1].to_remember())
    for earlier in (BORN, *LED[:-1]):
        assert region.shakes_hands(earlier, answers=True) is DEPOSED
    assert region.shakes_hands(LED[-1]) is KNOWN


def test_INV_KL7_one_that_fell_out_of_the_chain_is_refused() -> None:
    *_, last = long_ago, *_ = elections(INCARNATIONS_KEPT + 5)
    region = Region(last)
    assert region.shakes_hands(long_ago, answers=True) is DEPOSED
    assert Region(long_ago).shakes_hands(last) is KNOWN


def test_INV_KL7_copies_of_all_folders_of_a_region_part_its_chain_and_go_by_the_other_rules() -> (
    None
):
    copied = Shown(
        folder_id="f",
        incarnations=(*LED[1].incarnations, "copy"),
        incarnation_count=LED[1].incarnation_count + 1,
        elected=True,
    )
    region = Region(LED[-1])
    assert region.shakes_hands(copied) is UNDECIDED
    assert region.shakes_hands(LED[-1], answers=True) is KNOWN
    assert region.shakes_hands(copied) is REFUSED
    assert region.shakes_hands(copied, after_ms=TWICE_MS) is KNOWN


def test_INV_KL7_a_start_that_nobody_elected_proves_nothing() -> None:
    region = Region(FIRST)
    assert region.shakes_hands(NEXT) is UNDECIDED
    region = Region(NEXT)
    assert region.shakes_hands(FIRST) is UNDECIDED


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.booleans(), st.booleans(), st.integers(0, 2 * TWICE_MS)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 3),
)
def test_INV_KL7_a_chain_of_elections_in_any_order_ends_with_the_latest_and_never_goes_back(
    heard: list[tuple[int, bool, bool, int]], forgets_every: int
) -> None:
    chain = elections(100, starts=2)
    chain[0] = chain[1]  # of starts of a folder no order is known
    region, latest = Region(), -1
    for at, (number, is_handshake, answers, after_ms) in enumerate(heard):
        if at % (10 * forgets_every) == 0 and (known := region.lives.known("eu")):
            region.lives = KnownLives({"eu": known.to_remember()})  # it was started again
        region.now_ms += after_ms
        shown = chain[number]
        standing = region.lives.hear(
            "eu", shown, region.now_ms, at_address=answers, is_handshake=is_handshake
        )
        link = max(number, 1)
        assert standing is (KNOWN if link >= latest else DEPOSED)
        latest = max(latest, link)
        assert region.lives.known("eu") == chain[latest]
