// The transactional producer of the second generation (KIP-890): epochs, isolation, fencing, offsets in transactions.

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

final class TransactionChecks extends World {
    TransactionChecks(String bootstrap, String prefix) {
        super(bootstrap, prefix);
    }

    @Override
    void addTo(Map<String, Callable<Void>> checks) {
        checks.put("transactions: commit, abort, both isolation levels", this::commitAndAbort);
        checks.put("transactions of the second generation: an epoch each", this::epochGrows);
        checks.put("transactions: 50 in a row over two topics", this::manyOverTwoTopics);
        checks.put("transactions: an older producer is fenced", this::fenced);
        for (String protocol : List.of("classic", "consumer")) {
            checks.put("consume-process-produce, group.protocol=" + protocol, () -> copy(protocol));
        }
    }

    private KafkaProducer<String, String> transactional(String id) {
        KafkaProducer<String, String> producer = producer("transactional.id", prefix + "-" + id);
        producer.initTransactions();
        return producer;
    }

    private static void send(KafkaProducer<String, String> producer, String topic, List<String> values) {
        values.forEach(value -> producer.send(new ProducerRecord<>(topic, 0, null, value)));
    }

    private Void commitAndAbort() throws Exception {
        String topic = topic("txn", 1);
        try (KafkaProducer<String, String> producer = transactional("txn")) {
            for (String word : List.of("kept", "dropped", "kept-too")) {
                producer.beginTransaction();
                send(producer, topic, numbered(word, 20));
                producer.flush();
                if (word.equals("dropped")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        List<String> kept = Stream.concat(numbered("kept", 20).stream(), numbered("kept-too", 20).stream()).toList();
        same(kept, values(readAll(topic, 1, 40, "read_committed")), "read committed");
        readAll(topic, 1, 60, "read_uncommitted");
        return null;
    }

    private Void epochGrows() throws Exception {
        String topic = topic("epochs", 1);
        try (Admin admin = admin(); KafkaProducer<String, String> producer = transactional("epochs")) {
            same((short) 2, admin.describeFeatures().featureMetadata().get().finalizedFeatures()
                    .get("transaction.version").maxVersionLevel(), "transaction.version");
            List<Short> epochs = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "v-" + i)).get();
                String id = prefix + "-epochs";
                epochs.add((short) admin.describeTransactions(List.of(id)).description(id).get().producerEpoch());
                producer.commitTransaction();
            }
            short first = epochs.get(0);
            same(List.of(first, (short) (first + 1), (short) (first + 2)), epochs, "epochs of three transactions");
        }
        return null;
    }

    private Void manyOverTwoTopics() throws Exception {
        String left = topic("left", 1);
        String right = topic("right", 1);
        try (KafkaProducer<String, String> producer = transactional("many")) {
            for (String value : numbered("v", 50)) {
                producer.beginTransaction();
                send(producer, left, List.of(value));
                send(producer, right, List.of(value));
                producer.commitTransaction();
            }
        }
        same(numbered("v", 50), values(readAll(left, 1, 50, "read_committed")), "left");
        same(numbered("v", 50), values(readAll(right, 1, 50, "read_committed")), "right");
        return null;
    }

    private Void fenced() throws Exception {
        String topic = topic("fenced", 1);
        try (KafkaProducer<String, String> older = transactional("fenced")) {
            older.beginTransaction();
            older.send(new ProducerRecord<>(topic, 0, null, "of the older")).get();
            try (KafkaProducer<String, String> newer = transactional("fenced")) {
                newer.beginTransaction();
                send(newer, topic, List.of("of the newer"));
                newer.commitTransaction();
            }
            try {
                older.commitTransaction();
                throw new AssertionError("the older producer could commit");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                // what Kafka's documentation promises
            } catch (KafkaException wrapped) {
                hold(wrapped.getCause() instanceof ProducerFencedException
                        || wrapped.getCause() instanceof InvalidProducerEpochException, "fenced, not " + wrapped);
            }
        }
        same(List.of("of the newer"), values(readAll(topic, 1, 1, "read_committed")), "read committed");
        return null;
    }

    // Reads, writes on and commits its offsets in one transaction; every third is aborted and done again.
    private Void copy(String protocol) throws Exception {
        int count = 200;
        String input = topic("in-" + protocol, 2);
        String output = topic("out-" + protocol, 1);
        String group = prefix + "-copier-" + protocol;
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(input, i % 2, null, "v-" + i));
            }
        }
        try (KafkaProducer<String, String> producer = transactional("copier-" + protocol);
                KafkaConsumer<String, String> consumer = consumer("group.id", group, "group.protocol", protocol,
                        "isolation.level", "read_committed", "max.poll.records", "17")) {
            consumer.subscribe(List.of(input));
            int[] done = {0};
            int[] round = {0};
            until("all is copied", () -> {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    done[0] += copyOnce(producer, consumer, records, output, ++round[0] % 3 == 0);
                }
                return done[0] >= count;
            });
        }
        List<String> found = new ArrayList<>(values(readAll(output, 1, count, "read_committed")));
        List<String> expected = new ArrayList<>(numbered("v", count));
        found.sort(null);
        expected.sort(null);
        same(expected, found, "each record once");
        try (Admin admin = admin()) {
            Map<TopicPartition, OffsetAndMetadata> committed =
                    admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            partitions(input, 2).forEach(each -> same((long) count / 2, committed.get(each).offset(), "committed " + each));
        }
        return null;
    }

    private static int copyOnce(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> records, String output, boolean abort) {
        Map<TopicPartition, OffsetAndMetadata> before = consumer.committed(records.partitions());
        Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>(output, 0, null, record.value()));
            after.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(after, consumer.groupMetadata());
        if (!abort) {
            producer.commitTransaction();
            return records.count();
        }
        producer.abortTransaction();
        same(before, consumer.committed(records.partitions()), "committed offsets after an abort");
        before.forEach((partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
        return 0;
    }
}
