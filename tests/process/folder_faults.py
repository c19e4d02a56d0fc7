"""Every row of docs/FAULTS.md about whole folders, with real processes: a line for each, and what is wrong at the end.

python -m tests.process.folder_faults --list
python -m tests.process.folder_faults --case older-primary --case empty
"""

from tests.process.faults.cases import runs
from tests.process.faults.runner import command

if __name__ == "__main__":
    command(runs())()
