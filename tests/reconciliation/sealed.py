"""A pair of regions some of whose topics are sealed: the same sealed bytes on both sides, as a mirror has them."""

from idempotency.record_batch import read_header
from region_broker.security.sealing.sealed_batch import LogPlace
from tests.fixtures.sealing_keys import keys_in_memory
from tests.reconciliation.two_regions import DATA_PLACES, Pair, Primary, topic_id

WORDS = (b"plain", b"1000 0", b"2000 0")
"""What records of the pair's topics say: none of it may be left in the open."""


def sealed_pair(primary: Primary) -> Pair:
    """Return a pair of the region whose data topics are sealed; markers stay as they are."""
    keys = keys_in_memory()
    for topic, partition in DATA_PLACES:
        place = LogPlace.of(topic_id(topic), partition)
        log = primary.logs[topic, partition]
        for at, batch in enumerate(log):
            header = read_header(batch)
            if not header.is_control:
                log[at] = bytes(keys.sealed(batch, header, place, "secret"))
        assert not any(word in batch for batch in log for word in WORDS)
    return Pair.of(primary)
