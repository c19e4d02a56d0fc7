// A read-committed reader of the Java client that never stops: java Reader BOOTSTRAP TOPIC PARTITIONS [PROPERTIES]
// Standard output, with tabs: shown PARTITION OFFSET VALUE; error NAME. It ends with its standard input.

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class Reader {
    private static volatile boolean stopping;

    public static void main(String[] args) throws IOException {
        Thread thread = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException error) {
                System.out.println("error\t" + error.getClass().getSimpleName());
            }
            stopping = true;
        });
        thread.setDaemon(true);
        thread.start();
        Map<String, Object> settings = args.length > 3 ? Login.of(args[3]) : new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "none");
        settings.put("request.timeout.ms", 5000);
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < Integer.parseInt(args[2]); partition++) {
            all.add(new TopicPartition(args[1], partition));
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(all);
            for (TopicPartition each : all) consumer.seek(each, 0);
            while (!stopping) {
                try {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        System.out.println("shown\t" + record.partition() + "\t" + record.offset() + "\t" + record.value());
                    }
                } catch (KafkaException error) {
                    System.out.println("error\t" + error.getClass().getSimpleName());
                }
                System.out.flush();
            }
        }
    }
}
