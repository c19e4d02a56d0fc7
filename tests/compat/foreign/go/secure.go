package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Comes in as standard input says (`tests/compat/secure_cases.py`): lists, writes and reads, each by a client of its own,
// and prints "begun", then "STEP <tab> ok", or "STEP <tab> refused <tab> why". Producers and consumers of franz-go try logins again for as
// long as they live, so each asks by Ping first, as its documentation advises.
const secureLimit = 25 * time.Second

func readCase() map[string]string {
	told := map[string]string{}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		told[name] = value
	}
	return told
}

func secure() {
	told := readCase()
	fmt.Println("begun")
	steps := map[string]func(context.Context, map[string]string) error{
		"list": secureList, "produce": secureProduce, "consume": secureConsume,
	}
	var all sync.WaitGroup
	var printing sync.Mutex
	for name, step := range steps {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), secureLimit)
			defer cancel()
			outcome := "ok"
			if err := step(ctx, told); err != nil {
				outcome = fmt.Sprintf("refused\t%T: %s", err, strings.Join(strings.Fields(err.Error()), " "))
			}
			printing.Lock()
			defer printing.Unlock()
			fmt.Printf("%s\t%s\n", name, outcome)
		})
	}
	all.Wait()
}

func secureClient(told map[string]string, more ...kgo.Opt) (*kgo.Client, error) {
	config, err := tlsConfig(told)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{kgo.SeedBrokers(told["bootstrap"]), kgo.DialTLSConfig(config)}
	if told["mechanism"] != "" {
		mechanism, err := mechanismOf(told)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return kgo.NewClient(append(opts, more...)...)
}

func mechanismOf(told map[string]string) (sasl.Mechanism, error) {
	user, secret := told["user"], told["secret"]
	login := scram.Auth{User: user, Pass: secret, IsToken: told["is_token"] == "true"}
	switch told["mechanism"] {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return login.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return login.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Auth{Token: secret}.AsMechanism(), nil
	}
	return nil, errors.New("no such mechanism: " + told["mechanism"])
}

func tlsConfig(told map[string]string) (*tls.Config, error) {
	pem, err := os.ReadFile(told["ca"])
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if told["certificate"] == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(told["certificate"], told["key"])
	// Shown whatever the node says it wants: what is wrong must reach it.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return config, err
}

func secureList(ctx context.Context, told map[string]string) error {
	client, err := secureClient(told)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := kadm.NewClient(client).ListTopics(ctx)
	if err == nil && !found.Has(told["topic"]) {
		return errors.New("the topic is not in the list")
	}
	return err
}

func secureProduce(ctx context.Context, told map[string]string) error {
	client, err := secureClient(told)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	return client.ProduceSync(ctx, &kgo.Record{Topic: told["topic"], Value: []byte(told["value"])}).FirstErr()
}

func secureConsume(ctx context.Context, told map[string]string) error {
	client, err := secureClient(told, kgo.ConsumeTopics(told["topic"]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	for {
		fetches := client.PollFetches(ctx)
		for _, record := range fetches.Records() {
			if string(record.Value) == told["value"] {
				return nil
			}
		}
		if err := fetches.Err(); err != nil {
			return err
		}
	}
}
