package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// throughFailover is one transactional producer through the loss of a region: one value to two partitions a
// transaction. It prints what became of each until its input ends, and makes no second client.
func throughFailover(bootstrap, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.TransactionalID("through-go"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	var ends atomic.Bool
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		ends.Store(true)
	}()
	for number := 0; !ends.Load(); number++ {
		err := oneTransaction(client, topic, strconv.Itoa(number))
		if err == nil {
			fmt.Printf("committed\t%d\n", number)
			continue
		}
		fmt.Printf("refused\t%d\t%s\n", number, strings.Join(strings.Fields(err.Error()), " "))
		ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
		err = client.AbortBufferedRecords(ctx)
		if err == nil {
			err = client.EndTransaction(ctx, kgo.TryAbort)
		}
		cancel()
		if err != nil {
			return err
		}
		fmt.Printf("aborted\t%d\n", number)
	}
	return nil
}

func oneTransaction(client *kgo.Client, topic, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	first := &kgo.Record{Topic: topic, Partition: 0, Value: []byte(value)}
	second := &kgo.Record{Topic: topic, Partition: 1, Value: []byte(value)}
	if err := client.ProduceSync(ctx, first, second).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}
