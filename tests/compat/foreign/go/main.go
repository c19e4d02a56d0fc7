// The checks of franz-go against one bootstrap address: main HOST:PORT PREFIX [CHECK ...]
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
