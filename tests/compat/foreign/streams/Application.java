// One instance of a Streams application, in a process of its own that a check may kill: it is never asked to close.
// java Application HOST:PORT APPLICATION FOLDER TOPOLOGY INPUT OUTPUT; prints "state <name>" as its state changes.

import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;

public final class Application {
    static final Map<String, Topologies> TOPOLOGIES = Map.of(
            "words", Application::words, "windows", Application::windows, "join", Application::join);

    interface Topologies {
        void build(StreamsBuilder builder, String input, String output);
    }

    public static void main(String[] args) {
        StreamsBuilder builder = new StreamsBuilder();
        TOPOLOGIES.get(args[3]).build(builder, args[4], args[5]);
        Topology topology = builder.build();
        KafkaStreams streams = new KafkaStreams(topology, settings(args[0], args[1], args[2]));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.start();
    }

    // What a user would set, and shorter intervals, so that a check sees commits and purges within seconds.
    static Properties settings(String bootstrap, String application, String folder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1000);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // each count is written
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000); // a killed instance is missed sooner
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 1000);
        return settings;
    }

    private static KStream<String, String> lines(StreamsBuilder builder, String input) {
        return builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()));
    }

    private static KGroupedStream<String, String> byWord(StreamsBuilder builder, String input) {
        return lines(builder, input)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()));
    }

    private static void words(StreamsBuilder builder, String input, String output) {
        byWord(builder, input)
                .count(Materialized.as("counts"))
                .toStream().mapValues(String::valueOf)
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
    }

    private static void windows(StreamsBuilder builder, String input, String output) {
        byWord(builder, input)
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(10)))
                .count(Materialized.as("counts"))
                .toStream().map((window, count) -> KeyValue.pair(window.key() + "@" + window.window().start(), String.valueOf(count)))
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
    }

    // A stream of visits joined with a table of names, which is the input's twin.
    private static void join(StreamsBuilder builder, String input, String output) {
        var names = builder.table(input + "-names", Consumed.with(Serdes.String(), Serdes.String()), Materialized.as("names"));
        lines(builder, input)
                .join(names, (visit, name) -> visit + " by " + name)
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
    }
}
