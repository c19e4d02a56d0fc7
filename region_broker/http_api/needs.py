"""What each HTTP route asks of who calls it: one table, and what is not in it is for administrators.

INV-HND1  every route of a node has its row here, and every row its route
INV-HND2  a token may what its role covers; a user, or whoever a certificate names, what ACLs allow: an operation, on the cluster,
          on the topic or on the transactional id that the question names
INV-HND5  such a short answer names no log, and none is looked at for it: whoever has a password may ask as often as it likes. Why a region does
          not act may name topics: that is for who may describe the cluster, here, in verdicts and on the Kafka port
INV-HND4  an answer about one thing leaves out topics that it names, and who asks may not see
INV-HND3  who may not see all of `IN_BRIEF` routes is told what a load balancer and a client need, and nothing else
Pure. Not here: who asks (`doors`).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from region_broker.security.access import CLUSTER_NAME, Operation, ResourceType
from region_broker.security.http_tokens import Role


class Need(NamedTuple):
    """`role`: the least one, of a token; None: anybody may, unknown to us or not.

    `operation`: of a user, on the cluster; or on what the parameter `named_by` of the query names, of type `of`.
    `in_brief`: whoever may not has a short answer: with `known_only` where it has logged in, else anybody.
    """

    role: Role | None
    operation: Operation = Operation.DESCRIBE
    of: ResourceType = ResourceType.CLUSTER
    named_by: str = ""
    in_brief: bool = False
    known_only: bool = False

    def resource(self, query: Mapping[str, str]) -> tuple[ResourceType, str]:
        """Return what a user must be allowed the operation on."""
        name = query.get(self.named_by, "") if self.named_by else ""
        return (self.of, name) if name else (ResourceType.CLUSTER, CLUSTER_NAME)


_ANYBODY: Final = Need(None)
_METRICS: Final = Need(Role.METRICS)
_SEES: Final = Need(Role.READER)
_ORDERS: Final = Need(Role.OPERATOR, Operation.ALTER)
_DECIDES: Final = Need(Role.ADMIN, Operation.ALTER)
UNKNOWN_ROUTE: Final = _DECIDES
NO_ROUTE: Final = ""
"""The path where the router found none, or none for the method: whoever is known is told so."""
ANY_METHOD: Final = "*"
EVERYTHING: Final = "/{path}"
"""What a node that waits answers everything else with, as aiohttp names it."""

NEEDS: Final[Mapping[tuple[str, str], Need]] = {
    ("GET", "/livez"): _ANYBODY,
    ("GET", "/readyz"): Need(Role.METRICS, in_brief=True),
    ("GET", "/metrics"): _METRICS,
    ("GET", "/v1/region"): Need(Role.READER, in_brief=True, known_only=True),
    ("GET", "/v1/region/loss-statement"): _SEES,
    ("GET", "/v1/region/loss-to-accept"): _SEES,
    ("GET", "/v1/region/losses"): _SEES,
    ("GET", "/v1/region/deleted-topics"): _SEES,
    ("GET", "/v1/operations/{operation_id}"): _SEES,
    ("POST", "/v1/region/failover"): _ORDERS,
    ("POST", "/v1/region/switch"): _ORDERS,
    ("POST", "/v1/region/accept-loss"): _DECIDES,
    ("GET", "/v1/cluster"): _SEES,
    ("GET", "/v1/cluster/partitions"): _SEES,
    ("POST", "/v1/cluster/drain"): _ORDERS,
    ("POST", "/v1/cluster/elect"): _ORDERS,
    ("POST", "/v1/cluster/spread"): _ORDERS,
    ("POST", "/v1/cluster/gather"): _ORDERS,
    ("POST", "/v1/cluster/unclean-election"): _DECIDES,
    ("POST", "/v1/cluster/remove"): _DECIDES,
    ("POST", "/v1/cluster/nodes"): _DECIDES,
    ("GET", "/v1/features"): _SEES,
    ("POST", "/v1/features"): _DECIDES,
    ("GET", "/v1/transactions"): Need(Role.READER, of=ResourceType.TRANSACTIONAL_ID, named_by="transactional_id"),
    ("GET", "/v1/transactions/open"): _SEES,
    ("POST", "/v1/transactions/abort"): _ORDERS,
    (ANY_METHOD, EVERYTHING): _SEES,
    (ANY_METHOD, NO_ROUTE): Need(Role.ADMIN, in_brief=True, known_only=True),
    ("GET", "/v1/verdict"): Need(Role.READER, of=ResourceType.TOPIC, named_by="topic"),
}  # fmt: skip
"""By method and path; HEAD needs what GET does."""


def need_of(method: str, path: str) -> Need:
    """Return what a route asks for; `path` as it was added to the router."""
    asked = "GET" if method == "HEAD" else method
    return NEEDS.get((asked, path)) or NEEDS.get((ANY_METHOD, path), UNKNOWN_ROUTE)


BRIEF_REGION_FIELDS: Final = ("region", "acting", "region_epoch", "reason_not_acting")
BRIEF_PEER_FIELDS: Final = ("region", "kafka", "http", "acts")


def brief_region(view: Mapping[str, object]) -> dict[str, object]:
    """Return what a client must know of a region: whether it acts, and where the others are met."""
    peers = view.get("peers")
    return {
        "in_brief": True,
        **{key: view[key] for key in BRIEF_REGION_FIELDS if key in view},
        "peers": [
            {key: peer[key] for key in BRIEF_PEER_FIELDS if key in peer}
            for peer in (peers if isinstance(peers, list | tuple) else ())
        ],
    }
