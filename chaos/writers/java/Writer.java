// A transactional writer of the Java client that transfers and never stops: java Writer BOOTSTRAP NAME TOPIC SEED PACE_MS [PROPERTIES]
// Standard input: "rest", "go", "stop". Standard output, with tabs: begun N SOURCE TARGET AMOUNT; placed N PARTITION OFFSET;
// ended N COMMITTED|NOT_COMMITTED|UNKNOWN; error NAME; resting; stopped.
// After any error that no abort mends it starts anew with the same transactional id, as an application does.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Writer {
    private static final int ACCOUNTS = 4;
    private static volatile boolean resting;
    private static volatile boolean stopping;
    private static int number;

    public static void main(String[] args) throws Exception {
        listen();
        Random chance = new Random(Long.parseLong(args[3]));
        long paceMs = Long.parseLong(args[4]);
        while (!stopping) {
            KafkaProducer<String, String> producer =
                    new KafkaProducer<>(settings(args), new StringSerializer(), new StringSerializer());
            try {
                producer.initTransactions();
                while (!stopping && rested(paceMs) && transfer(producer, args, chance)) {}
            } catch (KafkaException error) {
                tell("error\t" + error.getClass().getSimpleName());
                Thread.sleep(100);
            } finally {
                producer.close(Duration.ofSeconds(5));
            }
        }
        tell("stopped");
    }

    private static Map<String, Object> settings(String[] args) throws java.io.IOException {
        Map<String, Object> settings = args.length > 5 ? Login.of(args[5]) : new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", args[1]);
        settings.put("request.timeout.ms", 5000);
        settings.put("delivery.timeout.ms", 20000);
        settings.put("max.block.ms", 20000);
        settings.put("transaction.timeout.ms", 20000);
        settings.put("metadata.recovery.strategy", "rebootstrap");
        settings.put("metadata.recovery.rebootstrap.trigger.ms", 2000);
        return settings;
    }

    private static void listen() {
        Thread thread = new Thread(() -> {
            try (BufferedReader orders = new BufferedReader(new InputStreamReader(System.in))) {
                for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                    if (order.equals("stop")) break;
                    resting = order.equals("rest");
                }
            } catch (java.io.IOException error) {
                tell("error\t" + error.getClass().getSimpleName());
            }
            stopping = true;  // at the end of its orders, too: no orphan is left behind
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static boolean rested(long paceMs) throws InterruptedException {
        boolean told = false;
        while (resting && !stopping) {
            if (!told) tell("resting");
            told = true;
            Thread.sleep(paceMs);
        }
        Thread.sleep(paceMs);
        return true;
    }

    /** Returns whether the producer can go on. */
    private static boolean transfer(KafkaProducer<String, String> producer, String[] args, Random chance)
            throws InterruptedException {
        int mine = ++number;
        int source = chance.nextInt(ACCOUNTS);
        int target = (source + 1 + chance.nextInt(ACCOUNTS - 1)) % ACCOUNTS;
        int amount = 1 + chance.nextInt(99);
        String attempt = args[1] + "." + mine;
        String outcome = "NOT_COMMITTED";
        tell("begun\t" + mine + "\t" + source + "\t" + target + "\t" + amount);
        try {
            producer.beginTransaction();
            Future<RecordMetadata> first =
                    producer.send(new ProducerRecord<>(args[2], source, null, attempt + " " + -amount));
            Future<RecordMetadata> second =
                    producer.send(new ProducerRecord<>(args[2], target, null, attempt + " " + amount));
            producer.flush();
            placed(mine, first.get());
            placed(mine, second.get());
            if (chance.nextInt(10) == 0) {
                producer.abortTransaction();
            } else {
                outcome = "UNKNOWN";
                producer.commitTransaction();
                outcome = "COMMITTED";
            }
            return true;
        } catch (KafkaException | ExecutionException error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            tell("error\t" + cause.getClass().getSimpleName());
            return false;
        } finally {
            tell("ended\t" + mine + "\t" + outcome);
        }
    }

    private static void placed(int mine, RecordMetadata where) {
        tell("placed\t" + mine + "\t" + where.partition() + "\t" + where.offset());
    }

    private static synchronized void tell(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
