"""A producer that another instance has replaced stops, and never fences that one in turn (INV-CP3, INV-CP20 to INV-CP22).

Method: regions that tell what the test says, and a librdkafka producer that is fenced; whether a new producer id is asked
for is counted. No broker, no HTTP.
"""

import asyncio
import threading
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
OF_ANOTHER = pair(0, SWITCHED, "ongoing", producer_id=9)
WAIT_S = 30.0


class Regions:
    """`VerdictClient` that tells what it is told to; one whose `silent_count` is not used up does not tell who holds the id."""

    can_ask = True

    def __init__(self) -> None:
        self.acting: RegionEpoch | None = BEFORE
        self.stands: Standing | None = None
        self.silent_count = 0
        self.asked_count = 0

    def give(self) -> None:
        """Give a producer id, as the region does that acts."""
        if self.acting is None:
            return
        stood = self.stands
        self.stands = (
            pair(stood.producer_epoch + 1, self.acting, producer_id=stood.producer_id)
            if stood is not None
            else OWN
        )

    async def region_epoch(self) -> RegionEpoch | None:
        return self.acting

    async def standing(self, _transactional_id: str) -> Standing | None:
        self.asked_count += 1
        if self.silent_count > 0 or self.acting is None:
            self.silent_count = max(0, self.silent_count - 1)
            raise Unreachable("it does not tell")
        return self.stands


class Kafka:
    """A librdkafka producer whose next call fails with `error`, once there is one."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.on_abort: Callable[[], None] = lambda: None
        self.on_commit: Callable[[], None] = lambda: None

    def begin_transaction(self) -> None:
        if self.error is not None:
            raise KafkaException(self.error)

    def abort_transaction(self, _timeout_s: float) -> None:
        self.on_abort()

    def flush(self, _timeout_s: float) -> int:
        return 0

    def commit_transaction(self, _timeout_s: float) -> None:
        self.on_commit()

    def __len__(self) -> int:
        return 0


class Instance:
    """A producer that was given `OWN`, and how often it asks for a producer id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, recovery_s: float = 60.0) -> None:
        self.kafkas: list[Kafka] = []
        self.on_init: Callable[[], None] = lambda: None
        """What happens while an id is asked for; an id is given where that changes nothing about what stands."""
        monkeypatch.setattr(transactional_producer, "initialised", self._initialised)
        self.on_wait: Callable[[], None] = lambda: None
        self.limits_s: list[float] = []
        """How long each request for a producer id may wait."""
        monkeypatch.setattr(transactional_producer, "backoff_s", self._waited)
        self.producer = TransactionalProducer(
            bootstrap="nowhere", transactional_id="p", timeouts=Timeouts(recovery_s=recovery_s, call_s=recovery_s / 4)
        )  # fmt: skip
        self.regions = Regions()
        self.producer._verdicts = cast("VerdictClient", self.regions)

    def _waited(self, _count: int) -> float:
        self.on_wait()
        return 0.0

    def _initialised(self, _config: object, timeout_s: float, _call_timeout_s: float) -> Kafka:
        self.limits_s.append(timeout_s)
        stood = self.regions.stands
        self.on_init()
        if self.regions.stands is stood:
            self.regions.give()
        self.kafkas.append(Kafka())
        return self.kafkas[-1]

    @property
    def given_count(self) -> int:
        return len(self.kafkas)

    async def meets(self, error: KafkaError | None) -> None:
        """Begin a transaction whose beginning meets `error`, or one after a commit that was cancelled."""
        self.kafkas[-1].error = error
        if error is None:
            self.producer._usable = False
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


@pytest.mark.parametrize("error", [FENCED, LOST, None])
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
    instance: Instance, acting: RegionEpoch, stands: Standing, error: KafkaError | None
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
    regions.acting, regions.stands = SWITCHED, OF_ANOTHER
    regions.silent_count = 3
    with pytest.raises(Fenced):
        await instance.meets(FENCED)
    assert instance.given_count == 1
    assert regions.silent_count == 0


@pytest.mark.parametrize("error", [FENCED, LOST, None])
@pytest.mark.parametrize("acting", [SWITCHED, None])
async def test_INV_CP21_while_nobody_tells_no_producer_id_is_asked_for(
    hasty: Instance, acting: RegionEpoch | None, error: KafkaError | None
) -> None:
    regions = await began(hasty)
    regions.acting, regions.silent_count = acting, 1_000
    for _ in range(2):
        with pytest.raises(Unreachable, match=r"does not tell|nobody tells"):
            await hasty.meets(error)
    assert hasty.given_count == 1
    regions.acting, regions.silent_count = SWITCHED, 0
    regions.stands = OF_ANOTHER
    with pytest.raises(Fenced):
        await hasty.meets(error)
    assert hasty.given_count == 1


@pytest.mark.parametrize("error", [FENCED, LOST, None])
async def test_INV_CP21_a_producer_goes_on_once_it_is_told_that_the_id_is_still_its_own(
    hasty: Instance, error: KafkaError | None
) -> None:
    regions = await began(hasty)
    regions.acting = None
    with pytest.raises(Unreachable):
        await hasty.meets(error)
    regions.acting = SWITCHED
    await hasty.meets(error)
    assert hasty.given_count == 2


@pytest.mark.parametrize("error", [FENCED, LOST, None])
async def test_INV_CP22_while_no_region_acts_a_producer_waits_and_looks(
    instance: Instance, error: KafkaError | None
) -> None:
    regions = await began(instance)
    regions.acting = None

    def another_comes() -> None:
        regions.acting, regions.stands = SWITCHED, OF_ANOTHER

    instance.on_wait = another_comes
    with pytest.raises(Fenced):
        await instance.meets(error)
    assert instance.given_count == 1


@pytest.mark.parametrize(
    ("acting", "stands"),
    [
        (SWITCHED, OF_ANOTHER),
        (BEFORE, pair(5, BEFORE, "ongoing")),  # in the region epoch that was asked under
        (BEFORE, pair(5, BEFORE, "complete_commit")),
    ],
)
async def test_INV_CP22_a_request_for_a_producer_id_is_short_and_the_next_look_sees_who_came_meanwhile(
    instance: Instance, acting: RegionEpoch, stands: Standing
) -> None:
    regions = await began(instance)

    def another_comes() -> None:
        regions.acting, regions.stands = acting, stands
        raise Unreachable("no region answered for as long as it may take")

    instance.on_init = another_comes
    with pytest.raises(Fenced):
        await instance.meets(LOST)
    assert instance.given_count == 1
    assert instance.limits_s == [60.0, 15.0]


async def test_INV_CP22_a_request_that_was_answered_by_nobody_is_repeated(
    instance: Instance,
) -> None:
    regions = await began(instance)

    def lost() -> None:
        regions.stands = pair(4, BEFORE)
        if len(instance.limits_s) < 4:
            raise Unreachable("the answer is lost")

    instance.on_init = lost
    await instance.meets(LOST)
    assert instance.limits_s == [60.0, 15.0, 15.0, 15.0]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(
    "given", [pair(4, SWITCHED), pair(0, SWITCHED, producer_id=11), pair(0, LATER, producer_id=11)]
)
async def test_INV_CP20_what_a_region_that_came_to_act_meanwhile_gave_to_a_request_is_the_own(
    instance: Instance, given: Standing, answers: bool
) -> None:
    """1. A producer id is asked for. 2. Another region acts. 3. That one gives it: the request found it, or was carried there."""
    regions = await began(instance)

    def given_elsewhere() -> None:
        instance.on_init = lambda: None
        regions.acting, regions.stands = given.region_epoch, given
        if not answers:
            raise Unreachable("the answer is lost")

    instance.on_init = given_elsewhere
    await instance.meets(LOST)
    await instance.meets(None)


@pytest.mark.parametrize("state", ["prepare_abort", "complete_abort"])
async def test_INV_CP20_an_abort_that_a_request_for_a_producer_id_began_is_the_own(
    instance: Instance, state: str
) -> None:
    """1. The pair is from before a planned switch. 2. A new one is asked for: what was open is aborted first, which takes its time."""
    regions = await began(instance)
    regions.acting = SWITCHED

    def slowly() -> None:
        instance.on_init = lambda: None
        regions.stands = pair(4, BEFORE, state)
        raise Unreachable("its markers cannot be written yet")

    instance.on_init = slowly
    await instance.meets(LOST)
    assert instance.given_count == 2


async def test_INV_CP20_a_producer_id_that_was_asked_for_without_an_answer_counts_as_the_own(
    hasty: Instance,
) -> None:
    regions = await began(hasty)
    regions.acting = SWITCHED

    def lost() -> None:
        regions.stands = pair(0, SWITCHED, producer_id=11)
        raise Unreachable("the answer is lost")

    hasty.on_init = lost
    with pytest.raises(Unreachable, match="the answer is lost"):
        await hasty.meets(FENCED)
    hasty.on_init = lambda: None
    async with hasty.producer.transaction():
        pass
    assert hasty.given_count == 2


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
    succession.hold(pair(4, BEFORE, "ongoing"), BEFORE)
    assert not succession.is_known


@pytest.mark.parametrize(
    "stands",
    [pair(5, BEFORE, "complete_abort"), pair(9, BEFORE, "prepare_abort"), pair(0, SWITCHED, "complete_abort", producer_id=11)],
)  # fmt: skip
def test_INV_CP20_who_has_aborted_its_last_transaction_is_another_instance_also_where_an_id_was_asked_for(
    stands: Standing,
) -> None:
    """What was asked for, and not answered, has begun nothing; the region itself gives the next epoch."""
    succession = Succession()
    succession.hold(OWN, BEFORE)
    succession.ask_under(BEFORE)
    succession.ask_under(SWITCHED)
    assert succession.is_anothers(stands, timed_out=False)
    assert not succession.is_anothers(pair(4, BEFORE, "complete_abort"), timed_out=False)


async def test_INV_CP22_who_was_seen_to_come_in_between_is_not_fenced_behind_a_failover(
    instance: Instance,
) -> None:
    """1. A producer is given an id, and told of it late. 2. Another one has it by then, and is given another one by a failover."""
    regions = instance.regions

    def replaced() -> None:
        regions.stands = pair(4, BEFORE, "ongoing")

    instance.on_init = replaced
    await began(instance)
    regions.acting, regions.stands = SWITCHED, OF_ANOTHER
    for _ in range(2):
        with pytest.raises(Fenced, match="uses the transactional id 'p' now:"):
            await instance.meets(KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING))
    assert instance.given_count == 1


async def test_INV_CP22_what_the_region_has_aborted_meanwhile_is_no_other_instance(
    instance: Instance,
) -> None:
    """Of two regions that act, the other one gave the id: here an instance of long ago was aborted for its age."""
    regions = instance.regions
    regions.stands = pair(3, BEFORE, "ongoing")

    def aborted() -> None:
        regions.stands = pair(4, BEFORE, "complete_abort")

    instance.on_init = aborted
    await began(instance)
    instance.on_init = lambda: None
    await instance.meets(LOST)
    assert instance.given_count == 2


async def test_INV_CP3_one_that_was_fenced_and_is_started_again_takes_the_id_and_writes(
    instance: Instance,
) -> None:
    regions = await began(instance)
    regions.stands = pair(4, BEFORE, "ongoing")
    with pytest.raises(Fenced):
        await instance.meets(FENCED)
    await instance.producer.start()
    async with instance.producer.transaction():
        pass
    assert instance.given_count == 2


def test_INV_CP20_an_abort_that_brought_the_next_epoch_is_followed_and_another_instance_is_not() -> (
    None
):
    succession = Succession()
    succession.hold(OWN, BEFORE)
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
    succession.hold(OWN, BEFORE)
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
    succession.hold(OWN, BEFORE)
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


async def write(producer: TransactionalProducer) -> None:
    async with producer.transaction():
        pass


async def cancelled_commit(instance: Instance) -> threading.Event:
    """Cancel a commit that goes on in its thread until the event is set."""
    committing, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def commit() -> None:
        loop.call_soon_threadsafe(committing.set)
        assert goes_on.wait(WAIT_S)

    instance.kafkas[-1].on_commit = commit
    async with asyncio.TaskGroup() as tasks:
        cut_off = tasks.create_task(write(instance.producer))
        await committing.wait()
        cut_off.cancel()
    return goes_on


async def test_INV_CP20_a_commit_that_was_cancelled_leaves_nothing_open(instance: Instance) -> None:
    """Else what another instance aborted later would be taken for this one's, aborted by the region for its age."""
    regions = await began(instance)
    (await cancelled_commit(instance)).set()
    await instance.producer._thread_is_free()
    instance.producer._transaction_timeout_s = 0.0  # it is over since long ago
    regions.stands = pair(4, BEFORE, "complete_abort")
    with pytest.raises(Fenced):
        await write(instance.producer)
    assert instance.given_count == 1


async def test_INV_CP22_who_came_while_a_cancelled_commit_went_on_is_seen(
    instance: Instance,
) -> None:
    regions = await began(instance)
    goes_on = await cancelled_commit(instance)
    begun_count = regions.asked_count
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(fenced(instance.producer))
        for _ in range(10):
            await asyncio.sleep(0)
        asked_count = regions.asked_count
        regions.stands = OF_ANOTHER
        goes_on.set()
    assert writing.result()
    assert (asked_count, instance.given_count) == (begun_count, 1)


async def fenced(producer: TransactionalProducer) -> bool:
    try:
        await write(producer)
    except Fenced:
        return True
    return False
