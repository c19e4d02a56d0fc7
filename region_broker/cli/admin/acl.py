"""`tidemark acl`: who may do what: list, add and remove ACLs, and say which of them decides.

Any node of any region may be asked: a change is carried out in the primary region, and checked there. What is shown, and explained, is what
the region knows that is asked. `explain` decides here, by the code that a node decides by, from what the node tells of its ACLs and super users.
Not here: words (`acl_words`), what ACLs mean (`security.authorizer`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from region_broker.cli.admin.acl_words import (
    ANY_HOST,
    Resource,
    WordError,
    acls_of,
    host_of,
    operations_of,
    principal_of,
    resource_of,
    row_of,
    rows_of,
    shown_operation,
)
from region_broker.cli.kafka import (
    TIMEOUT_S,
    admin_client,
    bootstrap_option,
    kafka_errors,
    metadata_of,
    wait_for,
)
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_json,
    print_pairs,
    print_rows,
)
from region_broker.security.access import (
    Access,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.authorizer import (
    EVERYBODY,
    AclAuthorizer,
    Decision,
    PrincipalRefused,
    Why,
    principals_of,
)
from region_broker.security.identity import Identity

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Command = TypeVar("Command", bound=Callable[..., Any])
_SUPER_USERS: Final = "super_users"
_NODE_NOT_KNOWN: Final = (
    "Super users and the topic of the audit trail are not known: we may not see the node's configs."
)


@click.group(epilog="Example: tidemark acl add alice read,describe topic:orders")
def acl() -> None:
    """List, add and remove ACLs: who may do what; say which of them decides."""


def _rule_options(command: Command) -> Command:
    """Add the arguments and options that name a rule."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only say what would change."),
        click.option("--prefixed", is_flag=True, help="All resources whose names begin with NAME."),
        click.option("--deny", is_flag=True, help="A rule that denies, not one that allows."),
        click.option("--host", default=ANY_HOST, show_default=True, help="The IP address it counts for; * stands for all."),
        click.argument("resource"),
        click.argument("operations"),
        click.argument("principal"),
    ):  # fmt: skip
        command = option(command)
    return command


@acl.command(
    "list",
    epilog="""\b
Examples:
  tidemark acl list
  tidemark acl list --principal alice -o json
  tidemark acl list --resource topic:orders             # all that affect it, patterns too
""",
)
@click.option("--principal", help="Only rules that name this principal; a name alone is a user's.")
@click.option("--resource", help="Only rules that affect this resource: TYPE:NAME, or cluster.")
@bootstrap_option
@output_option
def acl_list(principal: str | None, resource: str | None, bootstrap: str, output: str) -> None:
    """Show ACLs: all, or those of a principal, or those that affect a resource."""
    who = None if principal is None else _said(principal_of, principal)
    what = None if resource is None else _said(resource_of, resource)
    found = _described(admin_client(bootstrap), what, who)
    print_rows(rows_of(found), output, title="ACLs")


@acl.command(
    "add",
    epilog="""\b
Examples:
  tidemark acl add alice read,describe topic:orders
  tidemark acl add alice write topic:orders- --prefixed
  tidemark acl add User:* read topic:public --dry-run
  tidemark acl add bob all topic:* --deny --host 10.0.0.7
  tidemark acl add deployer alter,create cluster
""",
)
@_rule_options
@bootstrap_option
@output_option
def acl_add(bootstrap: str, output: str, dry_run: bool, **rule: Any) -> None:
    """Allow, or deny, PRINCIPAL the OPERATIONS (with commas between) on RESOURCE, in every region.

    RESOURCE is topic:NAME, group:NAME, transactional-id:NAME, TYPE:* for all of a type, or cluster.
    """
    rule["host"] = _said(host_of, rule["host"])
    wanted = _rule(**rule)
    client = admin_client(bootstrap)
    there = set(_described(client, None, None))
    if not dry_run:
        answers = client.create_acls([_binding(each) for each in wanted])
        for answer in answers.values():
            wait_for(answer, "the ACLs were not added")
    rows = [
        {**row_of(each), "change": "there already" if each in there else "added"} for each in wanted
    ]
    print_rows(rows, output, title=f"ACLs that {'would be' if dry_run else 'were'} added")


@acl.command(
    "remove",
    epilog="""\b
Examples:
  tidemark acl remove alice read,describe topic:orders
  tidemark acl remove bob all topic:* --deny --host 10.0.0.7 --dry-run
""",
)
@_rule_options
@bootstrap_option
@output_option
def acl_remove(bootstrap: str, output: str, dry_run: bool, **rule: Any) -> None:
    """Remove the rules that say exactly this; `tidemark acl list` shows what there is."""
    wanted = _rule(**rule)
    client = admin_client(bootstrap)
    there = set(_described(client, None, None))
    gone = [each for each in wanted if each in there]
    if not gone:
        fail("there is no such rule: tidemark acl list shows all", EXIT_NOT_FOUND)
    if not dry_run:
        answers = client.delete_acls([_filter(each) for each in gone])
        for answer in answers.values():
            wait_for(answer, "the ACLs were not removed")
    print_rows(
        rows_of(gone), output, title=f"ACLs that {'would be' if dry_run else 'were'} removed"
    )


@acl.command(
    "explain",
    epilog="""\b
Examples:
  tidemark acl explain alice read topic:orders
  tidemark acl explain User:bob write topic:orders --host 10.0.0.7 -o json
""",
)
@click.argument("principal")
@click.argument("operation")
@click.argument("resource")
@click.option("--host", default="", help="The IP address that the client comes from.")
@bootstrap_option
@output_option
def acl_explain(
    principal: str, operation: str, resource: str, host: str, bootstrap: str, output: str
) -> None:
    """Say whether PRINCIPAL may do OPERATION on RESOURCE, and which rule decides, or that none does."""
    who = _said(principal_of, principal)
    [asked, *more] = _said(operations_of, operation)
    if more or asked is Operation.ALL:
        fail("ask about one operation: each is decided by itself", EXIT_USAGE)
    what = _said(resource_of, resource)
    host = _said(host_of, host) if host else ""
    client = admin_client(bootstrap)
    node = _node_of(client)
    acls = _acls_in_force(client, what)
    if acls is not None and _changes_trail(node, asked, what):  # rules for the cluster count, too
        acls += _acls_in_force(client, resource_of("cluster")) or []
    decision = _decision(acls, node, Identity(who, host), asked, what)
    other_hosts = () if host else _hosts_that_differ(acls, node, decision, who, asked, what)
    told: dict[str, Any] = {
        "principal": who, "operation": shown_operation(asked), "resource": what.shown, "host": host or "any",
        "allowed": decision.allowed, "because": decision.why.value, "otherwise_from_hosts": list(other_hosts),
        "super_users_known": node.super_users is not None,
    }  # fmt: skip
    if node.super_users is None:
        click.echo(_NODE_NOT_KNOWN, err=True)
    if other_hosts:
        click.echo(f"It is otherwise from {', '.join(other_hosts)}: ask with --host.", err=True)
    if output == "json":
        print_json({**told, "rule": None if decision.acl is None else row_of(decision.acl)})
        return
    answer = "allowed" if decision.allowed else "refused"
    title = f"{who} {shown_operation(asked)} {what.shown}: {answer}, {decision.why.value}"
    rule = [] if decision.acl is None else [*row_of(decision.acl).items()]
    print_pairs(title, rule)


class _Node(NamedTuple):
    """Of the node that is asked: its super users, None where it does not tell, and the topic that keeps its audit trail (INV-AUZ7)."""

    super_users: frozenset[str] | None = None
    trail_topic: str = ""


def _hosts_that_differ(
    acls: Sequence[Acl] | None, node: _Node, usual: Decision, who: str, asked: Operation, what: Resource,
) -> Sequence[str]:  # fmt: skip
    """Return the hosts that rules name one by one, and from which it is decided otherwise than, as `usual`, from others."""
    judge, mine = _judge(acls or (), node), {who, EVERYBODY}
    hosts = sorted({acl.host for acl in acls or () if acl.principal in mine} - {ANY_HOST})
    return [
        host
        for host in hosts
        if judge.allows(Identity(who, host), asked, what.resource_type, what.name) != usual.allowed
    ]


def _changes_trail(node: _Node, asked: Operation, what: Resource) -> bool:
    judge = AclAuthorizer(Access, trail_topic=node.trail_topic)
    return what.resource_type is ResourceType.TOPIC and judge.changes_trail(asked, what.name)


def _decision(
    acls: Sequence[Acl] | None, node: _Node, who: Identity, asked: Operation, what: Resource
) -> Decision:  # fmt: skip
    """Return what a node decides; `acls`: None where nothing is in force."""
    if acls is None:
        return Decision(allowed=True, why=Why.NOT_IN_FORCE)
    return _judge(acls, node).decision(who, asked, what.resource_type, what.name)


def _judge(acls: Sequence[Acl], node: _Node) -> AclAuthorizer:
    access = Access(acls=tuple(sorted(acls)))
    return AclAuthorizer(
        lambda: access, node.super_users or frozenset(), lambda: True, node.trail_topic
    )


def _said(read: Callable[[str], Any], word: str) -> Any:
    """Return what a word means; ends the command where it means nothing."""
    try:
        return read(word)
    except WordError as error:
        fail(str(error), EXIT_USAGE)


def _rule(
    *, principal: str, operations: str, resource: str, host: str, deny: bool, prefixed: bool
) -> list[Acl]:
    who, what = _said(principal_of, principal), _said(resource_of, resource)
    how = _said(operations_of, operations)
    try:
        return acls_of(who, how, what, host=host, is_prefix=prefixed, is_deny=deny)
    except WordError as error:
        fail(str(error), EXIT_USAGE)


# --- asking ---------------------------------------------------------------------------------------


def _described(client: "AdminClient", what: Resource | None, who: str | None) -> list[Acl]:
    """Return the ACLs that affect a resource, None for all, and name a principal; ends the command where that is refused."""
    with kafka_errors("the ACLs were not read"):
        return _asked(client, what, who)


def _acls_in_force(client: "AdminClient", what: Resource) -> list[Acl] | None:
    """Return the ACLs that affect a resource; None where no access is in force."""
    from confluent_kafka import KafkaError, KafkaException

    with kafka_errors("the ACLs were not read"):
        try:
            return _asked(client, what, None)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.SECURITY_DISABLED:
                return None
            raise


def _asked(client: "AdminClient", what: Resource | None, who: str | None) -> list[Acl]:
    from confluent_kafka.admin._acl import AclBindingFilter, AclOperation, AclPermissionType
    from confluent_kafka.admin._resource import ResourcePatternType
    from confluent_kafka.admin._resource import ResourceType as Kind

    kind = Kind.ANY if what is None else Kind(int(what.resource_type))
    how = ResourcePatternType.ANY if what is None else ResourcePatternType.MATCH
    name = None if what is None else what.name
    filtered: Any = AclBindingFilter  # None leaves open, though its types do not say so
    asked = filtered(kind, name, how, who, None, AclOperation.ANY, AclPermissionType.ANY)
    found = client.describe_acls(asked).result(timeout=TIMEOUT_S)
    if not found:
        _check_empty(client)
    return [
        Acl(
            ResourceType(each.restype.value), PatternType(each.resource_pattern_type.value), each.name,
            each.principal, each.host, Operation(each.operation.value), Permission(each.permission_type.value),
        )
        for each in found
    ]  # fmt: skip


_IMPOSSIBLE: Final = Acl(
    ResourceType.CLUSTER, PatternType.LITERAL, "none", "User:none", "none", Operation.ALTER, Permission.DENY
)  # fmt: skip
"""No broker takes such an ACL: the cluster has one name, and it is another."""


def _check_empty(client: "AdminClient") -> None:
    """Raise `KafkaException` where there only seem to be no ACLs: librdkafka keeps an error of DescribeAcls to itself, and has an empty list.

    Who may not remove what cannot be there may be one who may only look: that stands in what he may do with the cluster.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin._acl import AclOperation

    [answer] = client.delete_acls([_filter(_IMPOSSIBLE)]).values()
    try:
        answer.result(timeout=TIMEOUT_S)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.SECURITY_DISABLED:
            raise
        if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            asked = client.describe_cluster(include_authorized_operations=True)
            cluster = asked.result(timeout=TIMEOUT_S)
            if AclOperation.DESCRIBE not in (cluster.authorized_operations or ()):
                raise


def _binding(each: Acl) -> Any:
    from confluent_kafka.admin._acl import AclBinding

    return AclBinding(*_parts(each))


def _filter(each: Acl) -> Any:
    from confluent_kafka.admin._acl import AclBindingFilter

    return AclBindingFilter(*_parts(each))


def _parts(each: Acl) -> tuple[Any, ...]:
    from confluent_kafka.admin._acl import AclOperation, AclPermissionType
    from confluent_kafka.admin._resource import ResourcePatternType
    from confluent_kafka.admin._resource import ResourceType as Kind

    return (
        Kind(int(each.resource_type)), each.name, ResourcePatternType(int(each.pattern_type)), each.principal, each.host,
        AclOperation(int(each.operation)), AclPermissionType(int(each.permission)),
    )  # fmt: skip


def _node_of(client: "AdminClient") -> "_Node":
    """Return what the node that is asked says of itself that decides beside ACLs."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin._config import ConfigResource

    number = metadata_of(client).controller_id
    if number < 0:
        return _Node()  # nobody leads
    resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
    try:
        told = client.describe_configs([resource])[resource].result(timeout=TIMEOUT_S)
    except (KafkaException, TimeoutError):
        return _Node()  # explained all the same, and said
    if _SUPER_USERS not in told:
        return _Node()
    values = {key: str(entry.value or "") for key, entry in told.items()}
    try:
        super_users = principals_of(values[_SUPER_USERS])
    except PrincipalRefused:
        return _Node()
    return _Node(super_users, values.get("audit_topic", "") if values.get("audit") != "off" else "")
