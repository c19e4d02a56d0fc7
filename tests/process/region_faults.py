"""Rows of docs/FAULTS.md about regions, links, failovers and clients, with real processes: all that outsiders can cause.

python -m tests.process.region_faults --list
python -m tests.process.region_faults --case split-brain
"""

from tests.process.faults.regions import CLIENTS, REGIONS
from tests.process.faults.runner import command

if __name__ == "__main__":
    command([*REGIONS, *CLIENTS])()
