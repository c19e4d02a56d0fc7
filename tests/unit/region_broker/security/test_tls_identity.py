"""Principals and nodes of certificates. Expected names are Java's and Kafka's, from their documentation, tests and runs."""

import random
import time
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from region_broker.security.principal_rules import PrincipalRules, RuleError
from region_broker.security.tls_identity import (
    NoPrincipal,
    node_of,
    principal_of,
)
from tests.fixtures.certificates import NOW, authority, leaf_key, node_certificate, user_certificate

# `cryptography` warns of names that are longer than RFC 5280 allows.
pytestmark = pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")

# From Kafka's documentation, "Customizing SSL User Name".
DOCUMENTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)
# From Kafka's SslPrincipalMapperTest.
TESTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


def certificate(subject: x509.Name, *extensions: x509.ExtensionType) -> bytes:
    """Return a certificate of that subject, as DER."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority().certificate.subject)
        .public_key(leaf_key().public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW.replace(year=NOW.year + 1, day=1))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority().key, hashes.SHA256()).public_bytes(Encoding.DER)


def attribute(kind: x509.ObjectIdentifier, value: str) -> x509.NameAttribute[Any]:
    return x509.NameAttribute(kind, value, _validate=False)


def common_name(value: str) -> x509.Name:
    return x509.Name([attribute(NameOID.COMMON_NAME, value)])


# --- the name as Java writes it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "java"),
    [
        # What `X500Principal.getName()` of OpenJDK 17 printed for a certificate of these attributes.
        (
            [(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Tide, Mark + Co"), (NameOID.COMMON_NAME, "alice")],
            r"CN=alice,O=Tide\, Mark \+ Co,C=DE",
        ),
        ([(NameOID.COMMON_NAME, "x,OU=Admin")], r"CN=x\,OU\=Admin"),
        ([(NameOID.COMMON_NAME, "  two spaces  ")], r"CN=\ \ two spaces\ \ "),
        ([(NameOID.COMMON_NAME, '#hash#;<>"\\')], r"CN=\#hash\#\;\<\>\"\\"),
        ([(NameOID.COMMON_NAME, "Zoë 日本")], "CN=Zoë 日本"),
        (
            [(NameOID.EMAIL_ADDRESS, "a@example.org"), (NameOID.COMMON_NAME, "bob")],
            "CN=bob,1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267",
        ),
        ([(NameOID.SERIAL_NUMBER, "77"), (NameOID.COMMON_NAME, "bob")], "CN=bob,2.5.4.5=#13023737"),
        (
            [
                (NameOID.DOMAIN_COMPONENT, "org"), (NameOID.DOMAIN_COMPONENT, "example"), (NameOID.USER_ID, "u1"),
                (NameOID.STREET_ADDRESS, "s"), (NameOID.STATE_OR_PROVINCE_NAME, "MD"), (NameOID.LOCALITY_NAME, "F"),
            ],
            "L=F,ST=MD,STREET=s,UID=u1,DC=example,DC=org",
        ),
        ([(NameOID.TITLE, "x" * 200), (NameOID.COMMON_NAME, " ")], r"CN=\ ,2.5.4.12=#0c81c8" + "78" * 200),
        ([(NameOID.COMMON_NAME, "nul\0x")], r"CN=nul\00x"),
    ],
)  # fmt: skip
def test_a_subject_is_written_as_java_writes_it(
    parts: list[tuple[x509.ObjectIdentifier, str]], java: str
) -> None:
    subject = x509.Name([attribute(kind, value) for kind, value in parts])
    assert principal_of(certificate(subject), PrincipalRules()) == f"User:{java}"


def test_several_attributes_in_one_part_are_joined() -> None:
    part = x509.RelativeDistinguishedName(
        [attribute(NameOID.COMMON_NAME, "m"), attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "n")]
    )
    assert principal_of(certificate(x509.Name([part])), PrincipalRules()) == "User:CN=m+OU=n"


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (DOCUMENTED, "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        (DOCUMENTED, "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        (TESTED, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (TESTED, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (TESTED, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (TESTED, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (TESTED, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("", "CN=x", "CN=x"),
        ("RULE:^CN=([^,]+).*$/$1/", "OU=none", None),
        ("RULE:CN=admin/admin/", "OU=guests,CN=admin,O=other", None),
        # Java: "abc".replaceAll(".*", "<$0>") is "<abc><>", as the end matches once more.
        ("RULE:.*/<$0>/", "abc", "<abc><>"),
        # Kafka's escapeLiteralBackReferences: what is no group is a text, by the longest number that is one.
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$3/", "CN=a,OU=b", "a@$3"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(.*)$/\$1\/$1/", "CN=a", "$1/a"),
        (r"RULE:^CN=(.*)\/(.*)$/$2/", "CN=a/b", "b"),
        (r"RULE:^CN=(.*?)\\,.*$/$1/", r"CN=a\,b", "a"),
    ],
)  # fmt: skip
def test_rules_map_names_as_kafkas_do(rules: str, subject: str, name: str | None) -> None:
    assert PrincipalRules(rules).name(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        # From Kafka's SslPrincipalMapperTest.
        "default", "DEFAUL", "DEFAULT/L", "DEFAULT/U", "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/", "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L", "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        # Ours: what RE2 has not, what Java refuses later, and what is too long.
        "RULE:^CN=((?=a).*)$/$1/", r"RULE:^CN=(.)\1$/$1/", "RULE:^CN=(.*$/$1/", "RULE:^CN=(.*)$/$/", "DEFAULT," * 600,
    ],
)  # fmt: skip
def test_rules_that_are_none_are_refused(rules: str) -> None:
    with pytest.raises(RuleError):
        PrincipalRules(rules)


def test_a_value_cannot_play_another_attribute() -> None:
    """INV-TID2: `CN=mallory,OU=ServiceUsers` as one CN is not the user of a unit."""
    rules = PrincipalRules("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/")
    with pytest.raises(NoPrincipal, match="none of the mapping rules"):
        principal_of(certificate(common_name("admin,OU=ServiceUsers")), rules)
    subject = x509.Name(
        [
            attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "ServiceUsers"),
            attribute(NameOID.COMMON_NAME, "admin"),
        ]
    )
    assert principal_of(certificate(subject), rules) == "User:admin"


def test_a_greedy_rule_takes_no_time_on_a_long_name() -> None:
    """INV-TID3: a backtracking matcher needs 2^60 steps for a quarter of it."""
    rules = PrincipalRules("RULE:^CN=(a+)+$/$1/, RULE:^(.*)*(.*)*(.*)*X$/$1/")
    began = time.perf_counter()
    with pytest.raises(NoPrincipal):
        principal_of(certificate(common_name("a" * 900 + "!")), rules)
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ([], "no subject"),
        (["a" * 1025], "over 1024"),
        (["a\nb"], "cannot be printed"),
        (["a\x1b[2J"], "cannot be printed"),
    ],
)
def test_what_gives_no_name_is_refused(subject: list[str], why: str) -> None:
    """INV-TID4"""
    names = x509.Name([attribute(NameOID.COMMON_NAME, value) for value in subject])
    with pytest.raises(NoPrincipal, match=why):
        principal_of(certificate(names), PrincipalRules())


def test_a_rule_that_leaves_nothing_gives_no_name() -> None:
    """INV-TID4"""
    with pytest.raises(NoPrincipal, match="none of the mapping rules"):
        principal_of(certificate(common_name("alice")), PrincipalRules("RULE:^CN=.*$//"))


def test_bytes_that_are_no_certificate_are_refused() -> None:
    """INV-TID4"""
    with pytest.raises(NoPrincipal):
        principal_of(b"\x30\x03abc", PrincipalRules())
    assert node_of(b"\x30\x03abc") is None
    assert node_of(b"") is None


# --- nodes ---------------------------------------------------------------------------------------

SERVES_AND_CONNECTS = x509.ExtendedKeyUsage(
    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
)


def with_uris(*uris: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(list(map(x509.UniformResourceIdentifier, uris)))


def test_a_node_is_known_by_its_certificate() -> None:
    """INV-TID1"""
    der = node_certificate("us-west", 12).public_bytes(Encoding.DER)
    assert node_of(der) == ("us-west", 12, "c1")


def test_other_uris_beside_that_of_a_node_count_for_nothing() -> None:
    """INV-TID1"""
    names = with_uris("spiffe://example.org/broker", "tidemark:node/c1/eu/1")
    assert node_of(certificate(common_name("x"), SERVES_AND_CONNECTS, names)) == ("eu", 1, "c1")


def test_a_certificate_of_a_user_is_no_nodes() -> None:
    """INV-TID1"""
    der = user_certificate("node 1").public_bytes(Encoding.DER)
    assert node_of(der) is None
    assert principal_of(der, PrincipalRules()) == "User:CN=node 1"


def test_a_certificate_of_a_node_is_no_users_by_its_common_name() -> None:
    der = node_certificate().public_bytes(Encoding.DER)
    with pytest.raises(NoPrincipal):
        principal_of(der, PrincipalRules("RULE:^.*CN=([^,]+).*$/$1/"))


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://example.org/eu/1"],
        ["tidemark:node/c1/eu/1", "tidemark:node/c1/us/1"],
        ["tidemark:node/c1/eu/1", "TIDEMARK:node/c1/us/1"],
        ["tidemark:node/c1/eu/01"],
        ["tidemark:node/c1/eu/-1"],
        ["tidemark:node/c1/eu/2147483648"],
        ["tidemark:node/c1/eu/1/"],
        ["tidemark:node/c1/eu/1?x"],
        ["tidemark:node/c1/e u/1"],
        ["tidemark:node/c1//1"],
        ["tidemark:node/../eu/1"],
        ["tidemark:node/c1/eu/1\n"],
        ["tidemark:user/c1/eu/1"],
        ["tidemark:node/c1/" + "e" * 65 + "/1"],
    ],
)
def test_what_names_no_node_or_two_is_no_nodes(uris: list[str]) -> None:
    """INV-TID1"""
    names = [with_uris(*uris)] if uris else []
    assert node_of(certificate(common_name("x"), SERVES_AND_CONNECTS, *names)) is None


@pytest.mark.parametrize(
    ("uses", "is_node"),
    [
        ([], True),  # not limited at all
        ([ExtendedKeyUsageOID.SERVER_AUTH], False),
        ([ExtendedKeyUsageOID.CLIENT_AUTH], False),
        ([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH], True),
    ],
)
def test_a_node_may_serve_and_connect(uses: list[x509.ObjectIdentifier], is_node: bool) -> None:
    """INV-TID1"""
    limits = [x509.ExtendedKeyUsage(uses)] if uses else []
    found = node_of(certificate(common_name("x"), with_uris("tidemark:node/c1/eu/1"), *limits))
    assert found == (("eu", 1, "c1") if is_node else None)


def test_a_certificate_that_makes_no_sense_is_nobodys() -> None:
    """INV-TID1: `cryptography` refuses what OpenSSL may let through; here an extension that is there twice."""
    der = certificate(common_name("x"), SERVES_AND_CONNECTS, with_uris("tidemark:node/c1/eu/1"))
    san, usage = bytes.fromhex("551d11"), bytes.fromhex("551d25")
    assert node_of(der) is not None
    assert node_of(der.replace(usage, san)) is None


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_certificates_changed_at_random_are_somebodys_or_nobodys_and_nothing_else() -> None:
    """INV-TID4: OpenSSL has verified what comes here, and yet it may be such as `cryptography` refuses."""
    ders = [each.public_bytes(Encoding.DER) for each in (node_certificate(), user_certificate())]
    drawn, rules, nobodys = random.Random(11), PrincipalRules(), 0
    for _ in range(4_000):
        der = bytearray(drawn.choice(ders))
        for _ in range(drawn.choice([1, 1, 2, 5])):
            der[drawn.randrange(len(der))] = drawn.randrange(256)
        node_of(bytes(der))
        try:
            principal_of(bytes(der), rules)
        except NoPrincipal:
            nobodys += 1
    assert 100 < nobodys < 4_000


def test_a_part_of_a_subject_that_is_no_text_is_nobodys() -> None:
    """INV-TID4: a BIT STRING where a name should be; found by the test above."""
    der = certificate(common_name("abc"))
    name = der.rindex(bytes.fromhex("0c03") + b"abc")
    with pytest.raises(NoPrincipal, match="cannot be read"):
        principal_of(der[:name] + bytes.fromhex("0303006263") + der[name + 5 :], PrincipalRules())
