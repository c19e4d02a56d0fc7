"""What AlterConfigs leaves of a topic's configs beside what it names (Kafka: nothing)."""

import pytest

from region_broker.controller.config_changes import (
    ChangeRefused,
    ConfigChange,
    ConfigOp,
    changed,
    replaced,
)
from region_broker.limits import TOPIC_CONFIG_CHARS_MAX

SEALED = {"tidemark.encryption": "orders", "tidemark.domain": "main", "retention.ms": "5"}


def test_a_tool_that_never_heard_of_a_seal_does_not_open_it() -> None:
    """kafka-configs.sh of old, and libraries with `alterConfigs` alone, send a retention and nothing else."""
    assert replaced(SEALED, {"segment.ms": "7"}) == {
        "tidemark.encryption": "orders", "tidemark.domain": "main", "segment.ms": "7",
    }  # fmt: skip


def test_who_names_the_seal_opens_it() -> None:
    assert replaced(SEALED, {"tidemark.encryption": ""})["tidemark.encryption"] == ""
    delete = ConfigChange("tidemark.encryption", ConfigOp.DELETE, None)
    assert "tidemark.encryption" not in changed(SEALED, [delete])


@pytest.mark.parametrize("op", [ConfigOp.APPEND, ConfigOp.SUBTRACT])
def test_INV_CT4_a_list_of_millions_of_words_is_not_cut_up(op: ConfigOp) -> None:
    """One of 30 MB, four million numbers, held the event loop for twelve seconds."""
    words = ",".join("x" * 9 for _ in range(TOPIC_CONFIG_CHARS_MAX // 10))
    assert "cleanup.policy" in changed(
        {}, [ConfigChange("cleanup.policy", op, f"{words},{'y' * 10}"[:TOPIC_CONFIG_CHARS_MAX])]
    )
    with pytest.raises(ChangeRefused, match=f"{op.name} names for cleanup.policy has 311 char"):
        changed({}, [ConfigChange("cleanup.policy", op, f"{words},{'y' * 11}")])
