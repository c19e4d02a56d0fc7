"""What AlterConfigs leaves of a topic's configs beside what it names (Kafka: nothing)."""

from region_broker.controller.config_changes import ConfigChange, ConfigOp, changed, replaced

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
