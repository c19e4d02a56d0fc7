"""A producer that another instance has replaced stops, and never fences that one in turn (INV-CP3, INV-CP20, INV-CP21).

Method: regions that tell what the test says, and a librdkafka producer that is fenced; whether a new producer id is asked
for is counted. No broker, no HTTP.
"""

from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch
from region_broker.client import Fenced, TransactionalProducer, Unreachable, transactional_producer
from region_broker.client.succession import Succession
from region_broker.client.timeouts import Timeouts
from region_broker.client.verdicts import Standing, VerdictClient

BEFORE, SWITCHED, LATER = RegionEpoch(8), RegionEpoch(16), RegionEpoch(24)
FENCED = KafkaError(KafkaError._FENCED)
LOST = KafkaError(KafkaError._TIMED_OUT)


def pair(
    producer_epoch: int, region_epoch: RegionEpoch, state: str = "empty", *, last: int | None = -1, producer_id: int = 7,
    previous_id: int | None = None,
) -> Standing:  # fmt: skip
    return Standing(
        state, ProducerId(producer_id), ProducerEpoch(producer_epoch), region_epoch,
        None if last is None else ProducerEpoch(last), None if previous_id is None else ProducerId(previous_id),
    )  # fmt: skip


OWN = pair(3, BEFORE)


class Regions:
    """`VerdictClient` that tells what it is told to; one whose `silent_count` is not used up does not tell who holds the id."""

    can_ask = True

    def __init__(self) -> None:
        self.acting: RegionEpoch | None = BEFORE
        self.stands: Standing | None = OWN
        self.silent_count = 0
        self.asked_count = 0

    async def region_epoch(self) -> RegionEpoch | None:
        return self.acting

    async def standing(self, _transactional_id: str) -> Standing | None:
        self.asked_count += 1
        if self.silent_count > 0:
            self.silent_count -= 1
            raise Unreachable("it does not tell")
        return self.stands


class Kafka:
    """A librdkafka producer whose next call fails with `error`, once there is one."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.on_abort: Callable[[], None] = lambda: None

    def begin_transaction(self) -> None:
        if self.error is not None:
            raise KafkaException(self.error)

    def abort_transaction(self, _timeout_s: float) -> None:
        self.on_abort()

    def flush(self, _timeout_s: float) -> int:
        return 0

    def commit_transaction(self, _timeout_s: float) -> None:
        """It is."""

    def __len__(self) -> int:
        return 0


class Instance:
    """A producer that was given `OWN`, and how often it asks for a producer id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, recovery_s: float = 60.0) -> None:
        self.kafkas: list[Kafka] = []
        self.on_init: Callable[[], None] = lambda: None
        monkeypatch.setattr(transactional_producer, "initialised", self._initialised)
        monkeypatch.setattr(transactional_producer, "backoff_s", lambda _count: 0.0)
        self.producer = TransactionalProducer(
            bootstrap="nowhere", transactional_id="p", timeouts=Timeouts(recovery_s=recovery_s, call_s=recovery_s)
        )  # fmt: skip
        self.regions = Regions()
        self.producer._verdicts = cast("VerdictClient", self.regions)

    def _initialised(self, *_arguments: object) -> Kafka:
        self.on_init()
        self.kafkas.append(Kafka())
        return self.kafkas[-1]

    @property
    def given_count(self) -> int:
        return len(self.kafkas)

    async def meets(self, error: KafkaError) -> None:
        """Begin a transaction whose beginning meets `error`."""
        self.kafkas[-1].error = error
        async with self.producer.transaction():
            pass


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Instance:
    return Instance(monkeypatch)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Instance:
    """One that waits for nobody."""
    return Instance(monkeypatch, recovery_s=0.000_001)


async def began(instance: Instance) -> Regions:
    await instance.producer.start()
    assert instance.given_count == 1
    return instance.regions


@pytest.mark.parametrize("error", [FENCED, LOST])
@pytest.mark.parametrize(
    ("acting", "stands"),
    [
        (SWITCHED, pair(4, BEFORE, "ongoing")),  # began, then a planned switch
        (SWITCHED, pair(4, BEFORE, "complete_abort")),  # and aborted by itself what it had
        (SWITCHED, pair(5, BEFORE, "complete_commit")),
        (LATER, pair(0, SWITCHED, "ongoing", producer_id=9)),  # began after a failover, then a switch
        (SWITCHED, pair(0, SWITCHED, "ongoing", producer_id=9)),
        (BEFORE, pair(4, BEFORE, "ongoing")),
    ],
)  # fmt: skip
async def test_INV_CP20_another_instance_is_not_fenced_whichever_region_acts(
    instance: Instance, acting: RegionEpoch, stands: Standing, error: KafkaError
) -> None:
    regions = await began(instance)
    regions.acting, regions.stands = acting, stands
    for _ in range(2):
        with pytest.raises(Fenced, match="another producer uses"):
            await instance.meets(error)
    assert instance.given_count == 1


@pytest.mark.parametrize(
    "stands",
    [
        OWN,  # out of force, as the region failed over
        pair(4, BEFORE, "complete_abort", last=3),  # and what was open was aborted there
        pair(4, BEFORE, "complete_abort", last=None),  # by a region of an older version
        pair(2, BEFORE, "complete_commit"),  # the own pair was lost with the region
        pair(9, RegionEpoch(0), "complete_commit", producer_id=5),
        None,
    ],
)
async def test_INV_CP3_a_failover_is_answered_by_a_new_producer_id(
    instance: Instance, stands: Standing | None
) -> None:
    regions = await began(instance)
    regions.acting, regions.stands = SWITCHED, stands

    def given() -> None:
        regions.stands = pair(0, SWITCHED, producer_id=11)

    instance.on_init = given
    await instance.meets(FENCED)
    assert instance.given_count == 2


async def test_INV_CP21_a_region_that_does_not_tell_is_asked_again(instance: Instance) -> None:
    regions = await began(instance)
    regions.acting, regions.stands = SWITCHED, pair(0, SWITCHED, "ongoing", producer_id=9)
    regions.silent_count = 3
    with pytest.raises(Fenced):
        await instance.meets(FENCED)
    assert instance.given_count == 1
    assert regions.silent_count == 0


async def test_INV_CP21_while_nobody_tells_no_producer_id_is_asked_for(
    hasty: Instance,
) -> None:
    instance = hasty
    regions = await began(instance)
    regions.acting, regions.silent_count = SWITCHED, 1_000
    for _ in range(2):
        with pytest.raises(Unreachable, match="does not tell"):
            await instance.meets(FENCED)
    assert instance.given_count == 1
    regions.silent_count = 0
    regions.stands = pair(0, SWITCHED, "ongoing", producer_id=9)
    with pytest.raises(Fenced):
        await instance.meets(FENCED)


async def test_INV_CP20_a_producer_id_that_was_asked_for_without_an_answer_counts_as_the_own(
    instance: Instance,
) -> None:
    regions = await began(instance)
    regions.acting = SWITCHED

    def lost() -> None:
        regions.stands = pair(0, SWITCHED, producer_id=11)
        raise Unreachable("the answer is lost")

    instance.on_init = lost
    with pytest.raises(Unreachable, match="the answer is lost"):
        await instance.meets(FENCED)
    instance.on_init = lambda: None
    async with instance.producer.transaction():
        pass
    assert instance.given_count == 2


async def test_INV_CP20_one_that_was_cancelled_looks_before_it_asks_for_a_producer_id(
    instance: Instance,
) -> None:
    regions = await began(instance)
    instance.producer._usable = False  # a commit that was cancelled leaves it so
    regions.stands = pair(4, BEFORE, "ongoing")
    with pytest.raises(Fenced):
        async with instance.producer.transaction():
            pass
    assert instance.given_count == 1


def test_INV_CP20_what_came_in_between_is_not_taken_for_the_own_pair() -> None:
    succession = Succession()
    succession.hold(pair(4, BEFORE, "ongoing"))
    assert not succession.is_known


def test_INV_CP20_an_abort_that_brought_the_next_epoch_is_followed_and_another_instance_is_not() -> (
    None
):
    succession = Succession()
    succession.hold(OWN)
    succession.follow(pair(4, BEFORE))
    assert succession.is_anothers(pair(4, BEFORE), timed_out=False)
    succession.follow(pair(4, BEFORE, last=3))
    assert not succession.is_anothers(pair(5, BEFORE, "complete_abort", last=4), timed_out=False)
    assert succession.is_anothers(pair(5, BEFORE, "complete_abort"), timed_out=False)
    assert not succession.is_anothers(pair(5, BEFORE, "complete_abort"), timed_out=True)


@pytest.mark.parametrize(
    "bumped",
    [
        pair(4, SWITCHED, last=3),
        pair(0, SWITCHED, producer_id=11, last=3, previous_id=7),  # over a failover (T22)
    ],
)
def test_INV_CP20_an_abort_that_brought_the_next_pair_in_another_region_epoch_is_the_own(
    bumped: Standing,
) -> None:
    succession = Succession()
    succession.hold(OWN)
    assert not succession.is_anothers(bumped, timed_out=False)
    succession.follow(bumped)
    assert succession.is_anothers(pair(6, SWITCHED, "ongoing"), timed_out=False)
    assert not succession.is_anothers(bumped, timed_out=False)


@pytest.mark.parametrize(
    "stands",
    [
        pair(4, SWITCHED),
        pair(4, SWITCHED, "complete_abort", last=None),
        pair(5, SWITCHED, last=4),
        pair(0, SWITCHED, producer_id=11, last=4, previous_id=7),
        pair(0, SWITCHED, producer_id=11, last=3, previous_id=8),
        pair(0, SWITCHED, producer_id=11),
    ],
)
def test_INV_CP20_what_was_not_bumped_for_the_own_pair_is_anothers(stands: Standing) -> None:
    succession = Succession()
    succession.hold(OWN)
    succession.follow(stands)
    assert succession.is_anothers(stands, timed_out=False)


@pytest.mark.parametrize("silent_count", [0, 1_000])
@pytest.mark.parametrize(
    "bumped",
    [pair(4, SWITCHED, last=3), pair(0, SWITCHED, producer_id=11, last=3, previous_id=7)],
)
async def test_INV_CP20_an_abort_that_takes_a_pair_of_the_next_region_epoch_does_not_end_the_producer(
    hasty: Instance, bumped: Standing, silent_count: int
) -> None:
    regions = await began(hasty)

    def bump() -> None:
        regions.acting, regions.stands, regions.silent_count = SWITCHED, bumped, silent_count

    hasty.kafkas[-1].on_abort = bump
    with pytest.raises(ValueError, match="the application's"):
        async with hasty.producer.transaction():
            raise ValueError("the application's")
    regions.silent_count = 0
    async with hasty.producer.transaction():
        pass
    assert hasty.given_count == 2, "its pair is told to belong to the region epoch that acts"
