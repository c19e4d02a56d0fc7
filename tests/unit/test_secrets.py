"""The scanner of secrets finds what is planted, in every form, and nothing where nothing is."""

import base64
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from region_broker.ports.system.chance import SystemChance
from region_broker.security.http_tokens import Role, file_of, made_token
from tests import secrets

SECRET = "Tr0ub4dor&3-staple"


def kinds(path: Path, *known: str) -> list[str]:
    return [found.kind for found in secrets.in_files([path], known)]


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (b"-----BEGIN EC PRIVATE KEY-----\n", "private key"),
        (b"-----BEGIN PRIVATE KEY-----\n", "private key"),
        (b"got tmt_0123456789ab_" + b"x" * 43, "token of the HTTP port"),
        (b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ", "JSON web token"),
        (b"Authorization: Basic YWxpY2U6b3Blbi1zZXNhbWU=", "credentials in a header"),
        (b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvY,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "SCRAM client proof"),
        (b'{"sasl.password": "open-sesame"}', "password in a setting"),
        (b"password=open-sesame", "password in a setting"),
    ],
)  # fmt: skip
def test_what_is_a_secret_by_its_form_is_found(tmp_path: Path, planted: bytes, kind: str) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "node.log").write_bytes(os.urandom(500) + b"\n" + planted + b"\n" + os.urandom(500))
    assert kind in kinds(tmp_path)


def test_a_known_secret_is_found_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for before in ("", "x", "xy", "xyz:"):
        for form in (
            f"{before}{SECRET}!".encode(),
            base64.b64encode(f"{before}{SECRET}!".encode()),
            base64.urlsafe_b64encode(f"{before}{SECRET}".encode()),
            f"{before}{SECRET}".encode().hex().encode(),
            f"{before}{SECRET}".encode("utf-16-le"),
        ):
            path.write_bytes(os.urandom(64) + form + os.urandom(64))
            assert kinds(path, SECRET) == ["a known secret"], (before, form)
            assert kinds(path, "another-secret") == []


def test_one_pattern_finds_what_each_of_many_forms_would() -> None:
    """Many secrets that begin alike, one within another, long ones: found where a search for each by itself finds the first."""
    chance = random.Random(7)
    for _ in range(50):
        known = ["".join(chance.choices("ab", k=chance.randint(6, 9))) for _ in range(chance.randint(1, 9))]  # fmt: skip
        pattern = secrets.pattern_of([*known, "x" * 500, "x" * 500 + "y"])
        assert pattern is not None
        text = "".join(chance.choices("ab", k=60)).encode()
        forms = {form for each in known for form in secrets.forms_of(each).values()}
        first = min((at for form in forms if (at := text.find(form)) >= 0), default=None)
        found = pattern.search(text)
        assert (None if found is None else found.start()) == first


def test_a_secret_across_two_pieces_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "PIECE_BYTES", 10_000)
    path = tmp_path / "file"
    for at in (9_990, 9_999, 10_000, 0, 35_000):
        path.write_bytes(b"." * at + SECRET.encode() + b"." * (40_000 - at))
        (found,) = secrets.in_files([path], [SECRET])
        assert (found.offset, found.kind) == (at, "a known secret")
        assert SECRET not in str(found)


def test_what_we_keep_of_tokens_and_say_of_settings_is_no_secret(tmp_path: Path) -> None:
    token, row = made_token("ops", Role.ADMIN, SystemChance(), 1)
    (tmp_path / "tokens.json").write_bytes(file_of([row]))
    (tmp_path / "log").write_text(
        '{"event": "GET /v1/region of User:ANONYMOUS was refused"}\npassword=***\nhttp_token: (in TIDEMARK_HTTP_TOKEN)\n"password_file": "/x"\n'
        "sasl.password=[hidden]\n-----BEGIN CERTIFICATE-----\npassword: null\n"
    )
    assert kinds(tmp_path, token) == []


def test_the_command_names_places_and_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"{SECRET}\nab\n")
    (tmp_path / "log").write_text(f"oh {SECRET}")
    words = [
        sys.executable,
        "-m",
        "tests.secrets",
        str(tmp_path),
        "--known",
        str(tmp_path / "known"),
        "--except",
        "*/known",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"{tmp_path / 'log'} at 3: a known secret", "1 found"]
    (tmp_path / "log").unlink()
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
