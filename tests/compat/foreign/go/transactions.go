package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var transactionChecks = []check{
	{"transactions: commit, abort, both isolation levels", commitAndAbort},
	{"transactions: 50 in a row over two topics", manyOverTwoTopics},
	{"transactions: an older producer is fenced", fenced},
	{"consume-process-produce (GroupTransactSession)", copyInTransactions},
}

func transact(ctx context.Context, client *kgo.Client, end kgo.TransactionEndTry, records ...*kgo.Record) error {
	if err := client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := client.EndTransaction(ctx, end); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

func commitAndAbort(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "txn", 1)
	if err != nil {
		return err
	}
	client, err := w.client(kgo.TransactionalID(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	for _, word := range []string{"kept", "dropped", "kept-too"} {
		if err := transact(ctx, client, kgo.TransactionEndTry(word != "dropped"), records(topic, numbered(word, 20))...); err != nil {
			return err
		}
	}
	found, err := w.readAll(ctx, topic, 40, kgo.ReadCommitted())
	if err != nil {
		return err
	}
	if err := sameList(slices.Concat(numbered("kept", 20), numbered("kept-too", 20)), values(found), "read committed"); err != nil {
		return err
	}
	_, err = w.readAll(ctx, topic, 60, kgo.ReadUncommitted())
	return err
}

func manyOverTwoTopics(ctx context.Context, w world) error {
	left, err := w.topic(ctx, "left", 1)
	if err != nil {
		return err
	}
	right, err := w.topic(ctx, "right", 1)
	if err != nil {
		return err
	}
	client, err := w.client(kgo.TransactionalID(left))
	if err != nil {
		return err
	}
	defer client.Close()
	for _, word := range numbered("v", 50) {
		both := slices.Concat(records(left, []string{word}), records(right, []string{word}))
		if err := transact(ctx, client, kgo.TryCommit, both...); err != nil {
			return err
		}
	}
	for _, topic := range []string{left, right} {
		found, err := w.readAll(ctx, topic, 50, kgo.ReadCommitted())
		if err != nil {
			return err
		}
		if err := sameList(numbered("v", 50), values(found), topic); err != nil {
			return err
		}
	}
	return nil
}

func fenced(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "fenced", 1)
	if err != nil {
		return err
	}
	older, err := w.client(kgo.TransactionalID(topic))
	if err != nil {
		return err
	}
	defer older.Close()
	newer, err := w.client(kgo.TransactionalID(topic))
	if err != nil {
		return err
	}
	defer newer.Close()
	if err := older.BeginTransaction(); err != nil {
		return err
	}
	if err := older.ProduceSync(ctx, records(topic, []string{"of the older"})...).FirstErr(); err != nil {
		return err
	}
	if err := transact(ctx, newer, kgo.TryCommit, records(topic, []string{"of the newer"})...); err != nil {
		return err
	}
	err = older.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("the older producer was not fenced, but got: %v", err)
	}
	found, err := w.readAll(ctx, topic, 1, kgo.ReadCommitted())
	if err != nil {
		return err
	}
	return sameList([]string{"of the newer"}, values(found), "read committed")
}

// Reads, writes on and commits its offsets in one transaction; every third is aborted and done again by the session.
func copyInTransactions(ctx context.Context, w world) error {
	const count = 200
	input, err := w.topic(ctx, "in", 2)
	if err != nil {
		return err
	}
	output, err := w.topic(ctx, "out", 1)
	if err != nil {
		return err
	}
	if err := w.fill(ctx, input, 2, count); err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(w.bootstrap), kgo.TransactionalID(output),
		kgo.ConsumerGroup(input), kgo.ConsumeTopics(input), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets())
	if err != nil {
		return err
	}
	defer session.Close()
	for done, round := 0, 1; done < count; round++ {
		fetches := session.PollRecords(ctx, 17)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d of %d copied: %w", done, count, err)
		}
		if err := session.Begin(); err != nil {
			return err
		}
		if err := session.ProduceSync(ctx, records(output, values(fetches.Records()))...).FirstErr(); err != nil {
			return err
		}
		committed, err := session.End(ctx, kgo.TransactionEndTry(round%3 != 0))
		if err != nil {
			return err
		}
		if committed {
			done += fetches.NumRecords()
		}
	}
	found, err := w.readAll(ctx, output, count, kgo.ReadCommitted())
	if err != nil {
		return err
	}
	if err := sameList(sorted(numbered("v", count)), sorted(values(found)), "each record once"); err != nil {
		return err
	}
	return w.admin(func(admin *kadm.Client) error {
		offsets, err := admin.FetchOffsets(ctx, input)
		if err != nil {
			return err
		}
		for partition := range int32(2) {
			at, _ := offsets.Lookup(input, partition)
			if err := same(int64(count/2), at.At, "committed offset"); err != nil {
				return err
			}
		}
		return nil
	})
}
