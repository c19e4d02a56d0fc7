"""What becomes of a mutant: the tests that may notice it are asked, and what they say is looked at twice.

INV-MU5  a test that fails without the mutant has not noticed it; one that ends without the mutant and not with it has
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tests.mutants.nearest import Nearest
from tests.mutants.operators import Mutant
from tests.mutants.runs import CRASH, TIME_OUT

SHARE_OF_TESTS: Final = 6
"""Tests that take a sixth of the limit without a mutant are asked: the rest is for a busy machine."""


class Runner(Protocol):
    """Runs tests with a mutant, or without one."""

    def first_failure(self, tests: list[str], mutant: Mutant | None, source: str) -> str | None:
        """Return the first test that fails."""


@dataclass(slots=True)
class Judge:
    """Which tests are asked, and by whom each mutant is played."""

    nearest: Nearest
    runner_of: Callable[[Mutant, str], Runner]
    _sound: dict[str, bool] = field(default_factory=dict)

    def killer(self, mutant: Mutant, source: str) -> str | None:
        """Return the test that notices the mutant, None where none does."""
        tests = self.nearest.tests(mutant, source)
        runner = self.runner_of(mutant, source)
        failed = runner.first_failure(tests, mutant, source)
        while failed is not None and not self._is_sound(runner, failed, tests):
            if failed not in tests:
                return None
            tests = tests[tests.index(failed) + 1 :]
            failed = runner.first_failure(tests, mutant, source)
        return failed

    def _is_sound(self, runner: Runner, failed: str, tests: list[str]) -> bool:
        """Return whether what failed with a mutant passes without (INV-MU5)."""
        asked = tests if failed in {TIME_OUT, CRASH} else [failed]
        key = " ".join(asked)
        if key not in self._sound:
            self._sound[key] = runner.first_failure(asked, None, "") is None
        return self._sound[key]
