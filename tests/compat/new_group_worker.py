"""A consumer of the new group protocol that copies records in transactions, in a process that may be killed.

    python -m tests.compat.new_group_worker BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID [INSTANCE_ID]

Reads the topic SOURCE, writes each value to TARGET and its offsets, one transaction per batch; ends at SIGTERM. Prints
`holds N` whenever it holds another number of partitions. A transaction that cannot go on is aborted, and the
consumer goes back to what is committed, as Kafka's documentation asks. What librdkafka says of its group and of its positions goes
to standard error (`rdkafka_positions`).
"""

import signal
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

CALL_S = 20.0


class Worker:
    """One consumer and one transactional producer."""

    def __init__(
        self, bootstrap: str, topics: tuple[str, str], group: str, transactional_id: str,
        instance_id: str | None,
    ) -> None:  # fmt: skip
        self.ends = False
        self.source, self.target = topics
        static = {} if instance_id is None else {"group.instance.id": instance_id}
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer",
             "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "isolation.level": "read_committed", "debug": "cgrp,topic"} | static
        )  # fmt: skip
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id,
             "transaction.timeout.ms": 10_000, "log_level": 3}
        )  # fmt: skip

    def run(self) -> None:
        self.producer.init_transactions(CALL_S)
        self.consumer.subscribe([self.source])
        held = -1
        while not self.ends:
            messages = [each for each in self.consumer.consume(20, 0.1) if each.error() is None]
            if held != len(self.consumer.assignment()):
                held = len(self.consumer.assignment())
                print("holds", held, flush=True)
            if messages:
                self._copy(messages)
        self.consumer.close()

    def _copy(self, messages: list[Message]) -> None:
        self.producer.begin_transaction()
        try:
            moved: dict[int, TopicPartition] = {}
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.producer.produce(self.target, value=message.value(), partition=partition)
                moved[partition] = TopicPartition(self.source, partition, offset + 1)
            self.producer.send_offsets_to_transaction(
                list(moved.values()), self.consumer.consumer_group_metadata(), CALL_S
            )
            self.producer.commit_transaction(CALL_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(CALL_S)
            self._go_back()

    def _go_back(self) -> None:
        """Read again from what is committed (the first record, where nothing is)."""
        for place in self.consumer.committed(self.consumer.assignment(), CALL_S):
            if place.error is not None:
                raise KafkaException(place.error)
            place.offset = max(place.offset, 0)
            self.consumer.seek(place)


def main() -> None:
    bootstrap, source, target, group, transactional_id, *instance = sys.argv[1:]
    worker = Worker(
        bootstrap, (source, target), group, transactional_id, next(iter(instance), None)
    )

    def end(_signal: int, _frame: object) -> None:
        worker.ends = True

    signal.signal(signal.SIGTERM, end)
    worker.run()


if __name__ == "__main__":
    main()
