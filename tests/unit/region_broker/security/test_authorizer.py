"""ACLs are judged as Kafka's documentation says, held against a reading of it that knows no index and no memory."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from timeit import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from region_broker.security import authorizer as authorizer_module
from region_broker.security.access import (
    CLUSTER_NAME,
    NO_ACCESS,
    Access,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramKeys,
    changed,
)
from region_broker.security.authorizer import (
    REMEMBERED_NAME_MAX,
    AclAuthorizer,
    PrincipalRefused,
    Why,
    principals_of,
)
from region_broker.security.identity import ANONYMOUS, Identity, host_of

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE = Identity("User:alice", host="10.0.0.1")
BOB = Identity("User:bob", host="10.0.0.2")


def acl(
    name: str = "orders", operation: Operation = Operation.READ, permission: Permission = ALLOW, *,
    kind: ResourceType = TOPIC, how: PatternType = LITERAL, who: str = "User:alice", host: str = "*",
) -> Acl:  # fmt: skip
    return Acl(kind, how, name, who, host, operation, permission)


@dataclass
class Kept:
    """Access that changes as metadata do."""

    access: Access = NO_ACCESS
    authorizer: AclAuthorizer = field(init=False)

    def __post_init__(self) -> None:
        self.authorizer = AclAuthorizer(lambda: self.access)

    def put(self, *acls: Acl) -> None:
        self.access = changed(self.access, AccessChange(acls_added=acls))

    def remove(self, *acls: Acl) -> None:
        self.access = changed(self.access, AccessChange(acls_removed=acls))

    def allows(
        self, operation: Operation = Operation.READ, name: str = "orders", *,
        who: Identity = ALICE, kind: ResourceType = TOPIC,
    ) -> bool:  # fmt: skip
        first = self.authorizer.allows(who, operation, kind, name)
        assert self.authorizer.allows(who, operation, kind, name) is first, "from memory"
        return first


def kept(*acls: Acl) -> Kept:
    found = Kept()
    found.put(*acls)
    return found


# --- INV-AUZ1: deny over allow --------------------------------------------------------------------


def test_INV_AUZ1_a_deny_decides_whatever_allows() -> None:
    """Kafka's security documentation: everybody may read Test-topic, but BadBob from 198.51.100.3."""
    rules = kept(
        acl("Test-topic", who="User:*"),
        acl("Test-topic", who="User:BadBob", host="198.51.100.3", permission=DENY),
    )
    bad = Identity("User:BadBob", host="198.51.100.3")
    assert not rules.allows(name="Test-topic", who=bad)
    assert rules.allows(name="Test-topic", who=Identity("User:BadBob", host="198.51.100.4"))
    assert rules.allows(name="Test-topic", who=ALICE)


@pytest.mark.parametrize(
    "deny",
    [
        acl(permission=DENY), acl(permission=DENY, who="User:*"), acl("*", permission=DENY), acl("ord", permission=DENY, how=PREFIXED),
        acl(operation=Operation.ALL, permission=DENY), acl(permission=DENY, host="10.0.0.1"),
    ],
)  # fmt: skip
def test_INV_AUZ1_of_every_shape(deny: Acl) -> None:
    rules = kept(acl(), acl("*", operation=Operation.ALL), acl("o", how=PREFIXED))
    assert rules.allows()
    rules.put(deny)
    assert not rules.allows()


def test_CVE_2024_27309_removing_one_acl_never_makes_a_deny_be_ignored() -> None:
    deny = acl(permission=DENY)
    rest = [acl(), acl(permission=DENY, who="User:carol"), acl(who="User:*"), acl("orders", Operation.WRITE)]  # fmt: skip
    for gone in rest:
        rules = kept(deny, *rest)
        assert not rules.allows()
        rules.remove(gone)
        assert not rules.allows(), gone


def test_INV_AUZ1_what_nothing_allows_is_refused_and_of_super_users_nothing_is() -> None:
    rules = kept(acl(who="User:carol"))
    assert not rules.allows()
    assert not rules.allows(who=ANONYMOUS)
    rules.put(acl(permission=DENY, who="User:*", operation=Operation.ALL))
    rules.authorizer.super_users = principals_of("User:ops; User:alice")
    assert rules.allows()
    assert rules.authorizer.decision(ALICE, Operation.READ, TOPIC, "orders").why is Why.SUPER_USER
    rules.authorizer.super_users = frozenset()
    assert not rules.allows()


# --- INV-AUZ2: what implies what ------------------------------------------------------------------

IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
"""StandardAuthorizerData.java, IMPLIES_DESCRIBE and IMPLIES_DESCRIBE_CONFIGS."""


@pytest.mark.parametrize("asked", sorted(set(Operation) - {Operation.ANY, Operation.ALL}))
@pytest.mark.parametrize("given_", sorted(set(Operation) - {Operation.ANY}))
def test_INV_AUZ2_operations_imply_what_kafka_says_and_denials_nothing(
    asked: Operation, given_: Operation
) -> None:
    implied = given_ in (asked, Operation.ALL) or given_ in IMPLIED.get(asked, set())
    assert kept(acl(operation=given_)).allows(asked) is implied
    denied = given_ in (asked, Operation.ALL)
    rules = kept(acl(operation=asked), acl(operation=given_, permission=DENY))
    assert rules.allows(asked) is not denied


# --- INV-AUZ3: when it is in force ----------------------------------------------------------------


def test_INV_AUZ3_with_nothing_configured_everything_is_allowed() -> None:
    rules = Kept()
    assert not rules.authorizer.in_force
    assert rules.allows(who=ANONYMOUS)
    assert rules.authorizer.allows_any(ANONYMOUS, Operation.WRITE, TOPIC)
    rules.access = Access(number=3, quotas=(), tokens=())
    assert not rules.authorizer.in_force, "quotas say nothing about who may what"


def test_INV_AUZ3_anything_that_names_somebody_puts_it_in_force() -> None:
    keys = ScramKeys("alice", "SCRAM-SHA-256", b"s", 4096, b"k", b"v")
    by_key = AclAuthorizer(lambda: Access(keys=(keys,)))
    by_acl = AclAuthorizer(lambda: Access(acls=(acl(who="User:carol"),)))
    by_super = AclAuthorizer(lambda: NO_ACCESS, principals_of("User:ops"))
    by_listener = AclAuthorizer(lambda: NO_ACCESS, authenticates=lambda: True)
    for each in (by_key, by_acl, by_super, by_listener):
        assert each.in_force
        assert not each.allows(ALICE, Operation.READ, TOPIC, "orders")
        assert not each.allows_any(ALICE, Operation.WRITE, TOPIC)


def test_principals_are_read_as_kafka_reads_super_users() -> None:
    assert principals_of("") == frozenset()
    assert principals_of("User:admin;User:CN=a,OU=b; ") == {"User:admin", "User:CN=a,OU=b"}
    for wrong in ("admin", "User:", ":admin", "User:a;b"):
        with pytest.raises(PrincipalRefused):
            principals_of(wrong)


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:9092", "10.0.0.1"), ("[::1]:9092", "::1"), ("::1:9092", "::1"), ("::ffff:10.0.0.1:9092", "10.0.0.1"), ("", "")],
)  # fmt: skip
def test_a_host_is_an_address_without_its_port(address: str, host: str) -> None:
    assert host_of(address) == host


# --- INV-AUZ4: memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "address", "is_denied"),
    [
        ("2001:db8:0:0:0:0:0:1", "[2001:db8::1]:5", True),  # java.net.Inet6Address.getHostAddress
        ("2001:DB8::1", "[2001:db8::1]:5", True),
        ("2001:0db8:0000::0001", "[2001:db8::1]:5", True),
        ("::ffff:10.0.0.7", "10.0.0.7:5", True),
        ("0:0:0:0:0:ffff:a00:7", "[::ffff:10.0.0.7]:5", True),
        ("fe80::1", "[fe80::1%eth0]:5", True),
        ("fe80::1%eth1", "[fe80::1%eth0]:5", False),
        ("2001:db8::2", "[2001:db8::1]:5", False),
        ("::a00:7", "10.0.0.7:5", False),
        ("2001:db8::/64", "[2001:db8::1]:5", False),  # Kafka knows no networks
        ("10.0.0.7", "[2001:db8::1]:5", False),
    ],
)
def test_INV_SID3_an_address_is_denied_however_it_is_written(
    written: str, address: str, is_denied: bool
) -> None:
    """RFC 4291, section 2.2: these are ways to write one address."""
    kept = Kept()
    kept.put(acl(operation=Operation.WRITE), acl(operation=Operation.WRITE, permission=DENY, host=written, name="*"))  # fmt: skip
    who = Identity("User:alice", host=host_of(address))
    assert kept.authorizer.allows(who, Operation.WRITE, TOPIC, "orders") is not is_denied
    assert kept.authorizer.allows_any(who, Operation.WRITE, TOPIC) is not is_denied


def test_INV_AUZ4_memory_ends_with_what_it_was_made_of() -> None:
    rules = kept(acl())
    assert rules.allows()
    rules.put(acl(permission=DENY))
    assert not rules.allows()
    rules.remove(acl(permission=DENY))
    assert rules.allows()


def test_INV_AUZ4_memory_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "REMEMBERED_MAX", 10)
    rules = kept(acl("t", how=PREFIXED))
    for number in range(100):
        assert rules.allows(name=f"t{number}")
        assert len(rules.authorizer._remembered) <= 10
    rules.put(acl("u", how=PREFIXED))
    assert rules.allows(name="u" + "x" * REMEMBERED_NAME_MAX)
    assert len(rules.authorizer._remembered) == 0, "a long name is not kept"


def test_INV_AUZ4_what_is_remembered_is_of_that_asker_operation_and_kind_alone() -> None:
    rules = kept(acl("t", Operation.WRITE, host=ALICE.host), acl("t", Operation.READ, kind=CLUSTER))
    elsewhere = Identity(ALICE.principal, host=BOB.host)
    assert rules.authorizer.allows_any(ALICE, Operation.WRITE, TOPIC)
    assert not rules.authorizer.allows_any(elsewhere, Operation.WRITE, TOPIC)
    assert rules.allows(Operation.READ, "t", kind=CLUSTER)
    assert not rules.allows(Operation.WRITE, "t", kind=GROUP), "3 + 4 is 4 + 3"


def test_INV_AUZ4_one_of_a_kind_is_remembered_for_that_operation_and_kind_alone() -> None:
    """WRITE and TOPIC are 4 and 2, READ and GROUP 3 and 3."""
    rules = kept(acl("t", Operation.WRITE))
    assert rules.authorizer.allows_any(ALICE, Operation.WRITE, TOPIC)
    assert not rules.authorizer.allows_any(ALICE, Operation.READ, GROUP)


def test_INV_AUZ1_a_super_user_may_write_with_a_producer_id_whatever_is_denied() -> None:
    denied = Access(acls=(acl("*", Operation.WRITE, DENY, who="User:*"),))
    rules = AclAuthorizer(lambda: denied, principals_of(ALICE.principal))
    assert rules.allows_any(ALICE, Operation.WRITE, TOPIC)
    assert not rules.allows_any(BOB, Operation.WRITE, TOPIC)


def test_INV_AUZ4_nothing_is_remembered_while_nothing_is_in_force() -> None:
    listens: list[bool] = []
    rules = AclAuthorizer(lambda: NO_ACCESS, authenticates=lambda: bool(listens))
    assert rules.allows(ALICE, Operation.READ, TOPIC, "t")
    listens.append(True)
    assert not rules.allows(ALICE, Operation.READ, TOPIC, "t")


def test_INV_AUZ4_what_was_refused_while_it_was_in_force_is_not_refused_behind_that() -> None:
    """The last user goes, and no ACL has come or gone: what was remembered was decided by rules that are there no more."""
    keys = ScramKeys("alice", "SCRAM-SHA-256", b"s", 4096, b"k", b"v")
    rules = Kept(changed(NO_ACCESS, AccessChange(keys_put=(keys,))))
    assert not rules.allows()
    assert not rules.authorizer.allows_any(ALICE, Operation.WRITE, TOPIC)
    gone = AccessChange(keys_removed=((keys.user, keys.mechanism),))
    rules.access = changed(rules.access, gone)
    assert rules.allows()
    assert rules.authorizer.allows_any(ALICE, Operation.WRITE, TOPIC)


# --- held against Kafka's documentation -----------------------------------------------------------


def says_kafka(
    acls: Iterable[Acl], who: Identity, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Read "Authorization and ACLs" and KIP-290 from top to bottom: no order, no index, no memory."""
    allowed = denied = False
    for each in acls:
        if each.resource_type != kind or each.principal not in (who.principal, "User:*"):
            continue
        if each.host not in ("*", who.host):
            continue
        if each.pattern_type == LITERAL and each.name not in (name, "*"):
            continue
        if each.pattern_type == PREFIXED and not name.startswith(each.name):
            continue
        exact = each.operation in (operation, Operation.ALL)
        if each.permission == DENY:
            denied = denied or exact
        else:
            allowed = allowed or exact or each.operation in IMPLIED.get(operation, set())
    return allowed and not denied


NAMES = st.text("ab*", min_size=1, max_size=4)
PRINCIPALS = st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"])
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2", "*"])
KINDS = st.sampled_from([TOPIC, GROUP, CLUSTER])
OPERATIONS = st.sampled_from(
    [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]
)  # fmt: skip
ACLS = st.builds(
    Acl, KINDS, st.sampled_from([LITERAL, PREFIXED]), NAMES, PRINCIPALS, HOSTS, OPERATIONS,
    st.sampled_from([ALLOW, ALLOW, DENY]),
)  # fmt: skip
ASKED = st.tuples(
    st.builds(Identity, PRINCIPALS, HOSTS), OPERATIONS.filter(lambda each: each != Operation.ALL), KINDS, NAMES
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(ACLS, min_size=1, max_size=30), st.lists(ASKED, min_size=1, max_size=30))
def test_every_decision_is_the_one_that_the_documentation_leads_to(
    acls: list[Acl], asked: list[tuple[Identity, Operation, ResourceType, str]]
) -> None:
    rules = kept(*acls)
    for who, operation, kind, name in asked:
        expected = says_kafka(acls, who, operation, kind, name)
        assert rules.allows(operation, name, who=who, kind=kind) is expected


@settings(max_examples=100, deadline=None)
@given(st.lists(ACLS, min_size=1, max_size=12), st.lists(ACLS, max_size=12))
def test_so_it_is_after_any_change(acls: list[Acl], gone: list[Acl]) -> None:
    rules = kept(*acls)
    probes = [(ALICE, Operation.READ, TOPIC, name) for name in ("a", "ab", "ba", "abab")]
    for each in (*gone, *acls):
        rules.remove(each)
        left = rules.access.acls
        for who, operation, kind, name in probes:
            expected = says_kafka(left, who, operation, kind, name) or not left
            assert rules.allows(operation, name, who=who, kind=kind) is expected


@pytest.mark.parametrize(
    "operation", [Operation.CREATE, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS]
)  # fmt: skip
def test_INV_AUZ7_a_rule_for_all_topics_does_not_change_the_audit_trail(
    operation: Operation,
) -> None:
    access = Access(acls=(acl("*", Operation.ALL),))
    judge = AclAuthorizer(lambda: access, frozenset({"User:root"}), trail_topic="trail")
    assert judge.decision(ALICE, operation, TOPIC, "trail")[:2] == (False, Why.KEEPS_TRAIL)
    assert judge.allows(ALICE, operation, TOPIC, "orders")
    assert judge.allows(ALICE, Operation.READ, TOPIC, "trail")
    assert judge.allows(Identity("User:root"), operation, TOPIC, "trail")
    alters = acl(CLUSTER_NAME, Operation.ALTER, kind=CLUSTER)
    access = Access(acls=tuple(sorted((*access.acls, alters))))
    assert judge.allows(ALICE, operation, TOPIC, "trail"), "the cluster's administrator"
    denies = acl(CLUSTER_NAME, Operation.ALTER, DENY, kind=CLUSTER)
    access = Access(acls=tuple(sorted((*access.acls, denies))))
    assert judge.decision(ALICE, operation, TOPIC, "trail") == (False, Why.KEEPS_TRAIL, denies)
    access = Access(acls=(alters,))
    assert judge.decision(ALICE, operation, TOPIC, "trail")[1] is Why.NOTHING_ALLOWS


def test_INV_AUZ7_nor_takes_its_place_by_a_name_that_looks_like_it() -> None:
    """Kafka refuses a topic beside one whose name differs in '.' and '_' alone: whoever made it first would have no trail carried."""
    access = Access(acls=(acl("*", Operation.ALL),))
    judge = AclAuthorizer(lambda: access, trail_topic="tidemark.audit")
    for name in ("tidemark_audit", "tidemark.audit"):
        assert not judge.allows(ALICE, Operation.CREATE, TOPIC, name)
    assert judge.allows(ALICE, Operation.WRITE, TOPIC, "tidemark_audit")
    assert judge.allows(ALICE, Operation.CREATE, TOPIC, "tidemark.audits")


def test_INV_AUZ7_without_a_trail_no_topic_is_another_one() -> None:
    access = Access(acls=(acl("*", Operation.ALL), acl("", Operation.WRITE)))
    judge = AclAuthorizer(lambda: access)
    assert judge.allows(ALICE, Operation.WRITE, TOPIC, "tidemark.audit")
    assert judge.allows(ALICE, Operation.WRITE, TOPIC, "")


def test_prefixes_are_found_among_many_that_are_none() -> None:
    """What stands between two prefixes of a name in the order of all of them is none of it."""
    random = Random(17)
    words = {"".join(random.choices("abc", k=random.randint(1, 8))) for _ in range(3_000)}
    rules = kept(*(acl(word, how=PREFIXED) for word in random.sample(sorted(words), 300)))
    for word in words:
        assert rules.allows(name=word) is says_kafka(
            rules.access.acls, ALICE, Operation.READ, TOPIC, word
        )


def test_a_shorter_prefix_counts_beside_a_longer_one() -> None:
    rules = kept(
        acl("orders.eu", how=PREFIXED), acl("orders.", how=PREFIXED, permission=DENY), acl("o", how=PREFIXED),
        acl("orders.eu.x", how=PREFIXED, who="User:bob"),
    )  # fmt: skip
    assert not rules.allows(name="orders.eu.x")
    rules.remove(acl("orders.", how=PREFIXED, permission=DENY))
    rules.remove(acl("orders.eu", how=PREFIXED))
    assert rules.allows(name="orders.eu.x")
    assert not rules.allows(name="p")


def test_what_a_decision_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Among 50,000 ACLs; the figures are printed, and held against ten times what they are on a quiet machine."""
    many = {acl(f"topic-{n}", how=(LITERAL, PREFIXED)[n % 2], who=f"User:u{n % 1000}") for n in range(50_000)}  # fmt: skip
    access = Access(acls=tuple(sorted({*many, acl("orders", how=PREFIXED)})))
    judge, nobody = AclAuthorizer(lambda: access), AclAuthorizer(lambda: NO_ACCESS)
    assert judge.allows(ALICE, Operation.READ, TOPIC, "orders.eu")

    def cost_us(what: Callable[[], object], times: int) -> float:
        return min(repeat(what, number=times, repeat=3)) / times * 1e6

    remembered = cost_us(lambda: judge.allows(ALICE, Operation.READ, TOPIC, "orders.eu"), 5_000)
    decided = cost_us(lambda: judge.decision(ALICE, Operation.READ, TOPIC, "orders.eu"), 500)
    nothing = cost_us(lambda: nobody.in_force, 5_000)
    with capsys.disabled():
        print(f"\nauthorization: remembered {remembered:.2f} us, decided {decided:.1f} us, nothing configured {nothing:.2f} us")  # fmt: skip
    assert remembered < 10
    assert decided < 1_000
    assert nothing < 5


# --- one of a kind (KIP-679) ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([acl("t", Operation.WRITE)], True),
        ([acl("t", Operation.ALL, how=PREFIXED)], True),
        ([acl("t", Operation.READ)], False),
        ([acl("t", Operation.WRITE, kind=GROUP)], False),
        ([acl("t", Operation.WRITE, who="User:bob")], False),
        ([acl("t", Operation.WRITE, host="10.0.0.9")], False),
        ([acl("*", Operation.WRITE), acl("t", Operation.WRITE, DENY)], True),
        ([acl("*", Operation.WRITE), acl("*", Operation.WRITE, DENY, how=PREFIXED)], True),
        ([acl("t", Operation.WRITE), acl("*", Operation.WRITE, DENY)], False),
        ([acl("t", Operation.WRITE), acl("t", Operation.WRITE, DENY)], False),
        ([acl("tt", Operation.WRITE), acl("t", Operation.WRITE, DENY, how=PREFIXED)], False),
        ([acl("t", Operation.WRITE), acl("tt", Operation.WRITE, DENY, how=PREFIXED)], True),
        ([acl("t", Operation.WRITE, how=PREFIXED), acl("t", Operation.WRITE, DENY)], True),
        ([acl("t", Operation.WRITE), acl("t", Operation.READ, DENY)], True),
        ([acl("t", Operation.WRITE, how=PREFIXED), acl("t", Operation.ALL, DENY, how=PREFIXED)], False),
    ],
)  # fmt: skip
def test_KIP679_one_topic_that_may_be_written_to_is_enough(acls: list[Acl], expected: bool) -> None:
    rules = kept(*acls)
    for _ in range(2):
        assert rules.authorizer.allows_any(ALICE, Operation.WRITE, TOPIC) is expected


@settings(max_examples=150, deadline=None)
@given(st.lists(ACLS, min_size=1, max_size=20), NAMES.filter(lambda name: "*" not in name))
def test_INV_AUZ5_whoever_may_write_to_a_topic_may_write_to_some_topic(
    acls: list[Acl], name: str
) -> None:
    rules = kept(*acls)
    if rules.allows(Operation.WRITE, name):
        assert rules.authorizer.allows_any(ALICE, Operation.WRITE, TOPIC)
