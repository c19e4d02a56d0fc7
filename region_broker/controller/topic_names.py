"""Which topic names may be created.

A name is safe as a folder and as a metric label: [a-zA-Z0-9._-], at most 249 characters.
Source: Kafka Topic.validate and Topic.hasCollision.
Not here: internal topics, which the node creates itself.
"""

import re
from typing import Final
from uuid import UUID

from region_broker.limits import TOPIC_NAME_LENGTH_MAX

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Return what is wrong with a topic name, or None."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f"the topic name {name!r} is reserved by the file system"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} may be"
    if _LEGAL.fullmatch(name) is None:
        return (
            f"the topic name {name!r} holds characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
        )
    return None


_WAITING: Final = "~"
"""No name that may be created holds it."""


def waiting_name(name: str, topic_id: UUID) -> str:
    """Return what a topic is called in a mirror's registry as long as a topic that the primary deleted has its name
    (T15)."""
    return f"{name}{_WAITING}{topic_id.hex}"


def name_waited_for(name: str) -> str | None:
    """Return the name that a topic waits for, None where it has its own."""
    wanted, waits, _ = name.partition(_WAITING)
    return wanted if waits else None


def metric_name(name: str) -> str:
    """Return what a topic is called in names of metrics, where '.' and '_' look alike: two topics of one such name collide."""
    return name.replace(".", "_")
