// Command load sends messages to agents of a running anima for a while and then audits
// the result: the end of every run, every turn, and every entry of the ledger. A drill
// uses it to check that no run was lost and no completion was paid twice. It must not do
// anything that the command line cannot do.
//
//	ANIMA_NATS_URL=nats://nats:4222 ANIMA_NATS_NKEY_FILE=/secrets/nats/seed load -for 30s -agents 16
//
// It prints one line of JSON, a [summary], and exits with 0 if no run was lost or failed
// and no completion was paid twice, otherwise with 1. With -mode router it makes model
// calls through the router only. `load -apart` moves the leaders of the stream of queued
// runs and of its durable to different servers, prints them and exits. `load -stop`, in
// the container of a load that is its process 1, ends the sending early; that load then
// waits for the runs in progress and audits the result.
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
		os.Exit(1) //nolint:gocritic // the deferred stop only releases the signals
	}
}

// settings are the settings that every client of anima has.
type settings struct {
	URL   string        `env:"nats_url" help:"NATS servers, separated by commas"`
	Token config.Secret `env:"nats_token" help:"token for NATS"`
	NKey  config.Secret `env:"nats_nkey" help:"seed of the operator's NATS user"`
	CA    string        `env:"nats_ca" help:"path of the certificates of tls:// servers"`
}

func run(ctx context.Context) error {
	l := &load{ends: map[string]*end{}, runs: map[string]int{}}
	flag.StringVar(&l.name, "name", "load", "prefix of its agents' names")
	length := flag.Duration("for", 20*time.Second, "how long messages are sent")
	agents := flag.Int("agents", 16, "number of agents, each with one message in progress")
	flag.StringVar(&l.text, "text", "one tool", "the message; {peer} stands for another agent's address")
	flag.DurationVar(&l.patience, "patience", 90*time.Second, "how long a message may take before it counts as lost")
	flag.DurationVar(&l.late, "late", 10*time.Second, "a run that takes longer counts as late: another owner has resumed it")
	mode := flag.String("mode", "turns", "turns, or router: model calls alone")
	stop := flag.Bool("stop", false, "only tell the load that is process 1 here to send no further messages")
	apart := flag.Bool("apart", false, "only move the leaders of the queue of runs and of its durable to different servers")
	flag.Parse()
	if *stop {
		return syscall.Kill(1, syscall.SIGUSR1)
	}
	if *agents < 1 || *mode != "turns" && *mode != "router" {
		return errors.New("want -agents of at least 1, and -mode turns or router")
	}
	sending, end := signal.NotifyContext(ctx, syscall.SIGUSR1)
	defer end()

	s := settings{URL: "nats://127.0.0.1:4222"}
	if err := config.Load("", &s, os.LookupEnv); err != nil {
		return err
	}
	l.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	conn, err := bus.Dial(bus.DialOptions{URL: s.URL, Token: s.Token.Reveal(), NKey: s.NKey.Reveal(), CA: s.CA, Name: bus.Operator, Wait: true, Log: l.log})
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
	sum, err := l.run(ctx, sending, *length, *agents, *mode == "router")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(sum); err != nil {
		return err
	}
	if !sum.ok() {
		return errors.New("messages were lost, failed or paid twice")
	}
	return nil
}
