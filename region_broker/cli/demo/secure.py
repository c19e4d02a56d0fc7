"""`tidemark demo --secure`: the regions' ports are shut, and the workers come in as a user who may do their work, and nothing else.

No worker has the administrator's password: its user may read the input, write the accounts, and use its group and its
transactional ids, by ACLs; so the demo shows that these go over with the region.
Not here: certificates and the administrator (`workbench.secure_cluster`), the work (`workbench.workload`).
"""

import secrets
from dataclasses import replace
from typing import Final

import click
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from region_broker.cli.kafka import admin_client, wait_for
from region_broker.cli.pasted_logins import logins_text
from region_broker.security.login import NO_SECURITY, Security
from region_broker.workbench.credentials import present_as, presented
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import SecuredCluster, secured
from region_broker.workbench.workload import (
    ACCOUNTS_TOPIC,
    GROUP_ID,
    INPUT_TOPIC,
    transactional_id_of,
)

WORKERS: Final = "workers"
_ITERATIONS: Final = 4096


def shut(cluster: LocalCluster) -> SecuredCluster:
    """Give the cluster certificates and an administrator, and let this process ask as that one."""
    made = secured(cluster.folder, cluster.plan)
    cluster.tell(made.settings, made.of_node, "https")
    present_as(made.admin)
    return made


def announce(cluster: LocalCluster, made: SecuredCluster) -> None:
    """Print what lets clients of others in while the demo runs. It is secret: nothing of it is in the report."""
    click.echo(logins_text(cluster, made, "demo"))


def leave() -> None:
    """Ask as nobody again."""
    present_as(NO_SECURITY)


def let_workers_in(bootstrap: str) -> Security:
    """Make the workers' user and its ACLs, and return as whom they ask; ends the command where that fails."""
    admin, password = presented(), secrets.token_urlsafe(18)
    client = admin_client(bootstrap)
    keys = UserScramCredentialUpsertion(
        WORKERS, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS), password.encode()
    )
    for made in client.alter_user_scram_credentials([keys]).values():
        wait_for(made, f"user {WORKERS} was not made")
    for binding, done in client.create_acls(_acls()).items():
        wait_for(done, f"the ACL on {binding.name} was not made")
    return replace(admin, user=WORKERS, password=password, http_token="")


def _acls() -> list[AclBinding]:
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    return [
        AclBinding(kind, name, pattern, f"User:{WORKERS}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in (
            (ResourceType.TOPIC, INPUT_TOPIC, literal, AclOperation.READ),
            (ResourceType.TOPIC, ACCOUNTS_TOPIC, literal, AclOperation.WRITE),
            (ResourceType.GROUP, GROUP_ID, literal, AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, transactional_id_of(""), prefixed, AclOperation.WRITE),
        )
    ]
