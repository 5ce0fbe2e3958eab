// Command load sends messages to agents of a running anima for a while and then
// reads back what became of them: every run's end, every turn, every entry of
// the ledger. It is how a drill knows that nothing was lost and nothing paid
// twice. It must not do anything that the command line could not.
//
//	ANIMA_NATS_URL=nats://nats:4222 ANIMA_NATS_NKEY_FILE=/secrets/nats/seed load -for 30s -agents 16
//
// It prints one line of JSON, a [summary], and exits 0 if nothing was lost, failed
// or paid twice, else 1. With -mode router it asks the router alone, for model
// calls. `load -apart` places the leaders of the queue of runs and of its durable on
// different servers, prints them and ends. `load -stop`, beside a load that is process 1 of its container, ends the
// sending early; the load then waits for what is under way and reads it back.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1) //nolint:gocritic // stop only frees the signals
	}
}

// settings are those of every client of anima.
type settings struct {
	URL   string        `env:"nats_url" help:"NATS servers, separated by commas"`
	Token config.Secret `env:"nats_token" help:"token for NATS"`
	NKey  config.Secret `env:"nats_nkey" help:"seed of the operator's NATS user"`
	CA    string        `env:"nats_ca" help:"path of the certificates of tls:// servers"`
}

func run(ctx context.Context) error {
	l := &load{ends: map[string]*end{}, runs: map[string]int{}, stop: make(chan struct{})}
	flag.StringVar(&l.name, "name", "load", "prefix of its agents' names")
	length := flag.Duration("for", 20*time.Second, "how long messages are sent")
	agents := flag.Int("agents", 16, "agents, each with one message under way")
	flag.StringVar(&l.text, "text", "one tool", "the message; {peer} stands for another agent's address")
	flag.DurationVar(&l.patience, "patience", 90*time.Second, "how long a message may take before it counts as lost")
	flag.DurationVar(&l.late, "late", 10*time.Second, "a run that takes longer counts as late: somebody had to take it up again")
	mode := flag.String("mode", "turns", "turns, or router: model calls alone")
	stop := flag.Bool("stop", false, "tell the load that is process 1 here to send no more, and nothing else")
	apart := flag.Bool("apart", false, "place the leaders of the queue of runs and of its durable apart, and nothing else")
	flag.Parse()
	if *stop {
		return syscall.Kill(1, syscall.SIGUSR1)
	}
	if *agents < 1 || *mode != "turns" && *mode != "router" {
		return errors.New("-agents is at least 1, -mode is turns or router")
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1)
	go func() { <-told; close(l.stop) }()

	s := settings{URL: "nats://127.0.0.1:4222"}
	if err := config.Load("", &s, os.LookupEnv); err != nil {
		return err
	}
	l.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	conn, err := bus.Dial(bus.Dialing{URL: s.URL, Token: s.Token.Reveal(), NKey: s.NKey.Reveal(), CA: s.CA, Name: bus.Operator, Wait: true, Log: l.log})
	if err != nil {
		return err
	}
	defer conn.Close()
	l.bus, err = bus.New(conn, bus.Options{Service: bus.Operator, Log: l.log})
	if err != nil {
		return err
	}
	defer l.bus.Close()
	if *apart {
		leaders, err := l.bus.LeadersApart(ctx, api.Run{}.Subject(), string(api.Loop))
		if err == nil {
			fmt.Printf("%s leads the stream, %s its durable\n", leaders.Stream, leaders.Durable)
		}
		return err
	}
	sum, err := l.run(ctx, *agents, *mode == "router", func() {
		time.AfterFunc(*length, func() {
			select {
			case told <- syscall.SIGUSR1:
			default: // told already
			}
		})
	})
	if err != nil {
		return err
	}
	line, err := json.Marshal(sum)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	if !sum.ok() {
		return errors.New("something was lost, failed or paid twice")
	}
	return nil
}
