"""Listeners in a region of several nodes: what a file must say of the other nodes, and what is known of those it does not name."""

import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from region_broker.cli.cluster_add import tell, toml_of
from region_broker.config.listener_places import gaps_of, met_by
from region_broker.config.node_config import ConfigError, NodeConfig, RegionNode
from region_broker.config.region_growth import new_node_file, with_added
from region_broker.controller.cluster_image import AddedNode
from region_broker.node.known_nodes import KnownNodes
from region_broker.node.listener_gaps import ListenerGaps
from region_broker.node.node_tls import NodeTls
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.network import AsyncioNetwork
from tests.fixtures.cluster_images import in_sync
from tests.unit.region_broker.test_config import node, whole, with_nodes

LISTENER = {
    "name": "OUTSIDE", "bind": "0.0.0.0:9095", "advertised": "n11.example.org:9095", "security_protocol": "PLAINTEXT",
}  # fmt: skip
INSIDE = {**LISTENER, "name": "INSIDE", "bind": "0.0.0.0:9096", "advertised": "10.0.0.11:9096"}


def met(number: int, **by_name: str) -> dict[str, Any]:
    """Return a node that is met by listeners."""
    return node(number, advertised={"OUTSIDE": f"n{number}.example.org:9095", **by_name})


def file_of(*nodes: Any, listeners: Any = (LISTENER,)) -> NodeConfig:
    further = {"listeners": list(listeners)} if listeners else {}
    return NodeConfig.build(whole(**with_nodes(*nodes), **further), "a test")


def problems(*nodes: Any, listeners: Any = (LISTENER,)) -> list[str]:
    try:
        file_of(*nodes, listeners=listeners)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_INV_CFT3_each_node_of_the_region_is_met_by_each_listener() -> None:
    assert problems(node(11), met(12), met(13)) == []
    assert problems(node(11), node(12), listeners=()) == []
    (problem,) = problems(node(11), met(12), node(13))
    assert problem.startswith("regions[0].nodes[2].advertised.OUTSIDE is missing: ")
    assert 'advertised = { OUTSIDE = "host:port" }' in problem
    lacks = problems(node(11), node(12), node(13))
    assert [each.partition(" ")[0] for each in lacks] == [
        f"regions[0].nodes[{at}].advertised.OUTSIDE" for at in (1, 2)
    ], "all is told at once"
    both = [LISTENER, INSIDE]
    lacks = problems(node(11), met(12), met(13, INSIDE="10.0.0.13:9096"), listeners=both)
    assert [each.partition(" ")[0] for each in lacks] == ["regions[0].nodes[1].advertised.INSIDE"]
    (meant,) = problems(node(11), node(12, advertised={"outside": "n12:9095"}))
    assert "did you mean outside?" in meant


def test_INV_CFT3_two_nodes_at_one_address_are_a_load_balancer_which_no_client_could_use() -> None:
    (problem,) = problems(node(11), met(12), met(13, OUTSIDE="N12.example.org:9095"))
    assert "is that of regions[0].nodes[1].advertised.OUTSIDE, too" in problem
    for same, listener in (
        ("n11.example.org:9095", LISTENER), ("N11.example.org:9095", LISTENER),
        ("n11.example.org:9095", {**LISTENER, "advertised": "N11.Example.org:9095"}),
    ):  # fmt: skip
        (own,) = problems(node(11), met(12, OUTSIDE=same), listeners=[listener])
        assert "is that of listeners[0].advertised, too" in own
    split = met(12, INSIDE="n12.example.org:9095")
    other = {**INSIDE, "advertised": LISTENER["advertised"]}
    assert problems(node(11), split, listeners=[LISTENER, other]) == [], "names differ by who asks"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("n12.example.org:9095", "N12.example.org.:9095"),
        ("n12.example.org:9095", "n12.example.org:09095"),
        ("[2001:db8::1]:9095", "[2001:DB8:0::1]:9095"),
        ("localhost:9095", "127.0.0.1:9095"),
    ],
)
def test_INV_CFT3_one_address_is_one_however_it_is_written(one: str, other: str) -> None:
    """DNS knows no case and a dot at the end of a name (RFC 4343, RFC 1034 3.1), RFC 4291 2.2 several texts of one address."""
    (problem,) = problems(node(11), met(12, OUTSIDE=one), met(13, OUTSIDE=other))
    assert "is that of regions[0].nodes[1].advertised.OUTSIDE, too" in problem


def test_INV_CFT3_a_node_is_told_by_others_as_it_tells_itself() -> None:
    assert problems(met(11), met(12)) == []
    (problem,) = problems(met(11, OUTSIDE="old.example.org:9095"), met(12))
    assert "is not listeners[0].advertised = 'n11.example.org:9095'" in problem
    (problem,) = problems(met(11, OUTSIDF="n11:1"), met(12))
    assert "by a listener that it has not" in problem
    assert "did you mean OUTSIDE?" in problem
    both = problems(node(11, advertised={"OUTSIDF": "n11:1", "OUTSIDE": "old:9095"}), met(12))
    assert ["that it has not" in both[0], "is not listeners[0].advertised" in both[1]] == [True] * 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"OUTSIDE": "0.0.0.0:1"}, "has an address for OUTSIDE that is an address that nobody can reach"),
        ({"OUTSIDE": "n12"}, "has an address for OUTSIDE that is not host:port"),
        ({"a b": "n12:1"}, "has a name that is not safe"),
        ({"OUTSIDE": "n12:1", "outside": "n12:2"}, "names one listener twice"),
        ({"OUTSIDE": 9095}, "is no table of texts"),
        ("n12:9095", "is no table of texts"),
    ],
)  # fmt: skip
def test_what_is_no_address_by_listener_is_refused(wrong: Any, says: str) -> None:
    (problem,) = problems(node(11), node(12, advertised=wrong))
    assert problem.startswith("regions[0].nodes[1].advertised = ")
    assert says in problem


def test_nodes_of_other_regions_are_not_asked_for_listeners() -> None:
    """Their files are theirs: clients here are told of nodes of this region alone."""
    assert problems(node(11), met(12)) == [], "region us of the file has a node without any"


def test_INV_NTL3_who_comes_by_a_listener_meets_the_nodes_that_the_file_says() -> None:
    config = file_of(node(11), met(12), met(13))
    tls = NodeTls(config, AsyncioNetwork(), SystemClock())
    places = {each: (f"n{each}.example.org", 9095) for each in (11, 12, 13)}
    assert [each.listening.met_at for each in tls.further] == [places]
    assert tls.kafka.met_at is None, "as everybody does"


def added(number: int) -> AddedNode:
    return AddedNode(**node(number))


def test_INV_GRW1_where_a_node_that_was_added_is_met_by_listeners_the_file_says() -> None:
    config = with_added(
        file_of(node(11), met(12)), {12: structs.replace(added(12), kafka="moved:9092"), 14: added(14)}
    )  # fmt: skip
    assert [each.kafka for each in config.siblings] == ["moved:9092", "n14.example.org:9092"]
    assert met_by(config, config.listeners[0]) == {
        11: ("n11.example.org", 9095), 12: ("n12.example.org", 9095),
    }  # fmt: skip
    assert gaps_of(config, (11, 12, 14)) == {"OUTSIDE": (14,)}


def test_gaps_are_told_of_each_listener_that_has_some() -> None:
    inside = {"INSIDE": "10.0.0.12:9096"}
    config = file_of(node(11), met(12, **inside), listeners=[LISTENER, INSIDE])
    assert gaps_of(config, (11, 12, 14, 13)) == {"OUTSIDE": (13, 14), "INSIDE": (13, 14)}
    assert gaps_of(config, (11, 12)) == {}


def test_INV_GRW2_a_new_node_has_no_listener_of_the_one_that_was_asked_and_knows_where_others_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = file_of(node(11), met(12))
    told = new_node_file(config, RegionNode(**node(14)), "/data")
    printed = toml_of(told)
    assert "listeners" not in told
    of_it = {"node_id": 14, "listeners": [{**LISTENER, "advertised": "n14.example.org:9095"}]}
    built = NodeConfig.build({**tomllib.loads(printed), **of_it}, "as its operator completes it")
    assert met_by(built, built.listeners[0]) == {
        each: (f"n{each}.example.org", 9095) for each in (11, 12, 14)
    }
    done = {"region": "eu", "node_id": 14, "changed": True, "dry_run": False, "nodes": [11, 12, 14], "config": told}  # fmt: skip
    tell(done | {"listeners": ["OUTSIDE"]})
    said = capsys.readouterr()
    assert "(OUTSIDE) are not told of node 14 yet" in said.err
    assert said.out == printed
    tell(done)
    assert "not told of" not in capsys.readouterr().err, "a node of an older version says nothing"


def test_INV_LGP1_a_node_that_is_not_met_by_a_listener_is_named_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = structs.replace(in_sync(), nodes={}, added_nodes={})
    gaps = ListenerGaps(file_of(node(11), met(12)))
    with caplog.at_level(logging.WARNING, "tidemark.node"):
        gaps.take_image(image)
        assert caplog.messages == []
        for _ in range(2):
            gaps.take_image(structs.replace(image, added_nodes={14: added(14)}))
        (said,) = caplog.messages
        assert said.startswith("clients that come by listener OUTSIDE are not told of node 14: ")
        assert 'advertised = { OUTSIDE = "host:port" }' in said
        gaps.take_image(image)
        gaps.take_image(structs.replace(image, added_nodes={14: added(14)}))
        assert len(caplog.messages) == 2, "it was away, and is back"


def test_INV_LGP1_a_node_that_has_only_registered_is_named_too_by_whoever_hears_of_images(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that another file names, and that nobody has added while the region ran."""
    known = KnownNodes(file_of(node(11), met(12)))
    with caplog.at_level(logging.WARNING, "tidemark.node"):
        known.take_image(in_sync())
    (said,) = caplog.messages
    assert "OUTSIDE are not told of node 1 and node 2 and node 3: " in said


def test_a_region_of_one_node_may_say_its_own_address_by_listener(tmp_path: Path) -> None:
    raw = whole(listeners=[LISTENER], data_dir=str(tmp_path))
    raw["regions"][0]["advertised"] = {"OUTSIDE": LISTENER["advertised"]}
    config = NodeConfig.build(raw, "a")
    assert list(met_by(config, config.listeners[0]).values()) == [("n11.example.org", 9095)]
