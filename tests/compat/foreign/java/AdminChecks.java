// The admin client: topics, configs, offsets, groups, transactions.

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.TopicExistsException;

final class AdminChecks extends World {
    AdminChecks(String bootstrap, String prefix) {
        super(bootstrap, prefix);
    }

    @Override
    void addTo(Map<String, Callable<Void>> checks) {
        checks.put("admin: create, describe, list, grow and delete topics", this::topics);
        checks.put("admin: describe and alter configs", this::configs);
        checks.put("admin: list offsets", this::listOffsets);
        checks.put("admin: delete records", this::deleteRecords);
        checks.put("admin: list, describe, reset and delete groups", this::groups);
        checks.put("admin: list, describe and abort transactions", this::abortTransaction);
        checks.put("admin: fence a producer, force-terminate", this::fenceProducers);
        checks.put("admin: cluster, log folders", this::cluster);
    }

    private Void topics() throws Exception {
        String topic = prefix + "-admin-topics";
        try (Admin admin = admin()) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "12345678"));
            same(2, admin.createTopics(List.of(wanted)).numPartitions(topic).get(), "partitions answered");
            fails(TopicExistsException.class, () -> admin.createTopics(List.of(wanted)).all().get());
            until("it is described", () -> exists(admin, topic));
            TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            same(2, described.partitions().size(), "partitions described");
            same(described.topicId(), admin.listTopics().namesToListings().get().get(topic).topicId(), "topic id");
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            until("five partitions", () -> 5 == admin.describeTopics(List.of(topic)).allTopicNames().get()
                    .get(topic).partitions().size());
            admin.deleteTopics(List.of(topic)).all().get();
            until("it is gone", () -> !exists(admin, topic) && !admin.listTopics().names().get().contains(topic));
        }
        return null;
    }

    private static String config(Admin admin, ConfigResource resource, String key) throws Exception {
        Config all = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        return all.get(key).value();
    }

    private Void configs() throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, topic("admin-configs", 1));
        try (Admin admin = admin()) {
            alter(admin, topic, "retention.ms", "777777", AlterConfigOp.OpType.SET);
            until("the value is shown", () -> config(admin, topic, "retention.ms").equals("777777"));
            alter(admin, topic, "retention.ms", null, AlterConfigOp.OpType.DELETE);
            until("the default is back", () -> config(admin, topic, "retention.ms").equals("604800000"));
            fails(InvalidConfigurationException.class,
                    () -> alter(admin, topic, "retention.ms", "soon", AlterConfigOp.OpType.SET));
            int id = admin.describeCluster().nodes().get().iterator().next().id();
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(id));
            hold(!admin.describeConfigs(List.of(broker)).all().get().get(broker).entries().isEmpty(), "broker configs");
        }
        return null;
    }

    private static Void alter(Admin admin, ConfigResource on, String key, String value, AlterConfigOp.OpType how)
            throws Exception {
        return admin.incrementalAlterConfigs(Map.of(on, List.of(new AlterConfigOp(new ConfigEntry(key, value), how))))
                .all().get();
    }

    private Void listOffsets() throws Exception {
        String topic = topic("admin-offsets", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        long now = System.currentTimeMillis();
        try (Admin admin = admin(); KafkaProducer<String, String> producer = producer("transactional.id", topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            // the largest time is later than that of the marker, which counts as well
            for (long time : List.of(now - 5000, now + 60_000, now - 3000)) {
                producer.send(new ProducerRecord<>(topic, 0, time, null, "v"));
            }
            producer.commitTransaction();
            until("3 records and a marker", () -> offset(admin, partition, OffsetSpec.latest(), false) == 4);
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, now - 9000, null, "open")).get();
            same(0L, offset(admin, partition, OffsetSpec.earliest(), false), "earliest");
            same(4L, offset(admin, partition, OffsetSpec.latest(), true), "latest, read committed");
            same(1L, offset(admin, partition, OffsetSpec.forTimestamp(now - 4000), false), "by time");
            same(1L, offset(admin, partition, OffsetSpec.maxTimestamp(), false), "largest time");
            producer.abortTransaction();
        }
        return null;
    }

    private static long offset(Admin admin, TopicPartition partition, OffsetSpec spec, boolean committed) throws Exception {
        IsolationLevel level = committed ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
        ListOffsetsResultInfo found = admin.listOffsets(Map.of(partition, spec), new ListOffsetsOptions(level))
                .partitionResult(partition).get();
        return found.offset();
    }

    private Void deleteRecords() throws Exception {
        String topic = topic("admin-delete", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin(); KafkaProducer<String, String> producer = producer("linger.ms", "0")) {
            for (String value : numbered("v", 10)) {
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            }
            same(6L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(6))).lowWatermarks()
                    .get(partition).get().lowWatermark(), "low watermark");
            until("earliest is 6", () -> offset(admin, partition, OffsetSpec.earliest(), false) == 6);
        }
        same(numbered("v", 10).subList(6, 10), values(readAll(topic, 1, 4, "read_committed")), "what is left");
        return null;
    }

    private Void groups() throws Exception {
        String topic = topic("admin-groups", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        String group = prefix + "-admin-groups";
        try (KafkaProducer<String, String> producer = producer()) {
            numbered("v", 10).forEach(value -> producer.send(new ProducerRecord<>(topic, 0, null, value)));
        }
        try (Admin admin = admin()) {
            try (KafkaConsumer<String, String> consumer = consumer("group.id", group)) {
                consumer.subscribe(List.of(topic));
                until("something is read", () -> !consumer.poll(POLL).isEmpty());
                consumer.commitSync(Map.of(partition, new OffsetAndMetadata(3, "a note")));
                hold(admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)), "listed");
                same(new OffsetAndMetadata(3, consumer.groupMetadata().generationId() < 0 ? null
                        : committed(admin, group, partition).leaderEpoch(), "a note"), committed(admin, group, partition),
                        "committed");
            }
            admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(8))).all().get();
            same(8L, committed(admin, group, partition).offset(), "reset");
            try (KafkaConsumer<String, String> consumer = consumer("group.id", group)) {
                consumer.subscribe(List.of(topic));
                Set<String> found = new HashSet<>();
                until("two records", () -> {
                    consumer.poll(POLL).forEach(record -> found.add(record.value()));
                    return found.size() >= 2;
                });
                same(Set.of("v-8", "v-9"), found, "read from the reset");
            }
            admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
            hold(committed(admin, group, partition) == null, "the offset is deleted");
            admin.deleteConsumerGroups(List.of(group)).all().get();
            hold(admin.listGroups().all().get().stream().noneMatch(each -> each.groupId().equals(group)), "deleted");
        }
        return null;
    }

    private static OffsetAndMetadata committed(Admin admin, String group, TopicPartition partition) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition);
    }

    private Void abortTransaction() throws Exception {
        String topic = topic("admin-abort", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin(); KafkaProducer<String, String> producer = producer("transactional.id", topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "hanging")).get();
            hold(admin.listTransactions().all().get().stream().anyMatch(
                    each -> each.transactionalId().equals(topic) && each.state() == TransactionState.ONGOING), "listed");
            same(Set.of(partition), admin.describeTransactions(List.of(topic)).description(topic).get().topicPartitions(),
                    "partitions of the transaction");
            List<ProducerState> active = admin.describeProducers(List.of(partition)).partitionResult(partition).get()
                    .activeProducers();
            same(1, active.size(), "active producers");
            ProducerState one = active.get(0);
            same(0L, one.currentTransactionStartOffset().orElse(-1), "start of the transaction");
            admin.abortTransaction(new AbortTransactionSpec(partition, one.producerId(), (short) one.producerEpoch(),
                    one.coordinatorEpoch().orElse(0))).all().get();
            until("nothing is open", () -> offset(admin, partition, OffsetSpec.latest(), true) == 2);
            fails(KafkaException.class, () -> {
                producer.commitTransaction();
                return null;
            });
        }
        readAll(topic, 1, 0, "read_committed");
        return null;
    }

    private Void fenceProducers() throws Exception {
        String topic = topic("admin-fence", 1);
        try (Admin admin = admin(); KafkaProducer<String, String> producer = producer("transactional.id", topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "fenced")).get();
            admin.fenceProducers(List.of(topic)).all().get();
            fails(KafkaException.class, () -> {
                producer.commitTransaction();
                return null;
            });
        }
        try (Admin admin = admin(); KafkaProducer<String, String> producer = producer("transactional.id", topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "terminated")).get();
            admin.forceTerminateTransaction(topic).result().get();
        }
        readAll(topic, 1, 0, "read_committed");
        return null;
    }

    private Void cluster() throws Exception {
        try (Admin admin = admin()) {
            hold(admin.describeCluster().clusterId().get() != null, "cluster id");
            int id = admin.describeCluster().controller().get().id();
            hold(!admin.describeLogDirs(List.of(id)).allDescriptions().get().get(id).isEmpty(), "log folders");
        }
        return null;
    }

    private static void fails(Class<? extends Throwable> expected, Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (ExecutionException wrapped) {
            hold(expected.isInstance(wrapped.getCause()), "expected " + expected + ", not " + wrapped.getCause());
            return;
        } catch (KafkaException error) {
            hold(expected.isInstance(error), "expected " + expected + ", not " + error);
            return;
        }
        throw new AssertionError("no " + expected.getSimpleName());
    }
}
