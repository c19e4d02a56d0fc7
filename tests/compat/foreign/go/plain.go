package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Producing and consuming without groups. franz-go is idempotent unless told otherwise.
var plainChecks = []check{
	{"produce and consume, none", codec("none", kgo.NoCompression())},
	{"produce and consume, gzip", codec("gzip", kgo.GzipCompression())},
	{"produce and consume, snappy", codec("snappy", kgo.SnappyCompression())},
	{"produce and consume, lz4", codec("lz4", kgo.Lz4Compression())},
	{"produce and consume, zstd", codec("zstd", kgo.ZstdCompression())},
	{"producer without idempotence, acks=1", acksOne},
}

func codec(name string, codec kgo.CompressionCodec) func(context.Context, world) error {
	return func(ctx context.Context, w world) error {
		topic, err := w.topic(ctx, "plain-"+name, 3)
		if err != nil {
			return err
		}
		return produceAndConsume(ctx, w, topic, kgo.ProducerBatchCompression(codec))
	}
}

func acksOne(ctx context.Context, w world) error {
	topic, err := w.topic(ctx, "acks-one", 3)
	if err != nil {
		return err
	}
	return produceAndConsume(ctx, w, topic, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
}

func produceAndConsume(ctx context.Context, w world, topic string, opts ...kgo.Opt) error {
	const count = 300
	client, err := w.client(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer client.Close()
	var sent []*kgo.Record
	for i := range count {
		word := []byte(fmt.Sprint(i))
		sent = append(sent, &kgo.Record{Topic: topic, Partition: int32(i % 3), Key: word, Value: word,
			Headers: []kgo.RecordHeader{{Key: "number", Value: word}}})
	}
	if err := client.ProduceSync(ctx, sent...).FirstErr(); err != nil {
		return err
	}
	found, err := w.readAll(ctx, topic, count, kgo.ReadUncommitted())
	if err != nil {
		return err
	}
	next := []int{0, 1, 2}
	for _, record := range found {
		number := fmt.Sprint(next[record.Partition])
		next[record.Partition] += 3
		if string(record.Key) != number || string(record.Value) != number || string(record.Headers[0].Value) != number {
			return fmt.Errorf("partition %d offset %d: expected %s, found %s", record.Partition, record.Offset, number, record.Value)
		}
	}
	return nil
}
