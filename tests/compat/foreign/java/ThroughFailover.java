// One transactional producer through the loss of a region: java ThroughFailover HOST:PORT,HOST:PORT TOPIC
// Writes one value to two partitions a transaction, and prints what became of each until its input ends. It makes
// no second producer: with KIP-890 an abort is all that a client of the second generation knows.

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ThroughFailover {
    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", "through-java");
        settings.put("request.timeout.ms", 5000);
        settings.put("metadata.recovery.strategy", "rebootstrap");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int number = 0; System.in.available() == 0; number++) {
                producer.beginTransaction();
                try {
                    for (int partition = 0; partition < 2; partition++) {
                        producer.send(new ProducerRecord<>(args[1], partition, null, "" + number));
                    }
                    producer.commitTransaction();
                    System.out.println("committed\t" + number);
                } catch (KafkaException error) {
                    System.out.println("refused\t" + number + "\t" + error.getClass().getSimpleName());
                    producer.abortTransaction();
                    System.out.println("aborted\t" + number);
                }
            }
        }
    }
}
