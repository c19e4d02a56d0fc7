// The checks of sarama against one bootstrap address: main HOST:PORT PREFIX [CHECK ...]
// or one login over TLS, told on standard input: main --secure
// Prints "ok|FAIL <tab> check <tab> reason" a line; exits with 1 when a check failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const checkLimit = 60 * time.Second

type world struct{ bootstrap, prefix string }

type check struct {
	name string
	run  func(context.Context, world) error
}

var checks = []check{
	codecCheck(sarama.CompressionNone), codecCheck(sarama.CompressionGZIP), codecCheck(sarama.CompressionSnappy),
	codecCheck(sarama.CompressionLZ4), codecCheck(sarama.CompressionZSTD),
	{"idempotent producer", idempotent},
	{"transactions: commit, abort, both isolation levels", transactions},
	{"consume-process-produce, every third aborted", copyInTransactions},
	groupCheck(sarama.NewBalanceStrategyRange()), groupCheck(sarama.NewBalanceStrategySticky()),
	{"static member", staticMember},
	{"admin: create, grow, alter and delete topics", adminTopics},
	{"admin: groups and their offsets", adminGroups},
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--secure" {
		secure()
		return
	}
	w := world{bootstrap: os.Args[1], prefix: os.Args[2]}
	wanted := os.Args[3:]
	if os.Getenv("TRACES") == "true" {
		sarama.Logger = log.New(os.Stderr, "", log.LstdFlags|log.Lmicroseconds)
	}
	failed := false
	for _, each := range checks {
		if len(wanted) > 0 && !slices.Contains(wanted, each.name) {
			continue
		}
		if err := within(each, w); err != nil {
			failed = true
			fmt.Printf("FAIL\t%s\t%s\n", each.name, strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Printf("ok\t%s\t\n", each.name)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// Calls of sarama take no context: one that hangs is left behind.
func within(c check, w world) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.run(ctx, w) }()
	select {
	case err := <-done:
		return err
	case <-time.After(checkLimit + time.Second):
		return fmt.Errorf("not done within %v", checkLimit)
	}
}

// --- what the checks share

func config(change func(*sarama.Config)) *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Return.Successes = true
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	if change != nil {
		change(made)
	}
	return made
}

func (w world) admin(use func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin([]string{w.bootstrap}, config(nil))
	if err != nil {
		return err
	}
	defer admin.Close()
	return use(admin)
}

// Creates a topic and waits until this address describes it: a mirror learns of it a moment later.
func (w world) topic(ctx context.Context, name string, partitions int32) (string, error) {
	topic := w.prefix + "-sarama-" + name
	return topic, w.admin(func(admin sarama.ClusterAdmin) error {
		detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
		if err := admin.CreateTopic(topic, detail, false); err != nil {
			return err
		}
		return until(ctx, topic+" is described", func() (bool, error) {
			found, err := admin.DescribeTopics([]string{topic})
			return err == nil && found[0].Err == sarama.ErrNoError && len(found[0].Partitions) == int(partitions), err
		})
	})
}

func messages(topic string, words []string) []*sarama.ProducerMessage {
	var made []*sarama.ProducerMessage
	for _, word := range words {
		made = append(made, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(word)})
	}
	return made
}

func (w world) produce(topic string, words []string, change func(*sarama.Config)) error {
	producer, err := sarama.NewSyncProducer([]string{w.bootstrap}, config(change))
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.SendMessages(messages(topic, words))
}

// Returns the values of partition 0 once `count` have come; anything that comes right after them is an error.
func (w world) readAll(ctx context.Context, topic string, count int, level sarama.IsolationLevel) ([]string, error) {
	consumer, err := sarama.NewConsumer([]string{w.bootstrap}, config(func(c *sarama.Config) { c.Consumer.IsolationLevel = level }))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var found []string
	for len(found) < count {
		select {
		case message := <-partition.Messages():
			found = append(found, string(message.Value))
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d records came", len(found), count)
		}
	}
	select {
	case message := <-partition.Messages():
		return nil, fmt.Errorf("one record too many: %s", message.Value)
	case <-time.After(300 * time.Millisecond):
		return found, nil
	}
}

func numbered(word string, count int) []string {
	var words []string
	for i := range count {
		words = append(words, fmt.Sprintf("%s-%d", word, i))
	}
	return words
}

func until(ctx context.Context, what string, condition func() (bool, error)) error {
	for {
		if holds, err := condition(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		} else if holds {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func sameList(expected, found []string, what string) error {
	if !slices.Equal(expected, found) {
		return fmt.Errorf("%s: expected %d values %.80v, found %d values %.80v", what, len(expected), expected, len(found), found)
	}
	return nil
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}

// --- plain

func codecCheck(codec sarama.CompressionCodec) check {
	return check{"produce and consume, " + codec.String(), func(ctx context.Context, w world) error {
		topic, err := w.topic(ctx, "codec-"+codec.String(), 1)
		if err != nil {
			return err
		}
		if err := w.produce(topic, numbered("v", 500), func(c *sarama.Config) { c.Producer.Compression = codec }); err != nil {
			return err
		}
		found, err := w.readAll(ctx, topic, 500, sarama.ReadUncommitted)
		if err != nil {
			return err
		}
		return sameList(numbered("v", 500), found, "read")
	}}
}

func idempotence(c *sarama.Config) {
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
}

func idempotent(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "idempotent", 1)
	if err != nil {
		return err
	}
	if err := w.produce(topic, numbered("v", 500), idempotence); err != nil {
		return err
	}
	found, err := w.readAll(ctx, topic, 500, sarama.ReadUncommitted)
	if err != nil {
		return err
	}
	return sameList(numbered("v", 500), found, "read")
}

// --- transactions

func (w world) transactional(id string) (sarama.SyncProducer, error) {
	return sarama.NewSyncProducer([]string{w.bootstrap}, config(func(c *sarama.Config) {
		idempotence(c)
		c.Producer.Transaction.ID = id
	}))
}

func transactions(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "txn", 1)
	if err != nil {
		return err
	}
	producer, err := w.transactional(topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, word := range []string{"kept", "dropped", "kept-too"} {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		if err := producer.SendMessages(messages(topic, numbered(word, 20))); err != nil {
			return err
		}
		end := producer.CommitTxn
		if word == "dropped" {
			end = producer.AbortTxn
		}
		if err := end(); err != nil {
			return err
		}
	}
	found, err := w.readAll(ctx, topic, 40, sarama.ReadCommitted)
	if err != nil {
		return err
	}
	if err := sameList(slices.Concat(numbered("kept", 20), numbered("kept-too", 20)), found, "read committed"); err != nil {
		return err
	}
	_, err = w.readAll(ctx, topic, 60, sarama.ReadUncommitted)
	return err
}

// Copies each record in a transaction of its own with its offset; every third is aborted first.
func copyInTransactions(ctx context.Context, w world) error {
	const count = 30
	input, err := w.topic(ctx, "in", 1)
	if err != nil {
		return err
	}
	output, err := w.topic(ctx, "out", 1)
	if err != nil {
		return err
	}
	if err := w.produce(input, numbered("v", count), nil); err != nil {
		return err
	}
	words, err := w.readAll(ctx, input, count, sarama.ReadCommitted)
	if err != nil {
		return err
	}
	producer, err := w.transactional(output)
	if err != nil {
		return err
	}
	defer producer.Close()
	copyOne := func(i int, end func() error) error {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		if err := producer.SendMessages(messages(output, words[i:i+1])); err != nil {
			return err
		}
		offsets := map[string][]*sarama.PartitionOffsetMetadata{input: {{Partition: 0, Offset: int64(i + 1), LeaderEpoch: -1}}}
		if err := producer.AddOffsetsToTxn(offsets, input); err != nil {
			return err
		}
		return end()
	}
	for i := range count {
		if i%3 == 2 {
			if err := copyOne(i, producer.AbortTxn); err != nil {
				return fmt.Errorf("aborting %d: %w", i, err)
			}
		}
		if err := copyOne(i, producer.CommitTxn); err != nil {
			return fmt.Errorf("committing %d: %w", i, err)
		}
	}
	found, err := w.readAll(ctx, output, count, sarama.ReadCommitted)
	if err != nil {
		return err
	}
	if err := sameList(words, found, "each record once"); err != nil {
		return err
	}
	return w.committed(input, input, count)
}

// --- groups

type member struct {
	take  func(string)
	ready func()
}

func (m member) Setup(sarama.ConsumerGroupSession) error   { m.ready(); return nil }
func (m member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.take(string(message.Value))
		session.MarkMessage(message, "")
	}
	return nil
}

// Runs a member of group `topic` until the context ends.
func (w world) join(ctx context.Context, topic string, change func(*sarama.Config), m member) (sarama.ConsumerGroup, error) {
	group, err := sarama.NewConsumerGroup([]string{w.bootstrap}, topic, config(change))
	if err != nil {
		return nil, err
	}
	go func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, m); errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
		}
	}()
	return group, nil
}

type gathered struct {
	mutex  sync.Mutex
	values []string
}

func (g *gathered) take(value string) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.values = append(g.values, value)
}

func (g *gathered) count() int {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return len(g.values)
}

func groupCheck(strategy sarama.BalanceStrategy) check {
	return check{"group of two, " + strategy.Name(), func(ctx context.Context, w world) error {
		topic, err := w.topic(ctx, "group-"+strategy.Name(), 4)
		if err != nil {
			return err
		}
		change := func(c *sarama.Config) {
			c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
		}
		var found [2]gathered
		for i := range found {
			group, err := w.join(ctx, topic, change, member{found[i].take, func() {}})
			if err != nil {
				return err
			}
			defer group.Close()
		}
		if err := w.admin(func(admin sarama.ClusterAdmin) error {
			return until(ctx, "two members are assigned", func() (bool, error) {
				groups, err := admin.DescribeConsumerGroups([]string{topic})
				return err == nil && groups[0].State == "Stable" && len(groups[0].Members) == 2, err
			})
		}); err != nil {
			return err
		}
		if err := w.produce(topic, numbered("v", 400), nil); err != nil {
			return err
		}
		if err := until(ctx, "all is read", func() (bool, error) { return found[0].count()+found[1].count() >= 400, nil }); err != nil {
			return err
		}
		if found[0].count() == 0 || found[1].count() == 0 {
			return fmt.Errorf("the members read %d and %d", found[0].count(), found[1].count())
		}
		return sameList(sorted(numbered("v", 400)), sorted(slices.Concat(found[0].values, found[1].values)), "read once")
	}}
}

func staticMember(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "static", 1)
	if err != nil {
		return err
	}
	change := func(c *sarama.Config) { c.Consumer.Group.InstanceId = "instance" }
	for round := 1; round <= 2; round++ {
		if err := w.produce(topic, numbered(fmt.Sprint("round-", round), 10), nil); err != nil {
			return err
		}
		var found gathered
		group, err := w.join(ctx, topic, change, member{found.take, func() {}})
		if err != nil {
			return err
		}
		err = until(ctx, "ten records", func() (bool, error) { return found.count() >= 10, nil })
		if closed := group.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
		if err := sameList(numbered(fmt.Sprint("round-", round), 10), found.values, "read"); err != nil {
			return err
		}
	}
	return nil
}

// --- administration

func (w world) committed(group, topic string, offset int64) error {
	return w.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})
		if err != nil {
			return err
		}
		if block := found.GetBlock(topic, 0); block == nil || block.Offset != offset {
			return fmt.Errorf("committed offset: expected %d, found %+v", offset, block)
		}
		return nil
	})
}

func adminTopics(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "admin", 1)
	if err != nil {
		return err
	}
	return w.admin(func(admin sarama.ClusterAdmin) error {
		if err := admin.CreatePartitions(topic, 3, nil, false); err != nil {
			return err
		}
		value := "123456"
		entry := map[string]sarama.IncrementalAlterConfigsEntry{
			"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
		}
		if err := admin.IncrementalAlterConfig(sarama.TopicResource, topic, entry, false); err != nil {
			return err
		}
		if err := until(ctx, "three partitions and the config", func() (bool, error) {
			topics, err := admin.DescribeTopics([]string{topic})
			if err != nil {
				return false, err
			}
			configs, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
			if err != nil {
				return false, err
			}
			set := slices.ContainsFunc(configs, func(c sarama.ConfigEntry) bool { return c.Name == "retention.ms" && c.Value == value })
			return set && len(topics[0].Partitions) == 3, nil
		}); err != nil {
			return err
		}
		if err := admin.DeleteTopic(topic); err != nil {
			return err
		}
		return until(ctx, "it is gone", func() (bool, error) {
			topics, err := admin.ListTopics()
			_, there := topics[topic]
			return !there, err
		})
	})
}

func adminGroups(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "groups", 1)
	if err != nil {
		return err
	}
	if err := w.produce(topic, numbered("v", 10), nil); err != nil {
		return err
	}
	var found gathered
	group, err := w.join(ctx, topic, nil, member{found.take, func() {}})
	if err != nil {
		return err
	}
	err = until(ctx, "ten records", func() (bool, error) { return found.count() >= 10, nil })
	if closed := group.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := w.committed(topic, topic, 10); err != nil {
		return err
	}
	return w.admin(func(admin sarama.ClusterAdmin) error {
		groups, err := admin.ListConsumerGroups()
		if _, there := groups[topic]; err != nil || !there {
			return fmt.Errorf("the group is not listed: %v, %w", groups, err)
		}
		if err := admin.DeleteConsumerGroup(topic); err != nil {
			return err
		}
		groups, err = admin.ListConsumerGroups()
		if _, there := groups[topic]; err != nil || there {
			return fmt.Errorf("the group is still listed: %v, %w", groups, err)
		}
		return nil
	})
}
