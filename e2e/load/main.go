// Command load sends messages to agents of a running anima for a while and then
// reads back what became of them: every run's end, every turn, every entry of
// the ledger. It is how a drill knows that nothing was lost and nothing paid
// twice. It must not do anything that the command line could not.
//
//	ANIMA_NATS_URL=nats://nats:4222 ANIMA_NATS_NKEY_FILE=/secrets/nats/seed load -for 30s -agents 16
//
// It prints one line of JSON and exits 0 if nothing was lost, failed or paid
// twice, else 1.
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
	"slices"
	"strconv"
	"sync"
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

// summary is what the load found.
type summary struct {
	Name     string   `json:"name"`
	Seconds  float64  `json:"seconds"`
	Sent     int      `json:"sent"`    // messages accepted
	Runs     int      `json:"runs"`    // of them, ended well
	Turns    int      `json:"turns"`   // in those runs
	Failed   int      `json:"failed"`  // ended badly
	Lost     int      `json:"lost"`    // never ended
	Refused  int      `json:"refused"` // not accepted, after a minute of trying
	Doubled  int      `json:"doubled"` // holds settled more than once
	Unpaid   int      `json:"unpaid"`  // turns without exactly one settled hold
	Rate     float64  `json:"turnsPerSecond"`
	P50MS    float64  `json:"p50Ms"` // of a run, as its sender sees it
	P99MS    float64  `json:"p99Ms"`
	MaxMS    float64  `json:"maxMs"`
	LedgerOK bool     `json:"ledgerOk"`
	Faults   []string `json:"faults,omitempty"`
	LastTurn string   `json:"lastTurn,omitempty"`
}

func (s summary) ok() bool {
	return s.Failed+s.Lost+s.Refused+s.Doubled+s.Unpaid == 0 && s.Runs > 0 && s.LedgerOK
}

func run(ctx context.Context) error {
	name := flag.String("name", "load", "prefix of its agents' names")
	length := flag.Duration("for", 20*time.Second, "how long messages are sent")
	agents := flag.Int("agents", 16, "agents, each with one message under way")
	text := flag.String("text", "one tool", "the message")
	patience := flag.Duration("patience", 90*time.Second, "how long a message may take before it counts as lost")
	flag.Parse()
	s := settings{URL: "nats://127.0.0.1:4222"}
	if err := config.Load("", &s, os.LookupEnv); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	conn, err := bus.Dial(bus.Dialing{URL: s.URL, Token: s.Token.Reveal(), NKey: s.NKey.Reveal(), CA: s.CA, Name: bus.Operator, Wait: true, Log: log})
	if err != nil {
		return err
	}
	defer conn.Close()
	b, err := bus.New(conn, bus.Options{Service: bus.Operator, Log: log})
	if err != nil {
		return err
	}
	defer b.Close()
	l := &load{bus: b, log: log, name: *name, text: *text, patience: *patience, ends: map[string]chan api.LoopEnd{}}
	sum, err := l.run(ctx, *agents, *length)
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

type load struct {
	bus        *bus.Bus
	log        *slog.Logger
	name, text string
	patience   time.Duration

	mu   sync.Mutex
	ends map[string]chan api.LoopEnd // by run
	sum  summary
	took []time.Duration
	runs map[string]int // turns of each run that ended well
}

func (l *load) run(ctx context.Context, n int, length time.Duration) (summary, error) {
	l.runs, l.sum.Name = map[string]int{}, l.name
	agents := make([]api.Agent, n)
	for i := range agents {
		a, err := l.born(ctx, i)
		if err != nil {
			return l.sum, fmt.Errorf("agent %d: %w", i, err)
		}
		agents[i] = a
	}
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { l.follow(following) })
	began := time.Now()
	var senders sync.WaitGroup
	for i, a := range agents {
		senders.Go(func() {
			for m := 0; time.Since(began) < length && ctx.Err() == nil; m++ {
				l.one(ctx, a, fmt.Sprintf("%s-%d-%d-%d", l.name, began.UnixNano(), i, m))
			}
		})
	}
	senders.Wait()
	took := time.Since(began)
	stop()
	follower.Wait()
	slices.Sort(l.took)
	l.sum.Seconds, l.sum.Rate = took.Seconds(), float64(l.sum.Turns)/took.Seconds()
	if k := len(l.took); k > 0 {
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		l.sum.P50MS, l.sum.P99MS, l.sum.MaxMS = ms(l.took[k/2]), ms(l.took[k*99/100]), ms(l.took[k-1])
	}
	return l.sum, l.audit(ctx, agents)
}

// born makes an agent, or finds it, and gives it money.
func (l *load) born(ctx context.Context, i int) (api.Agent, error) {
	a, err := again[api.Agent](ctx, l.bus, api.ApplyAgent{Source: fmt.Sprintf("---\nname: %s%d\ntools: [check_credits]\n---\nBe quick.\n", l.name, i)})
	if err != nil {
		return a, err
	}
	_, err = again[api.Posted](ctx, l.bus, api.Deposit{ID: "load-" + a.ID, Agent: a.ID, Amount: 1000 * api.Dollar, Source: "faucet"})
	return a, err
}

// again asks until it is answered or refused for good.
func again[R any](ctx context.Context, b *bus.Bus, q api.Message) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		once, done := context.WithTimeout(ctx, 5*time.Second)
		r, err := bus.Call[R](once, b, q)
		done()
		if err == nil || api.CodeOf(err) != api.Unavailable && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return r, err
		}
	}
}

func (l *load) end(run string) chan api.LoopEnd {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.ends[run]
	if c == nil {
		c = make(chan api.LoopEnd, 1)
		l.ends[run] = c
	}
	return c
}

func (l *load) follow(ctx context.Context) {
	err := l.bus.Follow(ctx, 0, func(s bus.Stored) error {
		var e api.LoopEnd
		if err := api.Decode(s.Data, &e); err != nil {
			return err
		}
		select {
		case l.end(e.Run) <- e:
		default: // said twice
		}
		return nil
	}, api.LoopEnd{}.Subject().All())
	if ctx.Err() == nil {
		l.log.Error("cannot follow", "err", err)
	}
}

// one sends a message and waits for the end of its run.
func (l *load) one(ctx context.Context, a api.Agent, id string) {
	began := time.Now()
	acc, err := again[api.Accepted](ctx, l.bus, api.SendMessage{Agent: a.ID, Content: l.text, ID: id})
	if err != nil {
		l.note(func(s *summary) { s.Refused++; s.Faults = append(s.Faults, "refused: "+err.Error()) })
		return
	}
	late := time.NewTimer(l.patience)
	defer late.Stop()
	select {
	case e := <-l.end(acc.Run):
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.ends, acc.Run)
		l.sum.Sent++
		if !e.Success {
			l.sum.Failed++
			l.sum.Faults = append(l.sum.Faults, "failed: "+acc.Run)
			return
		}
		l.sum.Runs++
		l.sum.Turns += e.Turns
		l.took = append(l.took, time.Since(began))
		l.runs[acc.Run] = e.Turns
		l.sum.LastTurn = acc.Run + "." + strconv.Itoa(e.Turns)
	case <-late.C:
		l.note(func(s *summary) { s.Sent++; s.Lost++; s.Faults = append(s.Faults, "lost: "+acc.Run) })
	case <-ctx.Done():
	}
}

func (l *load) note(f func(*summary)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f(&l.sum); len(l.sum.Faults) > 10 {
		l.sum.Faults = l.sum.Faults[:10]
	}
}

// audit reads the ledger of the agents: each turn of each run that ended well has
// exactly one settled hold.
func (l *load) audit(ctx context.Context, agents []api.Agent) error {
	settled, turns := map[string]int{}, map[string]int{}
	for _, a := range agents {
		for after := int64(0); ; {
			part, err := again[api.Entries](ctx, l.bus, api.ListEntries{Agent: a.ID, After: after, Limit: 250})
			if err != nil {
				return fmt.Errorf("ledger of %s: %w", a.ID, err)
			}
			for _, p := range part.Entries {
				after = p.Seq
				if p.Kind == "settle" {
					settled[p.ID]++
					turns[p.Turn]++
				}
			}
			if !part.More {
				break
			}
		}
	}
	for _, n := range settled {
		if n > 1 {
			l.sum.Doubled++
		}
	}
	for run, n := range l.runs {
		for i := range n {
			turn := run + "." + strconv.Itoa(i+1)
			if paid := turns[turn]; paid != 1 {
				l.note(func(s *summary) {
					s.Unpaid++
					s.Faults = append(s.Faults, fmt.Sprintf("turn %s was paid %d times", turn, paid))
				})
			}
		}
	}
	report, err := again[api.LedgerReport](ctx, l.bus, api.VerifyLedger{})
	if err != nil {
		return fmt.Errorf("verify the ledger: %w", err)
	}
	l.sum.LedgerOK = report.OK
	l.sum.Faults = append(l.sum.Faults, report.Faults...)
	return nil
}
