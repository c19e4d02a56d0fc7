"""Whether a crash of this process may leave a core file: all of its memory, with the keys, passwords and records that are in it.

INV-NCF1  a node that is aborted leaves no core file, and hands none to a program of the system either (`core_pattern` with `|`, as systemd-coredump)
Only the soft limit is lowered: whoever wants a core file of a node allows it for that process, `prlimit --core=unlimited --pid PID`.
Source: core(5); fs/coredump.c, which starts no program where the limit is 1, and does where it is 0.
"""

import resource
from typing import Final

_NEITHER_FILE_NOR_PROGRAM: Final = 1


def leave_no_core_file() -> None:
    """Leave none from now on, in processes that this one starts neither; where the hard limit is 0 it stays, and that keeps files alone away."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (_NEITHER_FILE_NOR_PROGRAM, hard))
