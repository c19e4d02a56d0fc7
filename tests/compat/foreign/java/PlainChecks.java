// Producing and consuming without groups: keys, headers, every codec, idempotence, times, seeking.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

final class PlainChecks extends World {
    private static final int COUNT = 300;

    PlainChecks(String bootstrap, String prefix) {
        super(bootstrap, prefix);
    }

    @Override
    void addTo(Map<String, Callable<Void>> checks) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            checks.put("produce and consume, " + codec, () -> produceAndConsume(codec));
        }
        checks.put("idempotent producer, 5 requests in flight", this::idempotent);
        checks.put("times, beginning and end offsets, seek", this::timesAndSeek);
    }

    private Void produceAndConsume(String codec) throws Exception {
        String topic = topic("plain-" + codec, 3);
        try (KafkaProducer<String, String> producer =
                producer("acks", "1", "enable.idempotence", "false", "compression.type", codec, "linger.ms", "5")) {
            for (int i = 0; i < COUNT; i++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, i % 3, "key-" + i, "value-" + i);
                record.headers().add("number", Integer.toString(i).getBytes());
                producer.send(record);
            }
            producer.flush();
        }
        int[] next = {0, 1, 2};
        for (ConsumerRecord<String, String> record : readAll(topic, 3, COUNT, "read_uncommitted")) {
            int number = next[record.partition()];
            same("value-" + number, record.value(), "value in partition " + record.partition());
            same("key-" + number, record.key(), "key");
            same("" + number, new String(record.headers().lastHeader("number").value()), "header");
            same((long) (number / 3), record.offset(), "offset");
            next[record.partition()] += 3;
        }
        return null;
    }

    private Void idempotent() throws Exception {
        String topic = topic("idempotent", 1);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer("acks", "all", "linger.ms", "0", "batch.size", "200")) {
            for (String value : numbered("v", 3000)) {
                sent.add(producer.send(new ProducerRecord<>(topic, 0, null, value)));
            }
        }
        for (int i = 0; i < sent.size(); i++) {
            same((long) i, sent.get(i).get().offset(), "offset answered");
        }
        same(numbered("v", 3000), values(readAll(topic, 1, 3000, "read_committed")), "values in order");
        return null;
    }

    private Void timesAndSeek() throws Exception {
        String topic = topic("times", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        long first = System.currentTimeMillis() - 100_000;
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(topic, 0, first + i * 1000L, null, "v-" + i)).get();
            }
        }
        try (KafkaConsumer<String, String> consumer = consumer()) {
            until("the end is 10", () -> consumer.endOffsets(List.of(partition)).get(partition) == 10L);
            same(0L, consumer.beginningOffsets(List.of(partition)).get(partition), "beginning");
            same(4L, consumer.offsetsForTimes(Map.of(partition, first + 3500)).get(partition).offset(), "offset by time");
            hold(consumer.offsetsForTimes(Map.of(partition, first + 99_999)).get(partition) == null, "no offset after the last");
            consumer.assign(List.of(partition));
            consumer.seek(partition, 7);
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            until("three records", () -> {
                consumer.poll(POLL).forEach(found::add);
                return found.size() >= 3;
            });
            same(List.of("v-7", "v-8", "v-9"), values(found), "from offset 7");
            consumer.seekToEnd(List.of(partition));
            same(10L, consumer.position(partition), "position at the end");
        }
        return null;
    }
}
