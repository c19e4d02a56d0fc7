"""What a drill of nodes counts, and which faults it deals out (INV-CNF1)."""

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from chaos.nodes.disks import FailingDisks
from chaos.nodes.figures import Played, longest_pause_s, pauses_s, quantile, table
from chaos.nodes.plan import LASTING_FAULTS, Fault, Victim, rounds


def test_INV_CNF1_a_pause_begins_with_the_last_acknowledgement_before_the_fault() -> None:
    assert longest_pause_s([1.0, 1.9, 3.4, 3.5, 3.9], 2.0, 4.0) == 1.5
    assert longest_pause_s([1.9, 2.1], 2.0, 4.0) == 4.0 - 2.1
    assert longest_pause_s([], 2.0, 4.0) == 2.0


def test_the_worst_client_of_a_class_counts_and_all_together_count_as_one() -> None:
    acked_s = {"plain-0": [1.0, 2.0, 3.0], "plain-1": [1.5, 3.0], "teller-0": [1.0, 2.5]}
    found = pauses_s(acked_s, Played("kill leader", 1.5, 2.5, 3.0, {}))
    assert found == {"plain": 1.5, "teller": 1.5, "anybody": 0.5}


def test_quantiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [quantile(values, share) for share in (0.5, 0.99, 0.2)] == [3.0, 5.0, 1.0]
    assert quantile([], 0.5) == 0.0


def test_errors_of_all_rounds_of_a_kind_are_summed_by_name() -> None:
    played = [Played("kill leader", 0.0, 1.0, 2.0, {"teller _TIMED_OUT": n}) for n in (1, 2)]
    assert table({"teller-0": [0.5]}, played)[-1].endswith("teller _TIMED_OUT 3")


def test_every_fault_comes_as_often_as_any_other_and_a_seed_is_one_drill() -> None:
    dealt = list(rounds(7, 18))
    assert set(Counter((each.fault, each.victim) for each in dealt).values()) == {2}
    assert dealt == list(rounds(7, 18))
    assert {each.victim for each in rounds(7, 6, [Fault.KILL], [Victim.LEADER])} == {Victim.LEADER}


def test_what_lasts_until_it_is_mended_is_dealt_where_it_is_asked_for() -> None:
    assert not {each.fault for each in rounds(7, 18)} & set(LASTING_FAULTS)
    assert {each.fault for each in rounds(7, 9, LASTING_FAULTS)} == set(LASTING_FAULTS)


def test_a_disk_that_is_told_to_fail_answers_EIO_to_what_is_written_until_it_is_mended(
    tmp_path: Path,
) -> None:
    disks = FailingDisks(tmp_path, ["eu/1", "eu/2"])
    environment = {**os.environ, **disks.environment("eu/1")}
    written = [sys.executable, "-c", _WRITE, str(tmp_path / "data")]

    def ends_with() -> str:
        return subprocess.run(
            written, env=environment, capture_output=True, text=True, check=True
        ).stdout

    disks.fail("eu/2")
    assert ends_with().split() == ["sound"] * 3
    disks.fail("eu/1")
    assert ends_with().split() == [errno.errorcode[errno.EIO]] * 3
    disks.mend("eu/1")
    assert ends_with().split() == ["sound"] * 3


_WRITE = """
import errno, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for work in (
    lambda: os.pwritev(descriptor, [b"a"], 0), lambda: os.write(descriptor, b"a"), lambda: os.fdatasync(descriptor)
):
    try:
        work()
        print("sound")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
