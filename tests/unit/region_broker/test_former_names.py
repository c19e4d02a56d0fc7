"""What users stored under a former name still means the same, and is still there."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from geo_replicator.failover_events import PromiseGiven
from idempotency.identity import RegionEpoch
from region_broker.cli.reconcile import reconcile
from region_broker.config.node_config import ConfigError, NodeConfig, unknown_overlays
from region_broker.former_names import with_former_fields
from region_broker.http_api.region_metrics import RegionCollector
from region_broker.region.failover.messages import AskPromise, SiteStatus

ADDRESSES = {
    "kafka": "eu.example.org:9092",
    "peer": "eu.example.org:9094",
    "http": "eu.example.org:9093",
}
REGION = {"name": "eu", "ordinal": 0, "node_id": 1} | ADDRESSES
NODE = {"region": "eu", "cluster_id": "c1", "data_dir": "/srv/eu", "regions": [REGION]}
TOML = f"""
region = "eu"
cluster_id = "c1"
data_dir = "/srv/eu"
home_region = "eu"
[[regions]]
name = "eu"
ordinal = 0
node_id = 1
{"".join(f'{key} = "{value}"' + chr(10) for key, value in ADDRESSES.items())}"""


def test_INV_FMN1_a_former_key_means_the_same() -> None:
    former = NodeConfig.build(NODE | {"home_region": "eu"}, "node.toml")
    assert former == NodeConfig.build(NODE | {"initial_primary_region": "eu"}, "node.toml")


def test_INV_FMN1_both_keys_at_once_are_refused() -> None:
    both = NODE | {"home_region": "eu", "initial_primary_region": "eu"}
    with pytest.raises(
        ConfigError, match="home_region is the former name of initial_primary_region"
    ):
        NodeConfig.build(both, "node.toml")


def test_INV_FMN1_a_variable_under_the_former_name_overlays_the_key(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TOML)
    overlaid = {"TIDEMARK_HOME_REGION": "us"}
    assert unknown_overlays(overlaid) == []
    assert NodeConfig.load(file, {}).initial_primary_region == "eu"
    with pytest.raises(ConfigError, match="initial_primary_region = 'us' is none of the regions"):
        NodeConfig.load(file, overlaid)
    loaded = NodeConfig.load(file, overlaid | {"TIDEMARK_INITIAL_PRIMARY_REGION": "eu"})
    assert loaded.initial_primary_region == "eu"


def described() -> dict[str, Any]:
    return {
        "region": "us", "domain": "main", "acting": False, "region_epoch": 8, "primary_region": "eu",
        "tidemark": {"number": 1, "age_ms": 1}, "lag": {"primary": "eu", "silent_ms": 1_500},
        "waits_for": "", "runs_twice": {}, "diverged_records": 0,
        "link": {"state": None, "age_ms": None},
    }  # fmt: skip


def test_INV_FMN2_a_region_says_former_names_beside_todays() -> None:
    both = with_former_fields(described())
    assert (both["primary_region"], both["acting_region"]) == ("eu", "eu")
    assert both["lag"] == {"primary": "eu", "home": "eu", "silent_ms": 1_500}


def test_INV_FMN2_a_metric_is_offered_under_its_former_name_too() -> None:
    class Region:
        def describe(self) -> dict[str, Any]:
            return described()

    families = RegionCollector(Region()).collect()  # type: ignore[arg-type]  # a part of it
    values = {family.name: [each.value for each in family.samples] for family in families}
    assert values["tidemark_region_primary_silent_ms"] == [1_500]
    assert values["tidemark_region_home_silent_ms"] == [1_500]


@pytest.mark.parametrize("job", sorted(reconcile.commands))
def test_reconcile_takes_the_former_option(job: str) -> None:
    [option] = [each for each in reconcile.commands[job].params if each.name == "source"]
    assert option.opts == ["--primary", "--source"]


def test_a_promise_keeps_its_name_in_the_journal_and_between_regions() -> None:
    kept = b'{"type":"PromiseGiven","region_epoch":17,"taker":"us"}'
    assert msgspec.json.encode(PromiseGiven(RegionEpoch(17), "us")) == kept
    assert msgspec.json.decode(kept, type=PromiseGiven) == PromiseGiven(RegionEpoch(17), "us")
    sent = {"domain": "main", "region_epoch": 17, "taker": "us", "planned": False}
    assert msgspec.convert(sent | {"type": "AskPromise"}, AskPromise).candidate == "us"
    assert "promised_taker" in SiteStatus.__struct_encode_fields__
