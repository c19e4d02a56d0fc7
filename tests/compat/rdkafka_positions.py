"""What librdkafka's log tells of positions that it changed by itself: `debug` must have `cgrp,topic`.

Each pattern is a step that no answer of a broker asks for (librdkafka 2.15's source, as 2.16's log has it; `docs/reference/clients.md`):

- `rd_kafka_offset_query_tmr_cb` asks where the log begins for a partition that is being read: an outdated answer had started the timer
- `rd_kafka_toppar_handle_Offset` takes a partition up again that was given back, for the same reason
- `rd_kafka_assignment_apply_offsets` takes UNSTABLE_OFFSET_COMMIT for "nothing is committed" where the assignment changed meanwhile
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_OWN_STEPS: Final = (
    r"\|OFFSET\|.* Topic {0}: timed offset query for .* in state active$",
    r"\|PARTSTATE\|.* Partition {0} changed fetch state stopped -> offset-query$",
    r"\|OFFSETFETCH\|.* Adding {0} back to pending list because on-going transaction ",
)


def own_steps(logs: Iterable[Path], topic: str, partition: int) -> list[str]:
    """Return the lines that say that some client left the position of this partition by itself."""
    place = re.escape(f"{topic} [{partition}]")
    wanted = re.compile("|".join(step.format(place) for step in _OWN_STEPS))
    return [
        f"{log.name}: {line}"
        for log in logs
        for line in log.read_text(errors="replace").splitlines()
        if wanted.search(line)
    ]
