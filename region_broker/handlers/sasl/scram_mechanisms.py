"""Kafka's numbers of the SCRAM mechanisms (KIP-554)."""

from collections.abc import Mapping
from typing import Final

from region_broker.security.sasl.scram import HASHES

NUMBERS: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
NAMES: Final[Mapping[int, str]] = {number: name for name, number in NUMBERS.items()}

assert NUMBERS.keys() == HASHES.keys(), "each mechanism has a number"
