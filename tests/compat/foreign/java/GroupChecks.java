// Consumer groups of both protocols: sharing, handing over, going on after a commit, patterns, static members.

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;

final class GroupChecks extends World {
    private static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";

    GroupChecks(String bootstrap, String prefix) {
        super(bootstrap, prefix);
    }

    @Override
    void addTo(Map<String, Callable<Void>> checks) {
        for (String assignor : List.of("RangeAssignor", "CooperativeStickyAssignor")) {
            checks.put("classic group, " + assignor, () -> shared("classic-" + assignor, GroupType.CLASSIC,
                    "group.protocol", "classic", "partition.assignment.strategy", ASSIGNORS + assignor));
        }
        for (String assignor : List.of("uniform", "range")) {
            checks.put("group.protocol=consumer, " + assignor, () -> shared("consumer-" + assignor, GroupType.CONSUMER,
                    "group.protocol", "consumer", "group.remote.assignor", assignor));
        }
        checks.put("group.protocol=consumer, pattern of topics", this::pattern);
        checks.put("group.protocol=consumer, static member", () -> staticMember("consumer"));
        checks.put("classic group, static member", () -> staticMember("classic"));
        checks.put("an empty classic group goes on with group.protocol=consumer", this::upgraded);
    }

    private void fill(String topic, int partitionCount, int count) {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, i % partitionCount, null, "v-" + i));
            }
        }
    }

    private KafkaConsumer<String, String> member(String group, String... more) {
        List<String> all = new ArrayList<>(List.of("group.id", group));
        all.addAll(List.of(more));
        return consumer(all.toArray(String[]::new));
    }

    // Two members share four partitions, one leaves, the other has all; what was committed is not read again.
    private Void shared(String name, GroupType type, String... settings) throws Exception {
        String topic = topic(name, 4);
        String group = prefix + "-" + name;
        fill(topic, 4, 200);
        Set<String> read = new HashSet<>();
        try (KafkaConsumer<String, String> first = member(group, settings); Admin admin = admin()) {
            first.subscribe(List.of(topic));
            try (KafkaConsumer<String, String> second = member(group, settings)) {
                second.subscribe(List.of(topic));
                until("two partitions each, all read", () -> {
                    first.poll(POLL).forEach(record -> read.add(record.value()));
                    second.poll(POLL).forEach(record -> read.add(record.value()));
                    return first.assignment().size() == 2 && second.assignment().size() == 2
                            && positions(first) + positions(second) == 200 && read.size() == 200;
                });
                described(admin, group, type, 2);
                first.commitSync();
                second.commitSync();
            }
            until("the first member has all four", () -> {
                first.poll(POLL).forEach(record -> hold(false, "read again: " + record));
                return first.assignment().size() == 4;
            });
            fill(topic, 4, 8);
            List<ConsumerRecord<String, String>> more = new ArrayList<>();
            until("what came later is read", () -> {
                first.poll(POLL).forEach(more::add);
                return more.size() >= 8;
            });
            same(Set.copyOf(numbered("v", 8)), Set.copyOf(values(more)), "what came later");
            first.commitSync();
            partitions(topic, 4).forEach(each -> same(52L, first.committed(Set.of(each)).get(each).offset(), "committed"));
        }
        return null;
    }

    // What is handed over uncommitted is read again: only positions tell that both have read to the end.
    private static long positions(KafkaConsumer<String, String> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    private static void described(Admin admin, String group, GroupType type, int members) throws Exception {
        ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        same(type, found.type(), "type of the group");
        same(GroupState.STABLE, found.groupState(), "state of the group");
        same(members, found.members().size(), "members");
        Set<TopicPartition> all = new HashSet<>();
        found.members().forEach(member -> all.addAll(member.assignment().topicPartitions()));
        same(4, all.size(), "partitions assigned");
    }

    private Void pattern() throws Exception {
        String one = topic("pattern-a", 1);
        String two = topic("pattern-b", 1);
        fill(one, 1, 5);
        fill(two, 1, 5);
        try (KafkaConsumer<String, String> consumer = member(prefix + "-pattern", "group.protocol", "consumer")) {
            consumer.subscribe(new SubscriptionPattern(prefix + "-pattern-[ab]"));
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            until("both topics are read", () -> {
                consumer.poll(POLL).forEach(found::add);
                return found.size() >= 10;
            });
            Set<TopicPartition> expected = Set.of(new TopicPartition(one, 0), new TopicPartition(two, 0));
            same(expected, consumer.assignment(), "assignment");
        }
        return null;
    }

    private Void staticMember(String protocol) throws Exception {
        String topic = topic("static-" + protocol, 2);
        String group = prefix + "-static-" + protocol;
        String[] settings = {"group.protocol", protocol, "group.instance.id", "one"};
        fill(topic, 2, 10);
        for (int life = 0; life < 2; life++) {
            try (KafkaConsumer<String, String> consumer = member(group, settings)) {
                consumer.subscribe(List.of(topic));
                int expected = life == 0 ? 10 : 4;
                List<ConsumerRecord<String, String>> found = new ArrayList<>();
                until("life " + life + " reads " + expected, () -> {
                    consumer.poll(POLL).forEach(found::add);
                    return found.size() >= expected;
                });
                same(expected, found.size(), "records of life " + life);
                consumer.commitSync();
            }
            fill(topic, 2, 4);
        }
        return null;
    }

    private Void upgraded() throws Exception {
        String topic = topic("upgraded", 1);
        String group = prefix + "-upgraded";
        for (String protocol : List.of("classic", "consumer")) {
            fill(topic, 1, 5);
            try (KafkaConsumer<String, String> consumer = member(group, "group.protocol", protocol)) {
                consumer.subscribe(List.of(topic));
                List<ConsumerRecord<String, String>> found = new ArrayList<>();
                until("five records", () -> {
                    consumer.poll(POLL).forEach(found::add);
                    return found.size() >= 5;
                });
                same(numbered("v", 5), values(found), "read by the " + protocol + " member");
                consumer.commitSync();
            }
        }
        return null;
    }
}
