"""Where keys of tokens are fetched from, and how often (INV-JWK1, INV-JWK2, INV-JWK3)."""

import asyncio
import base64
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc.jwk import ECKey, KeySet

from region_broker.ports.system.disk import RealDisk
from region_broker.security.sasl import jwks
from region_broker.security.sasl.bearer import fits_kind
from region_broker.security.sasl.jwks import (
    AGAIN_AFTER_MS,
    ANSWER_BYTES_MAX,
    KEYS_MAX,
    KeySource,
    NotFetched,
    keys_in,
    source_of,
)
from tests.fixtures.node_logs import ManualClock

REFRESH_MS = 3_600_000


def key_set(*kids: str) -> bytes:
    keys = [ECKey.generate_key("P-256", {"kid": kid}) for kid in kids]
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


class Issuer:
    """Counts how often it is asked."""

    def __init__(self, content: bytes) -> None:
        self.content: bytes | None = content
        self.asked = 0

    async def fetch(self) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        if self.content is None:
            raise NotFetched("it is away")
        return self.content


async def test_keys_are_fetched_once_again_in_time_and_for_a_name_that_is_not_there() -> None:
    issuer, clock = Issuer(key_set("one")), ManualClock()
    source = KeySource(issuer.fetch, clock, REFRESH_MS)
    both = await asyncio.gather(*(source.keys("one") for _ in range(20)))
    assert {key.kid for keys in both for key in keys} == {"one"}
    assert issuer.asked == 1
    for _ in range(1_000):
        await source.keys("forged")
    assert issuer.asked == 1, "INV-JWK3"
    issuer.content = key_set("one", "two")
    clock.pass_ms(AGAIN_AFTER_MS)
    assert [key.kid for key in await source.keys("two")] == ["one", "two"]
    assert issuer.asked == 2
    clock.pass_ms(REFRESH_MS - 1)
    await source.keys("two")
    assert issuer.asked == 2
    clock.pass_ms(1)
    await source.keys("two")
    assert issuer.asked == 3


async def test_INV_JWK3_an_issuer_that_is_away_is_asked_no_more_often_than_one_that_answers() -> (
    None
):
    issuer, clock = Issuer(b""), ManualClock()
    issuer.content = None
    source = KeySource(issuer.fetch, clock, REFRESH_MS)
    for _ in range(100):
        assert [*await source.keys("one")] == []
    assert issuer.asked == 1
    clock.pass_ms(AGAIN_AFTER_MS)
    issuer.content = key_set("one")
    assert [key.kid for key in await source.keys("one")] == ["one"]
    assert issuer.asked == 2


def test_INV_JWK2_a_set_of_more_keys_than_any_issuer_has_is_none() -> None:
    (row,) = json.loads(key_set("one"))["keys"]
    assert len(keys_in(json.dumps({"keys": [row] * KEYS_MAX}).encode())) == KEYS_MAX
    with pytest.raises(NotFetched, match=f"at most {KEYS_MAX} keys"):
        keys_in(json.dumps({"keys": [row] * (KEYS_MAX + 1)}).encode())


@pytest.mark.parametrize("zeros", [0, 200], ids=["plain", "zeros before it"])
def test_rsa_keys_below_2048_bits_are_not_taken(zeros: int) -> None:
    """RFC 7518, 3.3: a key of 2048 bits or larger MUST be used; zeros before a number are none of its bits (2)."""
    modulus = base64.urlsafe_b64encode(bytes(zeros) + b"\xc5" * 128).decode().rstrip("=")
    row = {"kty": "RSA", "kid": "short", "e": "AQAB", "n": modulus}
    (good,) = json.loads(key_set("one"))["keys"]
    assert [key.kid for key in keys_in(json.dumps({"keys": [row, good]}).encode())] == ["one"]
    with pytest.raises(NotFetched, match="no key that came can be used"):
        keys_in(json.dumps({"keys": [row]}).encode())


@pytest.mark.parametrize("name", ["kty", "use", "alg", "kid", "crv"])
@pytest.mark.parametrize("value", [[], ["sig"], {}, 7, None])
def test_INV_JWK5_a_key_of_a_wrong_form_leaves_the_others_of_its_set(
    name: str, value: object
) -> None:
    """RFC 7517, section 4: each of these is a string. Such a key had every token refused as an error of the node, or all keys forgotten."""
    odd = {**ECKey.generate_key("P-256").as_dict(private=False), "kid": "odd", name: value}
    sound = json.loads(key_set("sound"))["keys"]
    keys = keys_in(json.dumps({"keys": [odd, *sound]}).encode())
    assert [key.kid for key in keys] == ["sound"]
    assert all(fits_kind(key, "ES256") for key in keys)


async def test_INV_JWK4_who_comes_while_keys_are_fetched_is_judged_by_them() -> None:
    """1. The node starts. 2. A hundred clients log in again at once. 3. The issuer takes a while to answer the first of them."""
    answers, asked = asyncio.Event(), asyncio.Event()
    content = key_set("one")

    async def fetch() -> bytes:
        asked.set()
        await answers.wait()
        return content

    source = KeySource(fetch, ManualClock(), REFRESH_MS)
    async with asyncio.TaskGroup() as group:
        logins = [group.create_task(source.keys("one"))]
        await asked.wait()
        logins += [group.create_task(source.keys(kid)) for kid in ("one", None) * 50]
        await asyncio.sleep(0)
        answers.set()
    for login in logins:
        assert [key.kid for key in login.result()] == ["one"]


@pytest.mark.parametrize("content", [None, b"<html>", b'{"keys":[]}'])
async def test_keys_that_are_known_go_on_while_others_cannot_be_had(content: bytes | None) -> None:
    issuer, clock = Issuer(key_set("one")), ManualClock()
    source = KeySource(issuer.fetch, clock, REFRESH_MS)
    await source.keys("one")
    issuer.content = content
    clock.pass_ms(REFRESH_MS)
    assert [key.kid for key in await source.keys("one")] == ["one"]
    assert issuer.asked == 2


async def test_a_file_is_read_and_a_large_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set("one"))
    assert await source_of(str(path), "", RealDisk())() == path.read_bytes()
    path.write_bytes(bytes(ANSWER_BYTES_MAX + 1))
    with pytest.raises(NotFetched, match="over"):
        await source_of(str(path), "", RealDisk())()
    with pytest.raises(NotFetched, match="cannot be read"):
        await source_of(str(tmp_path / "none"), "", RealDisk())()


@asynccontextmanager
async def https(folder: Path, **answers: web.Response) -> AsyncIterator[tuple[str, str]]:
    """Serve answers on loopback; yields the address and the path of its CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(begins).not_valid_after(begins.replace(year=2100))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )  # fmt: skip
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    async def answer(request: web.Request) -> web.Response:
        return answers[request.match_info["name"]]

    app = web.Application()
    app.router.add_get("/{name}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        yield f"https://127.0.0.1:{port}", str(folder / "cert.pem")
    finally:
        await runner.cleanup()


async def test_ssrf_by_the_address_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE class: SSRF by JWKS address. No redirect is followed, no other CA believed, no endless answer read."""
    content = key_set("one")
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "none.example.org")
    async with https(
        tmp_path,
        good=web.Response(body=content),
        moved=web.Response(status=302, headers={"Location": "http://169.254.169.254/latest"}),
        endless=web.Response(body=bytes(2 * ANSWER_BYTES_MAX)),
        packed=web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}),
    ) as (url, ca):
        assert await source_of(f"{url}/good", ca, RealDisk())() == content
        for path, why in (("moved", "302"), ("endless", "over")):
            with pytest.raises(NotFetched, match=why):
                await source_of(f"{url}/{path}", ca, RealDisk())()
        assert await source_of(f"{url}/packed", ca, RealDisk())() == b"\x1f\x8b", "not unpacked"
        with pytest.raises(NotFetched, match="does not answer"):
            await source_of(f"{url}/good", "", RealDisk())()
    with pytest.raises(NotFetched, match="does not answer"):
        await source_of("https://127.0.0.1:1/x", ca, RealDisk())()


async def test_an_address_without_tls_is_never_asked() -> None:
    with pytest.raises(NotFetched, match="cannot be read"):
        await source_of("http://127.0.0.1:1/keys", "", RealDisk())()


async def test_an_issuer_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwks, "FETCH_TIMEOUT_S", 0.05)
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent:
        with pytest.raises(NotFetched, match="does not answer"):
            async with asyncio.timeout(5):
                await source_of(f"https://127.0.0.1:{port}/keys", "", RealDisk())()
        for writer in writers:
            writer.close()
            await writer.wait_closed()
