// The checks of franz-go against one bootstrap address: main HOST:PORT PREFIX [CHECK ...]
// or of one producer through the loss of a region: main HOST:PORT,HOST:PORT TOPIC --through-failover
// or one login over TLS, told on standard input: main --secure
// Prints "ok|FAIL <tab> check <tab> reason" a line; exits with 1 when a check failed.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const checkLimit = 60 * time.Second

type check struct {
	name string
	run  func(context.Context, world) error
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--secure" {
		secure()
		return
	}
	if len(os.Args) > 3 && os.Args[3] == "--through-failover" {
		if err := throughFailover(os.Args[1], os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	w := world{bootstrap: os.Args[1], prefix: os.Args[2]}
	wanted := os.Args[3:]
	failed := false
	for _, each := range slices.Concat(plainChecks, transactionChecks, groupChecks, adminChecks) {
		if len(wanted) > 0 && !slices.Contains(wanted, each.name) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
		err := each.run(ctx, w)
		cancel()
		if err != nil {
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
