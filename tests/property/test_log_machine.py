"""The log on a faulty disk, against a model: acknowledged is there, the rest is there or not, nothing else is.

Expected state is the replay of what was handed in (INV-PL3, C9). `tests.fixtures.log_model` holds the model and what must
hold; here is what may come when. `tests.property.power_loss` plays the same with thousands of power losses.
"""

import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fixtures.log_model import LogModel
from tests.property.power_loss import (
    HALF_DONE,
    growing,
    meanwhile,
    operations_that_fail,
    without_writes,
)

PRODUCERS = st.integers(1, 3)
SEEDS = st.integers(0, 2**32)


class LogMachine(RuleBasedStateMachine):
    """One partition with segments of 4 KiB."""

    @initialize(retention=st.booleans())
    def start(self, retention: bool) -> None:
        self.model = LogModel(retention=retention)

    @rule(count=st.integers(1, 4), size_bytes=st.sampled_from([0, 50, 700]))
    def append_plain(self, count: int, size_bytes: int) -> None:
        self.model.append_plain(count, size_bytes)

    @rule(size_bytes=st.sampled_from([3000, 4010]))
    def append_large(self, size_bytes: int) -> None:
        self.model.append_plain(1, size_bytes)

    @rule(producer=PRODUCERS, count=st.integers(1, 3), size_bytes=st.sampled_from([10, 900]))
    def append_in_transaction(self, producer: int, count: int, size_bytes: int) -> None:
        self.model.append_in_transaction(producer, count, size_bytes)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        self.model.end_transaction(producer, commit=commit)

    @rule()
    def sync(self) -> None:
        self.model.sync()

    @rule()
    def catch_up(self) -> None:
        self.model.catch_up()

    @rule()
    def sync_files(self) -> None:
        self.model.sync_files()

    @rule()
    def recovery_checkpoint(self) -> None:
        self.model.recovery_checkpoint(lambda: None)

    @rule(seed=SEEDS)
    def recovery_checkpoint_while_something_else_happens(self, seed: int) -> None:
        rng = random.Random(seed)
        self.model.recovery_checkpoint(lambda: meanwhile(self.model, rng), rng.choice(HALF_DONE))

    @rule(seed=SEEDS)
    def damage_the_recovery_checkpoint(self, seed: int) -> None:
        self.model.damage_recovery_checkpoint(random.Random(seed))

    @rule(choice=st.floats(0, 1))
    def cut(self, choice: float) -> None:
        self.model.cut(choice)

    @rule(choice=st.floats(0, 1), seed=SEEDS)
    def cut_in_threads(self, choice: float, seed: int) -> None:
        rng = random.Random(seed)
        self.model.cut_in_threads(choice, lambda: without_writes(self.model, rng))

    @rule(choice=st.floats(0, 1), seed=SEEDS)
    def prepare_a_cut(self, choice: float, seed: int) -> None:
        rng = random.Random(seed)
        self.model.prepare_a_cut(choice, lambda: meanwhile(self.model, rng))

    @rule(choice=st.floats(0, 1), seed=SEEDS)
    def cut_and_go_on(self, choice: float, seed: int) -> None:
        rng = random.Random(seed)
        self.model.cut_and_go_on(choice, lambda: meanwhile(self.model, rng))

    @rule(choice=st.floats(0, 1), seed=SEEDS)
    def cut_where_it_was_prepared(self, choice: float, seed: int) -> None:
        rng = random.Random(seed)
        self.model.cut_where_prepared(choice, lambda: growing(self.model, rng))

    @rule()
    def retain(self) -> None:
        self.model.retain()

    @rule(seed=SEEDS)
    def read_with_little_memory(self, seed: int) -> None:
        self.model.read_with_little_memory(random.Random(seed))

    @rule()
    def kill(self) -> None:
        self.model.kill()

    @rule(seed=SEEDS)
    def lose_power(self, seed: int) -> None:
        self.model.lose_power(random.Random(seed))

    @rule(seed=SEEDS, operations=st.integers(0, 30))
    def lose_power_twice(self, seed: int, operations: int) -> None:
        self.model.lose_power(random.Random(seed), operations=operations)

    @rule()
    def stop_cleanly(self) -> None:
        self.model.stop_cleanly()

    @precondition(lambda self: not self.model.retention)
    @rule(seed=SEEDS, clean=st.booleans())
    def lose_log_indexes(self, seed: int, clean: bool) -> None:
        self.model.lose_log_indexes(random.Random(seed), clean=clean)

    @rule(seed=SEEDS, chance=st.sampled_from([0.05, 0.3, 1.0]), power=st.booleans())
    def work_while_the_disk_fails(self, seed: int, chance: float, power: bool) -> None:
        operations_that_fail(self.model, random.Random(seed), chance, power=power)

    @rule(seed=SEEDS)
    def open_while_the_disk_fails(self, seed: int) -> None:
        self.model.open_while_the_disk_fails(random.Random(seed))

    @rule(seed=SEEDS)
    def flip_a_bit(self, seed: int) -> None:
        self.model.flip_a_bit(random.Random(seed))

    @invariant()
    def bytes_state_and_files_are_the_model_s(self) -> None:
        self.model.check()


TestLogMachine: Any = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
