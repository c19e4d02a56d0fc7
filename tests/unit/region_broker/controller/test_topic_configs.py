"""What configs a topic may have (INV-CT2 to INV-CT4). Source: Kafka LogConfig (ranges, validateValues), ConfigDef."""

import re

import pytest

from region_broker.controller.topic_configs import (
    PROBLEMS_TOLD_MAX,
    TOPIC_CONFIGS,
    config_problem,
    normal,
)
from region_broker.limits import TOPIC_CONFIG_CHARS_MAX


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"retention.ms": "-2"}, "retention.ms=-2 is not in -1.."),
        ({"segment.ms": "0"}, "segment.ms=0 is not in 1.."),
        ({"min.cleanable.dirty.ratio": "1.1"}, "min.cleanable.dirty.ratio=1.1 is not in 0..1"),
        ({"min.cleanable.dirty.ratio": "nan"}, "min.cleanable.dirty.ratio=nan is not in 0..1"),
        ({"retention.ms": "1_000"}, "retention.ms='1_000' is not a whole number in -1.."),
        ({"retention.ms": "week"}, "retention.ms='week' is not a whole number in -1.."),
        ({"retention.hours": "1"}, "there is no topic config 'retention.hours'"),
        ({"retention.m": "1"}, "'retention.m'; did you mean retention.ms?"),
        ({"compression.type": "gzp"}, "uncompressed, gzip, snappy, lz4, zstd; did you mean gzip?"),
        ({"message.timestamp.type": "logappendtime"}, "; did you mean LogAppendTime?"),
        ({"cleanup.policy": "compct"}, "compact,delete, delete,compact; did you mean compact?"),
        ({"cleanup.policy": ""}, "cleanup.policy= is not served, only delete, compact"),
        (
            {"cleanup.policy": "compact,compact"},
            "cleanup.policy=compact,compact names compact twice",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
            "min.compaction.lag.ms=10 is above max.compaction.lag.ms=9: a record would have to be cl",
        ),
        ({"tidemark.domain": "other"}, "tidemark.domain=other: there is no such domain, only main"),
        ({"segment.ms": "0", "segment.bytes": "1"}, "segment.bytes=1 is not in 4096..2147483647"),
    ],
)
def test_INV_CT3_what_is_wrong_is_refused_by_its_key(configs: dict[str, str], said: str) -> None:
    problem = config_problem(configs, {"main"})
    assert problem is not None
    assert said in problem


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup.policy": "compact, delete"},
        {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"},
        {"min.cleanable.dirty.ratio": "1"},
        {"retention.ms": " -1 "},
    ],
)
def test_what_kafka_takes_is_taken(configs: dict[str, str]) -> None:
    assert config_problem(configs, {"main"}) is None


def test_INV_CT3_of_very_many_problems_the_first_are_told_and_no_more_is_looked_at() -> None:
    """A CreateTopics, or an AlterConfigs of one topic, names as many keys as a request holds: nobody else was served for half a minute."""
    told = config_problem({f"retention.mz{number}": "1" for number in range(100_000)}, {"main"})
    assert told is not None
    assert re.findall(r"topic config '([^']+)'", told) == [f"retention.mz{number}" for number in range(PROBLEMS_TOLD_MAX)]  # fmt: skip


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_INV_CT4_a_value_of_any_key_has_a_length(name: str) -> None:
    """Blanks mean nothing before a number, a word, or a list: a value that was taken had 3,000,000 of them."""
    default = TOPIC_CONFIGS[name].default
    blanks = " " * (TOPIC_CONFIG_CHARS_MAX - len(default))
    told = config_problem({name: f" {blanks}{default}"}, {"main"})
    assert told is not None
    assert f"has {TOPIC_CONFIG_CHARS_MAX + 1} characters" in told
    assert len(told) < 500
    if name not in {"tidemark.domain", "tidemark.encryption"}:  # names, in which a blank is one
        assert config_problem({name: f"{blanks}{default}"}, {"main"}) is None


@pytest.mark.parametrize(
    ("name", "asked", "kept"),
    [
        ("retention.ms", "   5", "5"),
        ("retention.ms", "+0005 ", "5"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "soon", "soon"),
        ("retention.ms", "9" * 5_000, "9" * 5_000),  # none that Python reads
        ("min.cleanable.dirty.ratio", " 00.50", "0.5"),
        ("cleanup.policy", " compact ,  delete", "compact,delete"),
        ("compression.type", " gzip ", "gzip"),
        ("preallocate", " false", "false"),
        ("leader.replication.throttled.replicas", "  ", ""),
        ("no.such.key", " 5", " 5"),
    ],
)
def test_INV_CT4_a_value_is_kept_as_its_type_writes_it(name: str, asked: str, kept: str) -> None:
    """Source: ConfigDef.parseType trims what it parses, and ConfigHelper tells what was parsed (convertToString)."""
    assert normal({name: asked}) == {name: kept}


def test_INV_CT4_a_default_is_as_its_type_writes_it() -> None:
    defaults = {config.name: config.default for config in TOPIC_CONFIGS.values()}
    assert normal(defaults) == defaults
