"""Who this process is to the nodes that it asks, over Kafka and over HTTP: said once, before the first question.

A command, a demo and a tool are each a process of its own and one caller; so this is theirs, and nobody hands it on.
Not here: where a command finds it (`cli.context.credentials`), the value itself (`security.login`).
"""

from typing import Any

from region_broker.security.login import NO_SECURITY, Security


class _Presented:
    security: Security = NO_SECURITY


_presented = _Presented()


def present_as(security: Security) -> None:
    """Ask as `security` from now on."""
    _presented.security = security


def presented() -> Security:
    """Return as whom this process asks."""
    return _presented.security


def kafka_login() -> dict[str, Any]:
    """Return what librdkafka is told of it; nothing where nothing was said."""
    return _presented.security.kafka_config()
