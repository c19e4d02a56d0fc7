// Comes in as standard input says (`tests/compat/secure_cases.py`): lists, writes and reads, each by a client of its own,
// and prints "begun", then "STEP <tab> ok", or "STEP <tab> refused <tab> why". One login: java SecureCheck

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class SecureCheck {
    private static final int LIMIT_MS = 25_000;
    private static final String MODULES = "org.apache.kafka.common.security.";
    private static Map<String, String> told;

    public static void main(String[] args) throws Exception {
        told = read();
        System.out.println("begun");
        Map<String, Callable<Void>> steps = Map.of(
            "list", SecureCheck::list, "produce", SecureCheck::produce, "consume", SecureCheck::consume);
        List<Thread> all = new ArrayList<>();
        for (Map.Entry<String, Callable<Void>> step : steps.entrySet()) {
            Thread thread = new Thread(() -> tell(step.getKey(), step.getValue()));
            thread.start();
            all.add(thread);
        }
        for (Thread thread : all) {
            thread.join(LIMIT_MS);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, String> read() throws Exception {
        Map<String, String> found = new HashMap<>();
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                int at = line.indexOf('=');
                found.put(line.substring(0, at), line.substring(at + 1));
            }
        }
        return found;
    }

    private static void tell(String name, Callable<Void> step) {
        String outcome = "ok";
        try {
            step.call();
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            String said = String.valueOf(cause.getMessage()).replaceAll("\\s+", " ");
            outcome = "refused\t" + cause.getClass().getSimpleName() + ": " + said;
        }
        System.out.println(name + "\t" + outcome);
    }

    private static Map<String, Object> config() throws Exception {
        Map<String, Object> made = new HashMap<>();
        made.put("bootstrap.servers", told.get("bootstrap"));
        made.put("security.protocol", told.get("mechanism").isEmpty() ? "SSL" : "SASL_SSL");
        made.put("ssl.truststore.type", "PEM");
        made.put("ssl.truststore.location", told.get("ca"));
        if (!told.get("certificate").isEmpty()) {
            made.put("ssl.keystore.type", "PEM");
            made.put("ssl.keystore.certificate.chain", Files.readString(Path.of(told.get("certificate"))));
            made.put("ssl.keystore.key", Files.readString(Path.of(told.get("key"))));
        }
        if (!told.get("mechanism").isEmpty()) {
            made.put("sasl.mechanism", told.get("mechanism"));
            made.put("sasl.jaas.config", jaas());
        }
        if (told.get("mechanism").equals("OAUTHBEARER")) {
            made.put("sasl.login.callback.handler.class", TokenHandler.class);
        }
        return made;
    }

    private static String jaas() {
        if (told.get("mechanism").equals("OAUTHBEARER")) {
            return MODULES + "oauthbearer.OAuthBearerLoginModule required;";
        }
        String module = told.get("mechanism").equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        String token = told.get("is_token").equals("true") ? " tokenauth=true" : "";
        return MODULES + module + " required username=\"" + told.get("user") + "\" password=\"" + told.get("secret") + "\""
            + token + ";";
    }

    private static Void list() throws Exception {
        try (Admin admin = Admin.create(config())) {
            if (!admin.listTopics().names().get(LIMIT_MS, TimeUnit.MILLISECONDS).contains(told.get("topic"))) {
                throw new IllegalStateException("the topic is not in the list");
            }
            return null;
        }
    }

    private static Void produce() throws Exception {
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config(), new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(told.get("topic"), told.get("value"))).get(LIMIT_MS, TimeUnit.MILLISECONDS);
            return null;
        }
    }

    private static Void consume() throws Exception {
        Map<String, Object> made = config();
        made.put("enable.auto.commit", false);
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(made, new StringDeserializer(), new StringDeserializer())) {
            Set<TopicPartition> only = Set.of(new TopicPartition(told.get("topic"), 0));
            consumer.assign(only);
            consumer.seekToBeginning(only);
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (told.get("value").equals(record.value())) {
                        return null;
                    }
                }
            }
        }
    }

    /** Hands out the token that the case tells, good or not: the node is to judge it. */
    public static final class TokenHandler implements AuthenticateCallbackHandler {
        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

        @Override
        public void close() {}

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof OAuthBearerTokenCallback asked) {
                    asked.token(new Token());
                }
            }
        }
    }

    private static final class Token implements OAuthBearerToken {
        private final long made = System.currentTimeMillis();

        @Override
        public String value() {
            return told.get("secret");
        }

        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return made + 3_600_000;
        }

        @Override
        public String principalName() {
            return told.get("user");
        }

        @Override
        public Long startTimeMs() {
            return made;
        }
    }
}
