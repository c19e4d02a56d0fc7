package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var adminChecks = []check{
	{"admin: create, grow, alter and delete topics", topics},
	{"admin: offsets of topics and groups", offsets},
	{"admin: list and describe transactions", transactions},
	{"admin: set, describe and remove client quotas", quotas},
}

func topics(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "admin", 2)
	if err != nil {
		return err
	}
	return w.admin(func(admin *kadm.Client) error {
		if grown, err := admin.UpdatePartitions(ctx, 5, topic); err != nil || grown.Error() != nil {
			return fmt.Errorf("grow: %v %v", err, grown.Error())
		}
		set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("777777")}}
		if altered, err := admin.AlterTopicConfigs(ctx, set, topic); err != nil || altered[0].Err != nil {
			return fmt.Errorf("alter: %v %v", err, altered)
		}
		err := until(ctx, "five partitions and the new value", func() (bool, error) {
			listed, err := admin.ListTopics(ctx, topic)
			if err != nil {
				return false, err
			}
			configs, err := admin.DescribeTopicConfigs(ctx, topic)
			if err != nil {
				return false, err
			}
			value := ""
			for _, config := range configs[0].Configs {
				if config.Key == "retention.ms" {
					value = config.MaybeValue()
				}
			}
			return len(listed[topic].Partitions) == 5 && value == "777777", nil
		})
		if err != nil {
			return err
		}
		if _, err := admin.DeleteTopic(ctx, topic); err != nil {
			return err
		}
		return until(ctx, "it is gone", func() (bool, error) {
			listed, err := admin.ListTopics(ctx)
			return err == nil && !listed.Has(topic), err
		})
	})
}

func offsets(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "offsets", 1)
	if err != nil {
		return err
	}
	if err := w.fill(ctx, topic, 1, 10); err != nil {
		return err
	}
	return w.admin(func(admin *kadm.Client) error {
		err := until(ctx, "the end is 10", func() (bool, error) {
			ends, err := admin.ListEndOffsets(ctx, topic)
			end, _ := ends.Lookup(topic, 0)
			return end.Offset == 10, err
		})
		if err != nil {
			return err
		}
		starts, err := admin.ListStartOffsets(ctx, topic)
		if err != nil {
			return err
		}
		start, _ := starts.Lookup(topic, 0)
		if err := same(int64(0), start.Offset, "start"); err != nil {
			return err
		}
		group := topic
		wanted := kadm.Offsets{}
		wanted.AddOffset(topic, 0, 7, -1)
		if err := admin.CommitAllOffsets(ctx, group, wanted); err != nil {
			return err
		}
		found, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return err
		}
		at, _ := found.Lookup(topic, 0)
		if err := same(int64(7), at.At, "committed"); err != nil {
			return err
		}
		lag, err := admin.Lag(ctx, group)
		if err != nil {
			return err
		}
		if err := same(int64(3), lag[group].Lag.Total(), "lag"); err != nil {
			return err
		}
		_, err = admin.DeleteGroup(ctx, group)
		return err
	})
}

func quotas(ctx context.Context, w world) error {
	user := w.prefix + "-go-quotas"
	entity := kadm.ClientQuotaEntity{{Type: "user", Name: kadm.StringPtr(user)}, {Type: "client-id", Name: nil}}
	of := []kadm.DescribeClientQuotaComponent{{Type: "user", MatchName: kadm.StringPtr(user), MatchType: kmsg.QuotasMatchTypeExact}}
	return w.admin(func(admin *kadm.Client) error {
		described := func(wanted ...float64) error {
			return until(ctx, fmt.Sprintf("quotas %v", wanted), func() (bool, error) {
				found, err := admin.DescribeClientQuotas(ctx, false, of)
				if err != nil {
					return false, err
				}
				var values []float64
				for _, each := range found {
					for _, value := range each.Values {
						values = append(values, value.Value)
					}
				}
				return slices.Equal(values, wanted), nil
			})
		}
		alter := func(op kadm.AlterClientQuotaOp) error {
			answers, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{op}}})
			if err != nil {
				return err
			}
			return answers[0].Err
		}
		if err := alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 54321}); err != nil {
			return err
		}
		if err := described(54321); err != nil {
			return err
		}
		if err := alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: -1}); !errors.Is(err, kerr.InvalidRequest) {
			return fmt.Errorf("a quota below 0: %v", err)
		}
		if err := alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Remove: true}); err != nil {
			return err
		}
		return described()
	})
}

func transactions(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "admin-txn", 1)
	if err != nil {
		return err
	}
	client, err := w.client(kgo.TransactionalID(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, records(topic, []string{"open"})...).FirstErr(); err != nil {
		return err
	}
	err = w.admin(func(admin *kadm.Client) error {
		listed, err := admin.ListTransactions(ctx, nil, []string{"Ongoing"})
		if err != nil {
			return err
		}
		if _, there := listed[topic]; !there {
			return fmt.Errorf("%s is not among the ongoing: %v", topic, listed)
		}
		described, err := admin.DescribeTransactions(ctx, topic)
		if err != nil {
			return err
		}
		if err := same("Ongoing", described[topic].State, "state"); err != nil {
			return err
		}
		producers, err := admin.DescribeProducers(ctx, kadm.TopicsSet{topic: {0: {}}})
		if err != nil {
			return err
		}
		return same(1, len(producers.SortedProducers()), "producers")
	})
	if err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryAbort)
}
