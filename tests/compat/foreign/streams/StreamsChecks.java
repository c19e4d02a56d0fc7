// Kafka Streams with exactly_once_v2: what a read-committed reader sees of an application that is killed and restarted.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;

final class StreamsChecks extends World {
    private static final int PARTITIONS = 3;
    private static final int LINES = 3000;
    private static final List<String> WORDS = List.of("salt", "tide", "mark", "wind", "wave", "rock", "sand");

    StreamsChecks(String bootstrap, String prefix) {
        super(bootstrap, prefix);
    }

    public static void main(String[] args) throws Exception {
        Map<String, Callable<Void>> checks = new LinkedHashMap<>();
        new StreamsChecks(args[0], args[1]).addTo(checks);
        Runner.run(checks, List.of(args).subList(2, args.length), 120);
    }

    @Override
    void addTo(Map<String, Callable<Void>> checks) {
        checks.put("word count: killed in the middle, goes on with its state folder", () -> killed("kept", false));
        checks.put("word count: killed in the middle, state restored from the changelog", () -> killed("lost", true));
        checks.put("word count: one of two instances is killed, the other takes over", this::takenOver);
        checks.put("windowed counts; internal topics have the configs that Streams asked for", this::windows);
        checks.put("repartition topics are purged behind the application", this::purged);
        checks.put("a stream joined with a table", this::joined);
    }

    // Words by a fixed seed, so that the expected counts are known without the application.
    private static List<String> lines() {
        Random random = new Random(7);
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < LINES; i++) {
            lines.add(random.ints(1 + i % 3, 0, WORDS.size()).mapToObj(WORDS::get).collect(Collectors.joining(" ")));
        }
        return lines;
    }

    private static Map<String, Integer> counted(List<String> lines) {
        Map<String, Integer> counts = new HashMap<>();
        lines.forEach(line -> List.of(line.split(" ")).forEach(word -> counts.merge(word, 1, Integer::sum)));
        return counts;
    }

    // A second apart, from the full minute an hour ago on: ten lines fill a window of ten seconds.
    private void send(String topic, List<String> lines, int partitions) {
        long start = System.currentTimeMillis() / 60_000 * 60_000 - 3_600_000;
        try (KafkaProducer<String, String> producer = producer("linger.ms", "5")) {
            for (int i = 0; i < lines.size(); i++) {
                producer.send(new ProducerRecord<>(topic, i % partitions, start + 1_000L * i, "k-" + i, lines.get(i)));
            }
        }
    }

    // Sends in the background, slowly enough that an application is still at it when it is killed.
    private Thread sendSlowly(String topic, List<String> lines) {
        Thread sender = new Thread(() -> {
            for (int i = 0; i < lines.size(); i += 50) {
                send(topic, lines.subList(i, i + 50), PARTITIONS);
            }
        });
        sender.start();
        return sender;
    }

    private Instance start(String application, Path folder, String topology, String input, String output) throws Exception {
        return new Instance(bootstrap, prefix + "-" + application, folder.toString(), topology, input, output);
    }

    // Follows a topic read-committed until there are `count` records; one poll more must bring nothing.
    private final class Reader implements AutoCloseable {
        final KafkaConsumer<String, String> consumer = consumer("isolation.level", "read_committed");
        final List<ConsumerRecord<String, String>> found = new ArrayList<>();

        Reader(String topic, int partitions) {
            consumer.assign(partitions(topic, partitions));
        }

        void until(int count, long limitMs) {
            long end = System.currentTimeMillis() + limitMs;
            while (found.size() < count) {
                hold(System.currentTimeMillis() < end, "within " + limitMs + " ms only " + found.size() + " of " + count + " records came");
                consumer.poll(POLL).forEach(found::add);
            }
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    // Each word's counts must be 1, 2, 3, ... in this order, up to how often it was sent: none twice, none left out.
    private static void eachOnce(List<ConsumerRecord<String, String>> found, Map<String, Integer> expected) {
        Map<String, Integer> last = new HashMap<>();
        for (ConsumerRecord<String, String> each : found) {
            int next = last.merge(each.key(), 1, Integer::sum);
            same(String.valueOf(next), each.value(), "the next count of " + each.key() + " at offset " + each.offset());
        }
        same(expected, last, "counts");
    }

    private Void killed(String name, boolean stateIsLost) throws Exception {
        String input = topic("streams-in-" + name, PARTITIONS);
        String output = topic("streams-out-" + name, PARTITIONS);
        List<String> lines = lines();
        Map<String, Integer> expected = counted(lines);
        int total = expected.values().stream().mapToInt(i -> i).sum();
        Path folder = Files.createTempDirectory("streams-" + name);
        try (Reader reader = new Reader(output, PARTITIONS)) {
            Thread sender;
            try (Instance first = start(name, folder, "words", input, output)) {
                until("the application runs", () -> first.was("RUNNING"));
                sender = sendSlowly(input, lines);
                reader.until(total / 10, 30_000); // the rest is in open transactions, or not read yet
                hold(sender.isAlive(), "it was not killed in the middle");
            }
            sender.join();
            Path next = stateIsLost ? Files.createTempDirectory("streams-" + name) : folder;
            try (Instance second = start(name, next, "words", input, output)) {
                reader.until(total, 60_000);
                reader.consumer.poll(POLL).forEach(reader.found::add);
            }
            eachOnce(reader.found, expected);
        }
        return null;
    }

    private Void takenOver() throws Exception {
        String input = topic("streams-in-two", PARTITIONS);
        String output = topic("streams-out-two", PARTITIONS);
        List<String> lines = lines();
        Map<String, Integer> expected = counted(lines);
        int total = expected.values().stream().mapToInt(i -> i).sum();
        try (Reader reader = new Reader(output, PARTITIONS);
                Instance first = start("two", Files.createTempDirectory("streams-a"), "words", input, output);
                Instance second = start("two", Files.createTempDirectory("streams-b"), "words", input, output)) {
            until("both run", () -> first.was("RUNNING") && second.was("RUNNING"));
            Thread sender = sendSlowly(input, lines);
            reader.until(total / 10, 30_000);
            hold(sender.isAlive(), "it was not killed in the middle");
            first.kill();
            sender.join();
            reader.until(total, 60_000);
            reader.consumer.poll(POLL).forEach(reader.found::add);
            eachOnce(reader.found, expected);
        }
        return null;
    }

    private Void windows() throws Exception {
        String input = topic("streams-in-windows", PARTITIONS);
        String output = topic("streams-out-windows", PARTITIONS);
        int seconds = 100; // one line a second: ten windows of ten seconds, each word once in each line
        try (Admin admin = admin(); Reader reader = new Reader(output, PARTITIONS);
                Instance only = start("windows", Files.createTempDirectory("streams-w"), "windows", input, output)) {
            send(input, java.util.Collections.nCopies(seconds, "tide mark"), 1);
            reader.until(2 * seconds, 60_000);
            Map<String, List<String>> byWindow = new HashMap<>();
            reader.found.forEach(each -> byWindow.computeIfAbsent(each.key(), key -> new ArrayList<>()).add(each.value()));
            same(20, byWindow.size(), "windows of two words");
            byWindow.forEach((window, counts) ->
                    same(java.util.stream.IntStream.rangeClosed(1, 10).mapToObj(String::valueOf).toList(), counts, window));
            String before = prefix + "-windows-";
            configured(admin, before + "words-repartition", Map.of("cleanup.policy", "delete", "retention.ms", "-1",
                    "segment.bytes", "52428800", "message.timestamp.type", "CreateTime"));
            // KIP-71 and the window store's retention: size and a day more than the window
            configured(admin, before + "counts-changelog", Map.of("cleanup.policy", "compact,delete",
                    "retention.ms", String.valueOf(10_000 + 86_400_000), "message.timestamp.type", "CreateTime"));
        }
        return null;
    }

    private static void configured(Admin admin, String topic, Map<String, String> expected) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        expected.forEach((key, value) -> same(value, found.get(key).value(), topic + " " + key));
    }

    private Void purged() throws Exception {
        String input = topic("streams-in-purged", PARTITIONS);
        String output = topic("streams-out-purged", PARTITIONS);
        String repartition = prefix + "-purged-words-repartition";
        try (Admin admin = admin(); Reader reader = new Reader(output, PARTITIONS);
                Instance only = start("purged", Files.createTempDirectory("streams-p"), "words", input, output)) {
            List<String> lines = lines().subList(0, 300);
            send(input, lines, PARTITIONS);
            reader.until(counted(lines).values().stream().mapToInt(i -> i).sum(), 60_000);
            until("the beginning of " + repartition + " moved", () -> {
                send(input, List.of("tide"), 1); // Streams purges when it commits
                var specs = partitions(repartition, PARTITIONS).stream()
                        .collect(Collectors.toMap(each -> each, each -> OffsetSpec.earliest()));
                return admin.listOffsets(specs).all().get().values().stream().anyMatch(each -> each.offset() > 0);
            });
        }
        return null;
    }

    private Void joined() throws Exception {
        String input = topic("streams-visits", 1);
        String names = topic("streams-visits-names", 1);
        String output = topic("streams-joined", 1);
        long past = System.currentTimeMillis() - 1000; // a table is read by time: names first
        try (KafkaProducer<String, String> producer = producer()) {
            producer.send(new ProducerRecord<>(names, 0, past, "a", "Ada")).get();
            producer.send(new ProducerRecord<>(names, 0, past, "b", "Bo")).get();
        }
        try (Reader reader = new Reader(output, 1);
                Instance only = start("join", Files.createTempDirectory("streams-j"), "join", input, output);
                KafkaProducer<String, String> producer = producer()) {
            until("the application runs", () -> only.was("RUNNING"));
            for (String key : List.of("a", "b", "nobody", "a")) {
                producer.send(new ProducerRecord<>(input, 0, past + 10, key, "visit")).get();
            }
            reader.until(3, 30_000);
            reader.consumer.poll(POLL).forEach(reader.found::add);
            same(List.of("visit by Ada", "visit by Bo", "visit by Ada"), values(reader.found), "joined");
        }
        return null;
    }
}
