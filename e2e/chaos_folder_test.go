package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats/storetest"
	"github.com/anima-run/anima/pkg/sqldb"
)

// chaosMoney is the deposit of each agent.
const chaosMoney = 1000 * api.Dollar

// chaosMessages is the maximum number of messages that an agent gets from one process:
// the oracle reads pages of 1000 turns.
const chaosMessages = 12

// chaosFolder is a data folder and the processes that ran in it, one after the other.
type chaosFolder struct {
	t      testing.TB
	number int
	bin    string
	dir    string
	ages   []time.Duration
	rng    *rand.Rand // source of the random decisions about kills

	agents []api.Agent
	lives  []chaosLife

	mu      sync.Mutex
	sent    int
	pending []chaosMessage // messages whose answer was lost; they are sent again
	runs    map[string]api.Accepted
}

type chaosMessage struct{ id, agent, text string }

// chaosLife is a process from its start to its end.
type chaosLife struct {
	started, ready, killed time.Time
	cmd                    *exec.Cmd
	drained                chan struct{} // closed when the output was read to its end; nil before the process is ready
	log                    *os.File
	w                      *crashWorld
	close                  func()
}

func newChaosFolder(t testing.TB, bin string, number int, ages []time.Duration, rng *rand.Rand) *chaosFolder {
	t.Helper()
	return &chaosFolder{t: t, number: number, bin: bin, dir: t.TempDir(), ages: ages, rng: rng, runs: map[string]api.Accepted{}}
}

// run starts and kills the process once for each age, then judges the folder. Judging
// uses all processors, so run calls started after the last measured start of this folder,
// and started returns when no folder has more of them.
func (f *chaosFolder) run(ctx context.Context, killed func(int, time.Duration), started func()) (r chaosResult) {
	fault := func(err error) bool {
		if err != nil {
			r.faults = append(r.faults, err.Error())
		}
		return err != nil
	}
	for _, age := range f.ages {
		l, err := f.start(ctx)
		if fault(err) {
			return r
		}
		err = f.live(ctx, l, age)
		l.kill()
		if r.kills > 0 { // the first starts of all folders are concurrent and follow no kill
			r.starts = append(r.starts, l.ready.Sub(l.started))
		}
		if fault(err) {
			return r
		}
		form := storetest.Saved
		if f.rng.IntN(3) == 0 {
			form = storetest.Never
		}
		if fault(storetest.Age(filepath.Join(f.dir, "nats"), form)) {
			return r
		}
		r.kills++
		killed(f.number, l.killed.Sub(l.started))
	}
	l, err := f.start(ctx)
	if fault(err) {
		return r
	}
	defer l.kill()
	r.starts = append(r.starts, l.ready.Sub(l.started))
	started()
	f.judge(ctx, l, &r)
	return r
}

// start runs anima up in the folder and waits until it is ready.
func (f *chaosFolder) start(ctx context.Context) (*chaosLife, error) {
	script, err := filepath.Abs("testdata/crash.json")
	if err != nil {
		return nil, err
	}
	l := &chaosLife{}
	if l.log, err = os.OpenFile(filepath.Join(f.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	l.cmd = exec.CommandContext(context.WithoutCancel(ctx), f.bin, "up", "--empty", "--data", f.dir)
	l.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir, "ANIMA_HTTP_ADDR=127.0.0.1:0", "ANIMA_OPS_ADDR=127.0.0.1:0", "ANIMA_NATS_LISTEN=127.0.0.1:0",
		"ANIMA_TOKEN=" + token, "ANIMA_LOG_FORMAT=text", "ANIMA_TREASURY_FAUCET=true", "ANIMA_TREASURY_KEYSTORE_SCRYPT_N=2",
		"ANIMA_INFERENCE_ROUTER_SIMULATED=true", "ANIMA_INFERENCE_ROUTER_SCRIPT=" + script,
		"ANIMA_LOOP_MAIL_SENDER_RUNS=100000", "ANIMA_LOOP_MAIL_AGENT_RUNS=100000", "ANIMA_LOOP_MAIL_SENDER_COST=0", "ANIMA_LOOP_MAIL_AGENT_COST=0",
	}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.cmd.Stderr = l.log
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	from, err := l.log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	l.started = time.Now()
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(time.Minute, func() { _ = l.cmd.Process.Kill() })
	scan := bufio.NewScanner(out)
	for l.ready.IsZero() && scan.Scan() {
		if line := scan.Text(); strings.HasPrefix(line, "anima ") && strings.HasSuffix(line, " is up") {
			l.ready = time.Now()
		}
	}
	late.Stop()
	if l.ready.IsZero() {
		l.kill()
		return nil, fmt.Errorf("not ready after %s:\n%s", time.Since(l.started).Round(time.Millisecond), tail(filepath.Join(f.dir, "log")))
	}
	if took := l.ready.Sub(l.started); took >= promptly {
		data, err := os.ReadFile(l.log.Name())
		if err != nil {
			return nil, err
		}
		f.t.Logf("folder %d: ready after %s:\n%s", f.number, took.Round(time.Millisecond), strings.ReplaceAll(string(data[from:]), "level=", "")) // make chaos filters log lines by that word
	}
	l.drained = make(chan struct{})
	go func() { // ends with the process
		defer close(l.drained)
		for scan.Scan() {
		}
	}()
	if err := f.connect(l); err != nil {
		l.kill()
		return nil, err
	}
	f.lives = append(f.lives, *l)
	return l, nil
}

func (f *chaosFolder) connect(l *chaosLife) error {
	at := endpoint(f.t, f.dir)
	conn, err := bus.Dial(bus.DialOptions{URL: at.NATS, Token: token, Name: "chaos"})
	if err != nil {
		return err
	}
	b, err := bus.New(conn, bus.Options{Service: "e2e"})
	if err != nil {
		conn.Close()
		return err
	}
	nc, err := nats.Connect(at.NATS, nats.Token(token), nats.NoReconnect())
	if err != nil {
		b.Close()
		conn.Close()
		return err
	}
	l.close = func() { nc.Close(); b.Close(); conn.Close() }
	l.w = &crashWorld{t: f.t, world: &world{bus: b, data: f.dir, http: map[string]string{}}}
	l.w.js, err = jetstream.New(nc)
	return err
}

// kill ends the process with SIGKILL.
func (l *chaosLife) kill() {
	l.killed = time.Now()
	_ = l.cmd.Process.Kill() // it may have ended
	_ = l.cmd.Wait()         // the error is that of the kill
	if l.drained != nil {
		<-l.drained
	}
	_ = l.log.Close()
	if l.close != nil {
		l.close()
	}
}

// live sends messages until the process has reached its age. A message is in progress
// then.
func (f *chaosFolder) live(ctx context.Context, l *chaosLife, age time.Duration) error {
	if len(f.agents) == 0 {
		if err := f.bear(ctx, l); err != nil {
			return err
		}
	}
	end := l.started.Add(age)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	var senders sync.WaitGroup
	for i := range f.agents {
		rng := rand.New(rand.NewPCG(f.rng.Uint64(), uint64(i)))
		senders.Go(func() { f.send(ctx, l, i, age, rng) })
	}
	senders.Wait()
	<-ctx.Done()
	f.lives[len(f.lives)-1].killed = time.Now()
	return nil
}

// bear creates three agents. It is called once, before the first kill.
func (f *chaosFolder) bear(ctx context.Context, l *chaosLife) error {
	for i := range 3 {
		a, err := asked[api.Agent](ctx, l.w.world, api.ApplyAgent{Source: fmt.Sprintf("---\nname: Chaos%dx%d\n---\nBe useful.\n", f.number, i)})
		if err == nil {
			_, err = asked[api.Posted](ctx, l.w.world, api.Deposit{ID: "birth-" + a.ID, Agent: a.ID, Amount: chaosMoney, Source: "faucet"})
		}
		if err != nil {
			return fmt.Errorf("agent %d: %w", i, err)
		}
		f.agents = append(f.agents, a)
	}
	return nil
}

// send sends messages to an agent, and repeats those whose answer was lost. The pauses
// are longer in a longer life, except in its last seconds.
func (f *chaosFolder) send(ctx context.Context, l *chaosLife, i int, age time.Duration, rng *rand.Rand) {
	texts := []string{"short command", "one command", "hello"}
	if i == 0 {
		texts = append(texts, "crash tools "+f.agents[1].Address+" "+f.agents[2].Address)
	}
	deadline, _ := ctx.Deadline()
	last := deadline.Add(-time.Duration(rng.Int64N(int64(1500 * time.Millisecond))))
	pause := max(2*time.Second, age/chaosMessages)
	for {
		f.say(ctx, l, f.next(f.agents[i].ID, texts[rng.IntN(len(texts))]))
		wait := time.Duration(rng.Int64N(int64(pause))) + pause/2
		if left := time.Until(last); left > 0 {
			wait = min(wait, left)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// next returns the next message for an agent: one whose answer was lost, or a new one.
func (f *chaosFolder) next(agent, text string) chaosMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, m := range f.pending {
		if m.agent == agent {
			f.pending = append(f.pending[:i], f.pending[i+1:]...)
			return m
		}
	}
	f.sent++
	return chaosMessage{fmt.Sprintf("chaos-%d-%d", f.number, f.sent), agent, text}
}

// say sends a message until it is accepted. If it is not, the next process gets it.
func (f *chaosFolder) say(ctx context.Context, l *chaosLife, m chaosMessage) {
	acc, err := asked[api.Accepted](ctx, l.w.world, api.SendMessage{Agent: m.agent, ID: m.id, Content: m.text})
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.runs[acc.Run] = acc
	case api.ReasonOf(err) != api.ReasonLimit: // a full queue is a final answer
		f.pending = append(f.pending, m)
	}
}

// judge waits until no work is in progress, uses each session once more, and has the
// oracle check the whole folder.
func (f *chaosFolder) judge(ctx context.Context, l *chaosLife, r *chaosResult) {
	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for len(f.pending) > 0 && soon.Err() == nil {
		m := f.pending[0]
		f.pending = f.pending[1:]
		f.say(soon, l, m)
	}
	if len(f.pending) > 0 {
		r.faults = append(r.faults, fmt.Sprintf("messages that were never accepted: %+v", f.pending))
	}
	for _, a := range f.agents {
		f.use(ctx, l, a, r)
	}
	r.accepted = len(f.runs)
	why := f.rest(ctx, l)
	if why == "" {
		// An alarm remains set after a message has ended the sleep. Only runs set alarms,
		// and none is in progress.
		why = f.silent(ctx)
	}
	if why == "" {
		why = f.rest(ctx, l)
	}
	if why != "" {
		r.wrong++
		r.faults = append(r.faults, "no rest: "+why)
	}
	o := &oracle{w: l.w, ctx: ctx}
	for _, a := range f.agents {
		state := o.look(a, chaosMoney)
		o.judge(state)
		r.turns += len(state.turns)
	}
	r.wrong += len(o.faults)
	r.faults = append(r.faults, o.faults...)
	for run, acc := range f.runs {
		st, err := asked[api.RunState](ctx, l.w.world, api.GetRun{Run: run, Session: acc.Session})
		if err != nil || st.Status != api.RunEnded || !st.Success {
			r.lost++
			r.faults = append(r.faults, fmt.Sprintf("the accepted message of run %s came to %+v, %v", run, st, err))
		}
	}
	report, err := asked[api.LedgerReport](ctx, l.w.world, api.VerifyLedger{})
	if err != nil || !report.OK || report.ActiveHolds != 0 {
		r.faults = append(r.faults, fmt.Sprintf("ledger: %+v, %v", report, err))
	} else {
		r.ledgers++
	}
	if err := f.measure(ctx, l, r); err != nil {
		r.faults = append(r.faults, "times: "+err.Error())
	}
}

// rest waits until no work is in progress. Its timeout of 5 min allows for reading the
// streams of an hour.
func (f *chaosFolder) rest(ctx context.Context, l *chaosLife) (why string) {
	until(ctx, 5*time.Minute, func() bool {
		why = l.w.busy(ctx, map[string]int{}, f.agents)
		return why == ""
	})
	return why
}

// silent waits until heartbeat has no pending alarm and has announced each wake.
func (f *chaosFolder) silent(ctx context.Context) (why string) {
	db, err := sqldb.Open(ctx, "sqlite:"+filepath.Join(f.dir, "heartbeat", "heartbeat.db"), sqldb.Options{MaxConns: 1})
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	until(ctx, time.Minute, func() bool {
		var alarms, unsaid int
		err := db.QueryRowContext(ctx, "select (select count(*) from alarms where done = 0), (select count(*) from outbox)").Scan(&alarms, &unsaid)
		switch {
		case err != nil:
			why = "the alarms cannot be read: " + err.Error()
		case alarms+unsaid > 0:
			why = fmt.Sprintf("%d alarms are to come and %d wakes are not announced", alarms, unsaid)
		default:
			why = ""
		}
		return why == ""
	})
	return why
}

// use sends a message and waits for the end of its run.
func (f *chaosFolder) use(ctx context.Context, l *chaosLife, a api.Agent, r *chaosResult) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	acc, err := asked[api.Accepted](ctx, l.w.world, api.SendMessage{Agent: a.ID, ID: "last-" + a.ID, Content: "hello"})
	if err == nil {
		f.runs[acc.Run] = acc
		over := errors.New("over")
		err = l.w.bus.Events(ctx, 0, func(s bus.Stored) error {
			var e api.LoopEnd
			if err := api.Decode(s.Data, &e); err != nil || e.Run != acc.Run {
				return err
			}
			return over
		}, api.LoopEnd{Session: acc.Session}.Subject())
		if errors.Is(err, over) {
			return
		}
	}
	r.unusable++
	r.faults = append(r.faults, fmt.Sprintf("session %s cannot be used: %v", a.Session, err))
}

// measure finds the runs that were in progress when a process was killed, and the time
// from the next start to their next stored step.
func (f *chaosFolder) measure(ctx context.Context, l *chaosLife, r *chaosResult) error {
	st, err := l.w.js.Stream(ctx, "LOOP_EVT")
	if err != nil {
		return err
	}
	for _, a := range f.agents {
		var steps []chaosStep
		for seq := uint64(1); ; {
			m, err := st.GetMsg(ctx, seq, jetstream.WithGetMsgSubject("anima.loop.evt.*.v1."+a.Session))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return err
			}
			seq = m.Sequence + 1
			var e struct {
				Run string `json:"runId"`
			}
			if err := api.Decode(m.Data, &e); err != nil {
				return err
			}
			ends, err := bus.Expand(bus.Stored{Subject: m.Subject, Sequence: m.Sequence, Data: m.Data}, api.LoopEnd{}.Subject())
			if err != nil {
				return err
			}
			steps = append(steps, chaosStep{e.Run, len(ends) > 0, m.Time})
		}
		f.resumed(steps, r)
	}
	return nil
}

// chaosStep is a stored step or event of a run.
type chaosStep struct {
	run string
	end bool
	at  time.Time
}

func (f *chaosFolder) resumed(steps []chaosStep, r *chaosResult) {
	for i, before := range f.lives[:len(f.lives)-1] {
		underWay := ""
		over := map[string]bool{}
		for _, s := range steps {
			switch next := f.lives[i+1].started; {
			case s.at.Before(before.killed) && s.end:
				underWay, over[s.run] = "", true
			case over[s.run]:
			case s.at.Before(before.killed):
				underWay = s.run
			case s.at.After(next) && underWay != "" && s.run == underWay:
				r.cuts++
				r.resumed = append(r.resumed, s.at.Sub(next))
				underWay = ""
			}
		}
	}
}
