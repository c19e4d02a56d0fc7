"""The authorizer of a node: by the ACLs of its metadata as they are now, the super users of its file, and what its listeners ask of clients.

Not here: judging (`security.authorizer`), which ports are open to others (`config.exposure`).
"""

from collections.abc import Callable

from region_broker.config.exposure import knows_its_clients
from region_broker.config.node_config import NodeConfig
from region_broker.controller.metadata_store import MetadataStore
from region_broker.security.access import Access
from region_broker.security.authorizer import AclAuthorizer, principals_of


def compose_authorizer(config: NodeConfig, metadata: MetadataStore) -> AclAuthorizer:
    """Return what handlers ask (INV-AUZ3)."""
    return authorizer_of(config, lambda: metadata.image.access)


def authorizer_of(config: NodeConfig, access: Callable[[], Access]) -> AclAuthorizer:
    """Return the same, of who has the metadata in another way."""
    authenticates = knows_its_clients(config)
    return AclAuthorizer(access, principals_of(config.super_users), lambda: authenticates)
