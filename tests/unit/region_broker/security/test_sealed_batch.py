"""The form of a sealed batch, read by the table in the documentation and not by our code; and data keys and their nonces.

Sources: docs/reference/on-disk.md (the layout), RFC 3394 section 4.6 (key wrap with 256 bits), NIST SP 800-38D (GCM).
"""

import struct
import threading
from uuid import UUID

import google_crc32c
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap, aes_key_wrap

from geo_replicator.reconciliation.evidence import ledger_facts
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.ledger_bytes import LedgerError
from idempotency.record_batch import BatchHeader, Buffer, read_header
from region_broker.records.batches import Origin, Record, RecordsError, build_batch, iter_records
from region_broker.records.compression import Codec
from region_broker.security.sealing import data_keys
from region_broker.security.sealing.data_keys import (
    _COUNTER_BYTES,
    DataKeys,
    KeyNotHere,
    KeyVersion,
    NamedKey,
)
from region_broker.security.sealing.sealed_batch import (
    KeyRef,
    LogPlace,
    SealBroken,
    key_ref,
    opened,
    sealed,
)

PLACE = LogPlace.of(UUID(int=0x1234), 3)
MATERIAL = bytes(range(32))
VERSION = bytes.fromhex("00f1e2d3c4b5a697")
ORIGIN = Origin(ProducerId(7), ProducerEpoch(2), SequenceNumber(40), transactional=True)
RECORDS = [Record(b"k", b"value " * 20, (("h", b"x"),), 1_000 + n) for n in range(4)]


def keys(now_ms: list[int] | None = None, *versions: KeyVersion) -> DataKeys:
    clock = now_ms or [0]
    found = DataKeys(lambda: clock[0])
    found.use({"orders": NamedKey("orders", versions or (KeyVersion(VERSION, MATERIAL),))})
    return found


def plain(codec: Codec = Codec.LZ4) -> tuple[bytes, BatchHeader]:
    batch = build_batch(
        RECORDS, origin=ORIGIN, codec=codec, base_offset=90, leader_epoch=LeaderEpoch(5)
    )
    return batch, read_header(batch)


def make() -> tuple[DataKeys, bytes, bytes]:
    there = keys()
    batch, header = plain()
    return there, batch, bytes(sealed(batch, header, PLACE, there.sealing_key("orders")))


def test_INV_SLB1_the_form_is_the_one_of_the_documentation() -> None:
    _, batch, found = make()
    length, crc = struct.unpack_from(">i", found, 8)[0], struct.unpack_from(">I", found, 17)[0]
    assert length == len(found) - 12
    assert crc == google_crc32c.value(found[21:])
    assert struct.unpack_from(">h", found, 21)[0] == struct.unpack_from(">h", batch, 21)[0] | 0x4000
    assert found[:8] == batch[:8]
    assert found[12:17] == batch[12:17]
    assert found[23:61] == batch[23:61]
    assert found[61:69] == b"\x01\x06orders"
    assert found[69:77] == VERSION
    data_key = aes_key_unwrap(MATERIAL, found[77:117])
    nonce, ciphertext, tag = found[117:129], found[129:-16], found[-16:]
    assert len(ciphertext) == len(batch) - 61
    opener = Cipher(algorithms.AES256(data_key), modes.GCM(nonce, tag)).decryptor()
    opener.authenticate_additional_data(
        b"tidemark sealed batch" + UUID(int=0x1234).bytes + b"\0\0\0\x03" + found[21:117]
    )
    assert opener.update(ciphertext) + opener.finalize() == batch[61:]


@pytest.mark.parametrize("codec", list(Codec))
def test_INV_SLB2_opened_it_is_what_it_was(codec: Codec) -> None:
    there = keys()
    batch, header = plain(codec)
    closed = sealed(batch, header, PLACE, there.sealing_key("orders"))
    with pytest.raises(RecordsError, match="sealed"):
        list(iter_records(closed))
    with pytest.raises(LedgerError, match="sealed"):  # what reconciliation reads with
        list(ledger_facts.iter_records(bytes(closed)))
    assert bytes(opened(closed, PLACE, there.cipher)) == batch


def test_INV_SLB1_the_leader_may_stamp_it_after_it_was_sealed() -> None:
    there, batch, closed = make()
    stamped = struct.pack(">q", 1_000) + closed[8:12] + struct.pack(">i", 9) + closed[16:]
    result = bytes(opened(stamped, PLACE, there.cipher))
    assert result == struct.pack(">q", 1_000) + batch[8:12] + struct.pack(">i", 9) + batch[16:]


def test_sealed_and_plain_batches_stand_in_one_log() -> None:
    there, batch, closed = make()
    assert bytes(opened(batch + closed + batch, PLACE, there.cipher)) == batch * 3


@pytest.mark.parametrize("at", [21, 24, 27, 35, 43, 51, 53, 57, 61, 62, 64, 118, 130, -1])
def test_INV_SLB3_whatever_is_changed_is_refused_and_nothing_is_given_out(at: int) -> None:
    there, _, closed = make()
    broken = bytearray(closed)
    broken[at] ^= 1
    if at == 21:
        assert read_header(broken).is_sealed
    with pytest.raises((SealBroken, KeyNotHere)) as told:
        opened(broken, PLACE, there.cipher)
    assert b"value" not in str(told.value).encode()


class Leaking:
    """A data key at work that has written what it was to refuse, as AESGCM may (its documentation)."""

    def __init__(self) -> None:
        self.into = bytearray()

    def encrypt_into(
        self, _nonce: Buffer, _data: Buffer, _bound: Buffer | None, _into: Buffer, /
    ) -> int:
        raise AssertionError("nothing is sealed here")

    def decrypt_into(
        self, _nonce: Buffer, _data: Buffer, _bound: Buffer | None, into: Buffer, /
    ) -> int:
        view = memoryview(into)
        view[:6] = b"secret"
        assert isinstance(view.obj, bytearray)
        self.into = view.obj
        raise InvalidTag


def test_INV_SLB3_what_was_written_before_the_tag_was_looked_at_is_wiped() -> None:
    _, _, found = make()
    key = Leaking()
    with pytest.raises(SealBroken):
        opened(found, PLACE, lambda _ref: key)
    assert b"secret" not in key.into
    assert len(key.into) > 61


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [(61, 2, "a form"), (62, 0, "cut off"), (62, 65, "cut off"), (63, 0xFF, "names no key")],
)
def test_a_head_that_is_none_is_said_to_be_so(at: int, byte: int, why: str) -> None:
    there, _, closed = make()
    broken = bytearray(closed)
    broken[at] = byte
    with pytest.raises(SealBroken, match=why):
        opened(broken, PLACE, there.cipher)


def test_what_is_sealed_is_not_sealed_again() -> None:
    there, _, closed = make()
    with pytest.raises(AssertionError, match="sealed once"):
        sealed(closed, read_header(closed), PLACE, there.sealing_key("orders"))


@pytest.mark.parametrize("place", [LogPlace.of(UUID(int=0x1234), 4), LogPlace.of(UUID(int=9), 3)])
def test_INV_SLB3_a_batch_of_another_log_is_refused(place: LogPlace) -> None:
    there, _, closed = make()
    with pytest.raises(SealBroken):
        opened(closed, place, there.cipher)


@pytest.mark.parametrize("size_bytes", [61, 62, 63, 100, 128, 144])
def test_a_batch_that_is_cut_off_is_refused(size_bytes: int) -> None:
    there, _, closed = make()
    cut = closed[:8] + struct.pack(">i", size_bytes - 12) + closed[12:size_bytes]
    with pytest.raises((SealBroken, KeyNotHere)):
        opened(cut, PLACE, there.cipher)


def test_INV_DKY1_no_nonce_comes_twice_whatever_threads_ask() -> None:
    there = keys()
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in range(4)]

    def ask(mine: list[tuple[bytes, bytes]]) -> None:
        for _ in range(2_000):
            key = there.sealing_key("orders")
            mine.append((key.ref.wrapped, key.nonce()))

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [pair for mine in found for pair in mine]
    assert len(set(every)) == len(every) == 8_000


def test_INV_DKY1_every_batch_is_sealed_by_a_nonce_of_its_own() -> None:
    there = keys()
    batch, header = plain()
    found = [bytes(sealed(batch, header, PLACE, there.sealing_key("orders"))) for _ in range(3)]
    assert {each[77:117] for each in found} == {found[0][77:117]}, "one data key"
    counted = [each[117:129][:_COUNTER_BYTES] for each in found]
    assert counted == [n.to_bytes(_COUNTER_BYTES, "big") for n in range(3)], "and chance behind"
    assert len({each[129:] for each in found}) == 3


def test_INV_DKY1_every_life_of_a_process_draws_its_own_key() -> None:
    first, second = keys().sealing_key("orders"), keys().sealing_key("orders")
    assert first.ref.wrapped != second.ref.wrapped
    assert first.nonce()[:5] == second.nonce()[:5] == bytes(5)


def test_INV_DKY1_a_machine_that_goes_on_twice_from_one_snapshot_uses_no_nonce_twice() -> None:
    """Of AES-GCM two batches under one key and nonce give away each other, and the key of its tags (NIST SP 800-38D, appendix A)."""
    chance = iter([b"k" * 32, b"first..", b"k" * 32, b"second."])
    twins = [DataKeys(lambda: 0, lambda _: next(chance)) for _ in range(2)]
    found = []
    for each in twins:
        each.use(keys().named)
        key = each.sealing_key("orders")
        found.append((key.ref.wrapped, key.nonce()))
    (here, first), (there, second) = found
    assert here == there
    assert first != second
    assert (len(first), len(second)) == (12, 12)


def test_INV_DKY2_a_data_key_is_used_for_a_day_or_so_many_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_keys, "NONCES_MAX", 3)
    now_ms = [0]
    there = keys(now_ms)
    first = there.sealing_key("orders")
    for _ in range(3):
        assert there.sealing_key("orders") is first
        first.nonce()
    assert first.nonce()[:5] == b"\0\0\0\0\x03"
    second = there.sealing_key("orders")
    assert second is not first
    now_ms[0] = 24 * 3_600_000 - 1
    assert there.sealing_key("orders") is second
    now_ms[0] += 1
    assert there.sealing_key("orders") is not second


def test_INV_DKY3_a_version_that_is_gone_opens_nothing_any_more() -> None:
    there, batch, closed = make()
    assert bytes(opened(closed, PLACE, there.cipher)) == batch
    newer = KeyVersion(b"\1" * 8, b"\2" * 32)
    there.use({"orders": NamedKey("orders", (KeyVersion(VERSION, MATERIAL), newer))})
    assert there.sealing_key("orders").ref.version == b"\1" * 8
    assert bytes(opened(closed, PLACE, there.cipher)) == batch
    there.use({"orders": NamedKey("orders", (newer,))})
    with pytest.raises(KeyNotHere, match="00f1e2d3c4b5a697"):
        opened(closed, PLACE, there.cipher)
    there.use({})
    with pytest.raises(KeyNotHere, match="orders"):
        there.sealing_key("orders")


def test_what_is_kept_opened_for_readers_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "KNOWN_MAX", 2)
    there = keys()
    for number in range(5):
        there.cipher(KeyRef("orders", VERSION, aes_key_wrap(MATERIAL, bytes([number]) * 32)))
        assert len(there._known) <= 2


def test_texts_tell_no_key() -> None:
    there, _, closed = make()
    told = repr(KeyVersion(VERSION, MATERIAL)) + repr(there.named)
    assert VERSION.hex() in told
    assert repr(MATERIAL)[2:-1] not in told
    assert key_ref(closed, 0, read_header(closed)).name == "orders"
