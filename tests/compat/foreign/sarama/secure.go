package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// Comes in as standard input says (`tests/compat/secure_cases.py`): lists, writes and reads, each by a client of its own,
// and prints "begun", then "STEP <tab> ok", or "STEP <tab> refused <tab> why".
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
	steps := map[string]func(map[string]string) error{
		"list": secureList, "produce": secureProduce, "consume": secureConsume,
	}
	var all sync.WaitGroup
	var printing sync.Mutex
	for name, step := range steps {
		all.Go(func() {
			outcome := "ok"
			if err := inTime(func() error { return step(told) }); err != nil {
				outcome = fmt.Sprintf("refused\t%T: %s", err, strings.Join(strings.Fields(err.Error()), " "))
			}
			printing.Lock()
			defer printing.Unlock()
			fmt.Printf("%s\t%s\n", name, outcome)
		})
	}
	all.Wait()
}

// Calls of sarama take no context: one that hangs is left behind.
func inTime(step func() error) error {
	done := make(chan error, 1)
	go func() { done <- step() }()
	select {
	case err := <-done:
		return err
	case <-time.After(secureLimit):
		return fmt.Errorf("not done within %v", secureLimit)
	}
}

func secureConfig(told map[string]string) (*sarama.Config, error) {
	made := sarama.NewConfig()
	made.Version = sarama.V3_6_0_0
	made.Producer.Return.Successes = true
	var err error
	made.Net.TLS.Enable = true
	if made.Net.TLS.Config, err = tlsConfig(told); err != nil || told["mechanism"] == "" {
		return made, err
	}
	made.Net.SASL.Enable = true
	made.Net.SASL.Mechanism = sarama.SASLMechanism(told["mechanism"])
	made.Net.SASL.User, made.Net.SASL.Password = told["user"], told["secret"]
	made.Net.SASL.TokenProvider = tokenOf(told["secret"])
	hash := scram.SHA512
	if told["mechanism"] == sarama.SASLTypeSCRAMSHA256 {
		hash = scram.SHA256
	}
	made.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
	return made, nil
}

type tokenOf string

func (token tokenOf) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(token)}, nil
}

// What sarama's own example has: it brings no SCRAM of its own.
type scramClient struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
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

func secureList(told map[string]string) error {
	config, err := secureConfig(told)
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin([]string{told["bootstrap"]}, config)
	if err != nil {
		return err
	}
	defer admin.Close()
	found, err := admin.ListTopics()
	if _, has := found[told["topic"]]; err == nil && !has {
		return errors.New("the topic is not in the list")
	}
	return err
}

func secureProduce(told map[string]string) error {
	config, err := secureConfig(told)
	if err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer([]string{told["bootstrap"]}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: told["topic"], Value: sarama.StringEncoder(told["value"])})
	return err
}

func secureConsume(told map[string]string) error {
	config, err := secureConfig(told)
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumer([]string{told["bootstrap"]}, config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(told["topic"], 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	for message := range partition.Messages() {
		if string(message.Value) == told["value"] {
			return nil
		}
	}
	return errors.New("the messages have ended")
}
