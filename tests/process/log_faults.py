"""Rows of docs/FAULTS.md about logs, disks and what is kept of lost tails, with real processes, caused from outside.

python -m tests.process.log_faults --list
python -m tests.process.log_faults --case descriptors
"""

from tests.process.faults.disks import DISKS
from tests.process.faults.runner import command

if __name__ == "__main__":
    command(DISKS)()
