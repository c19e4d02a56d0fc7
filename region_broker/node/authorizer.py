"""The authorizer of a node: by the ACLs of its metadata as they are now, the super users of its file, and what its listeners ask of clients.

Not here: judging (`security.authorizer`), which ports are open to others (`config.exposure`).
"""

import logging
from collections.abc import Callable
from typing import Final

from region_broker.config.exposure import knows_its_clients
from region_broker.config.node_config import NodeConfig
from region_broker.controller.metadata_store import MetadataStore
from region_broker.node.auditing import keeps_trail
from region_broker.security.access import Access
from region_broker.security.authorizer import AclAuthorizer, principals_of

_log: Final = logging.getLogger("tidemark.node")


def compose_authorizer(config: NodeConfig, metadata: MetadataStore) -> AclAuthorizer:
    """Return what handlers ask (INV-AUZ3); warn where nobody may do anything, nor let anybody."""
    if knows_its_clients(config) and not config.super_users and not metadata.image.access.acls:
        _log.warning(
            "clients prove who they are, and nobody may do anything: there is no ACL, and nobody to make one. Name somebody in super_users"
            " of this file (docs/reference/security.md), and start the node again"
        )
    return authorizer_of(config, lambda: metadata.image.access)


def authorizer_of(config: NodeConfig, access: Callable[[], Access]) -> AclAuthorizer:
    """Return the same, of who has the metadata in another way."""
    authenticates = knows_its_clients(config)
    return AclAuthorizer(
        access,
        principals_of(config.super_users),
        lambda: authenticates,
        trail_topic=config.audit_topic if keeps_trail(config) else "",
    )
