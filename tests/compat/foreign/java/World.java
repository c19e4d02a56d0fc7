// What the checks share: clients with their settings, topics, and waiting for a condition within a limit.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

abstract class World {
    static final long WAIT_MS = 30_000;
    static final Duration POLL = Duration.ofMillis(200);

    final String bootstrap;
    final String prefix;

    World(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    abstract void addTo(Map<String, Callable<Void>> checks);

    Admin admin() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("default.api.timeout.ms", "30000");
        return Admin.create(settings);
    }

    KafkaProducer<String, String> producer(String... more) {
        return new KafkaProducer<>(settings(more), new StringSerializer(), new StringSerializer());
    }

    KafkaConsumer<String, String> consumer(String... more) {
        Properties settings = settings("auto.offset.reset", "earliest", "enable.auto.commit", "false");
        settings.putAll(settings(more));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private Properties settings(String... pairs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put(pairs[i], pairs[i + 1]);
        }
        return settings;
    }

    // Creates a topic and waits until this address describes it: a mirror learns of it a moment later.
    String topic(String name, int partitionCount) throws Exception {
        String topic = prefix + "-" + name;
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitionCount, (short) 1))).all().get();
            until("topic " + topic + " is described", () -> exists(admin, topic));
        }
        return topic;
    }

    static boolean exists(Admin admin, String topic) throws Exception {
        try {
            admin.describeTopics(List.of(topic)).allTopicNames().get();
            return true;
        } catch (java.util.concurrent.ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return false;
            }
            throw error;
        }
    }

    static List<TopicPartition> partitions(String topic, int count) {
        return IntStream.range(0, count).mapToObj(i -> new TopicPartition(topic, i)).toList();
    }

    // Returns all records of a topic once `count` have come; one poll more must bring nothing.
    List<ConsumerRecord<String, String>> readAll(String topic, int partitionCount, int count, String isolation) {
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", isolation)) {
            consumer.assign(partitions(topic, partitionCount));
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            long end = System.currentTimeMillis() + WAIT_MS;
            while (found.size() < count && System.currentTimeMillis() < end) {
                consumer.poll(POLL).forEach(found::add);
            }
            consumer.poll(POLL).forEach(found::add);
            same(count, found.size(), "records read from " + topic);
            return found;
        }
    }

    static List<String> values(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).collect(Collectors.toList());
    }

    static List<String> numbered(String word, int count) {
        return IntStream.range(0, count).mapToObj(i -> word + "-" + i).collect(Collectors.toList());
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (!condition.call()) {
            hold(System.currentTimeMillis() < end, "not within " + WAIT_MS + " ms: " + what);
            Thread.sleep(20);
        }
    }

    static void hold(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static void same(Object expected, Object found, String what) {
        hold(expected.equals(found), what + ": expected " + expected + ", found " + found);
    }
}
