"""What producers are refused where the clock of a node was a day behind: as by Kafka, records from what it takes for the future.

INV-NFR1  a clock that is behind accounts for INVALID_TIMESTAMP, and for OUT_OF_ORDER_SEQUENCE_NUMBER of what the same producer had under way
          behind such a batch, and for nothing else: the batch was not written, so those behind it are not, either (INV-HD4)
"""

from collections.abc import Iterable, Iterator

from tests.simulation.pipeliner import IN_FLIGHT_MAX


def of_no_clock(refused: Iterable[str], *, was_behind: bool) -> Iterator[str]:
    """Yield the refusals of one writer, in their order, that no clock accounts for; `was_behind`: one was, by more than is taken."""
    last, behind = "", range(0)
    for each in refused:
        place, _, error = each.partition(": ")
        partition, _, number = place.partition("/")
        sequence = int(number)
        if was_behind and error == "invalid_timestamp":
            if partition != last or sequence not in behind:
                last, behind = partition, range(sequence + 1, sequence + IN_FLIGHT_MAX)
        elif error != "out_of_order_sequence_number" or partition != last or sequence not in behind:
            yield each
