package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var groupChecks = []check{
	{"classic group, range", shared("range", kgo.RangeBalancer())},
	{"classic group, cooperative sticky", shared("sticky", kgo.CooperativeStickyBalancer())},
	{"static member", staticMember},
}

func (w world) fill(ctx context.Context, topic string, partitions, count int) error {
	client, err := w.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	made := records(topic, numbered("v", count))
	for i, record := range made {
		record.Partition = int32(i % partitions)
	}
	return client.ProduceSync(ctx, made...).FirstErr()
}

// Polls for a moment; a time-out of that moment is no error.
func pollOnce(ctx context.Context, client *kgo.Client) []*kgo.Record {
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return client.PollFetches(short).Records()
}

// Two members share four partitions and commit what they read; one leaves, the other goes on with all four.
func shared(name string, balancer kgo.GroupBalancer) func(context.Context, world) error {
	return func(ctx context.Context, w world) error {
		topic, err := w.topic(ctx, "group-"+name, 4)
		if err != nil {
			return err
		}
		member := func() (*kgo.Client, error) {
			return w.client(kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
				kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		}
		first, err := member()
		if err != nil {
			return err
		}
		defer first.Close()
		second, err := member()
		if err != nil {
			return err
		}
		defer second.Close()
		err = until(ctx, "the group is stable with two members", func() (bool, error) {
			pollOnce(ctx, first)
			pollOnce(ctx, second)
			return w.members(ctx, topic, 2)
		})
		if err != nil {
			return err
		}
		if err := w.fill(ctx, topic, 4, 200); err != nil {
			return err
		}
		read := map[string]int{}
		err = until(ctx, "all is read", func() (bool, error) {
			for _, client := range []*kgo.Client{first, second} {
				for _, record := range pollOnce(ctx, client) {
					read[string(record.Value)]++
				}
			}
			return len(read) == 200, nil
		})
		if err != nil {
			return err
		}
		for _, client := range []*kgo.Client{first, second} {
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
		second.Close()
		if err := w.fill(ctx, topic, 4, 8); err != nil {
			return err
		}
		more := map[string]int{}
		err = until(ctx, "the first member reads what came later", func() (bool, error) {
			for _, record := range pollOnce(ctx, first) {
				more[string(record.Value)]++
			}
			return len(more) >= 8, nil
		})
		if err != nil {
			return err
		}
		return same(8, len(more), "records after the commit")
	}
}

func (w world) members(ctx context.Context, group string, count int) (stable bool, err error) {
	err = w.admin(func(admin *kadm.Client) error {
		found, err := admin.DescribeGroups(ctx, group)
		if err == nil {
			stable = found[group].State == "Stable" && len(found[group].Members) == count
		}
		return err
	})
	return stable, err
}

func staticMember(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "static", 2)
	if err != nil {
		return err
	}
	for life, count := range []int{10, 4} {
		if err := w.fill(ctx, topic, 2, count); err != nil {
			return err
		}
		client, err := w.client(kgo.ConsumerGroup(topic), kgo.InstanceID("one"), kgo.ConsumeTopics(topic),
			kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return err
		}
		found := 0
		err = until(ctx, fmt.Sprintf("life %d reads %d", life, count), func() (bool, error) {
			found += len(pollOnce(ctx, client))
			return found >= count, nil
		})
		if err == nil {
			err = client.CommitUncommittedOffsets(ctx)
		}
		client.Close()
		if err != nil {
			return err
		}
		if err := same(count, found, fmt.Sprintf("records of life %d", life)); err != nil {
			return err
		}
	}
	return nil
}
