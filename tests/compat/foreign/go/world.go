package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What the checks share: clients, topics, reading all, waiting for a condition within the context's limit.
type world struct{ bootstrap, prefix string }

func (w world) client(opts ...kgo.Opt) (*kgo.Client, error) {
	all := []kgo.Opt{kgo.SeedBrokers(w.bootstrap)}
	if os.Getenv("TRACES") == "true" {
		all = append(all, kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelDebug, nil)))
	}
	return kgo.NewClient(append(all, opts...)...)
}

// Runs `use` with an admin client.
func (w world) admin(use func(*kadm.Client) error) error {
	client, err := w.client()
	if err != nil {
		return err
	}
	defer client.Close()
	return use(kadm.NewClient(client))
}

// Creates a topic and waits until this address describes it: a mirror learns of it a moment later.
func (w world) topic(ctx context.Context, name string, partitions int32) (string, error) {
	topic := w.prefix + "-go-" + name
	return topic, w.admin(func(admin *kadm.Client) error {
		if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
			return err
		}
		return until(ctx, topic+" is described", func() (bool, error) {
			found, err := admin.ListTopics(ctx, topic)
			return err == nil && found[topic].Err == nil && len(found[topic].Partitions) == int(partitions), err
		})
	})
}

// Returns the records of a topic once `count` have come; anything that comes right after them is an error.
func (w world) readAll(ctx context.Context, topic string, count int, level kgo.IsolationLevel) ([]*kgo.Record, error) {
	client, err := w.client(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(level),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var found []*kgo.Record
	for len(found) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records read: %w", len(found), count, err)
		}
		found = append(found, fetches.Records()...)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	found = append(found, client.PollFetches(short).Records()...)
	return found, same(count, len(found), "records read from "+topic)
}

func values(records []*kgo.Record) []string {
	var found []string
	for _, record := range records {
		found = append(found, string(record.Value))
	}
	return found
}

func numbered(word string, count int) []string {
	var words []string
	for i := range count {
		words = append(words, fmt.Sprintf("%s-%d", word, i))
	}
	return words
}

func records(topic string, words []string) []*kgo.Record {
	var made []*kgo.Record
	for _, word := range words {
		made = append(made, &kgo.Record{Topic: topic, Value: []byte(word)})
	}
	return made
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

func same[T comparable](expected, found T, what string) error {
	if expected != found {
		return fmt.Errorf("%s: expected %v, found %v", what, expected, found)
	}
	return nil
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
