package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// background is a command that runs concurrently with the test.
type background struct {
	t    *testing.T
	out  *record
	err  *record
	more chan struct{}
	over chan struct{} // closed when the command has ended
	exit int
	stop context.CancelFunc
}

// start runs a command in the background; its output can be waited for.
func (m *machine) start(t *testing.T, stdin string, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	b := &background{t: t, more: make(chan struct{}, 1), over: make(chan struct{}), stop: cancel}
	b.out, b.err = &record{also: poke(b.more)}, &record{also: poke(b.more)}
	go func() {
		defer close(b.over)
		b.exit = run(ctx, args, m.app(strings.NewReader(stdin), b.out, b.err))
	}()
	t.Cleanup(func() { cancel(); <-b.over })
	return b
}

// code waits for the end of the command and returns its exit code.
func (b *background) code() int {
	<-b.over
	return b.exit
}

// says waits until the command has written the text to one of its outputs.
func (b *background) says(want string) {
	b.t.Helper()
	said := func() bool { return strings.Contains(b.out.text()+b.err.text(), want) }
	for !said() {
		select {
		case <-b.more:
		case <-b.over: // the timeout of patience ends it
			if !said() {
				b.t.Fatalf("exit %d before it said %q:\n%s%s", b.exit, want, b.out.text(), b.err.text())
			}
		}
	}
}

// poke is a writer that signals each write.
type poke chan struct{}

func (p poke) Write(data []byte) (int, error) {
	select {
	case p <- struct{}{}:
	default:
	}
	return len(data), nil
}

// TestSendSurvivesRestart checks that a message, and the command that waits for its end,
// continue over a restart of the server, which then listens on other ports.
func TestSendSurvivesRestart(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_DRAIN"] = "10ms"
	u := m.up()
	text, asJSON, watch := m.start(t, "", "session", "send", "lucky", "slow"), m.start(t, "", "session", "send", "lucky", "slow", "--session", "new", "-o", "json"), m.start(t, "", "session", "watch", "lucky")
	text.says("→ check_credits")
	asJSON.says("tool_end")
	u.stop()
	text.says("the server cannot be reached")
	m.up()
	if code := text.code(); code != exitOK {
		t.Fatalf("exit %d\n%s%s", code, text.out.text(), text.err.text())
	}
	text.says("reconnected")
	for _, want := range []string{"First the money.", "→ check_credits", "← check_credits ok", "That took its time.", "2 turns"} {
		if n := strings.Count(text.out.text(), want); n != 1 {
			t.Errorf("it says %q %d times, want once:\n%s", want, n, text.out.text())
		}
	}
	watch.says("That took its time.")
	watch.stop()
	if code := watch.code(); code != exitOK {
		t.Errorf("watch: exit %d\n%s", code, watch.err.text())
	}
	if code := asJSON.code(); code != exitOK {
		t.Fatalf("exit %d\n%s%s", code, asJSON.out.text(), asJSON.err.text())
	}
	var before cliEvent
	all := lines[cliEvent](t, asJSON.out.text())
	for _, e := range all {
		if e.Event == "stream_delta" || e.Event == "thinking" {
			continue
		}
		if e.Seq <= before.Seq && (!before.More || e.Seq != before.Seq) {
			t.Errorf("event %+v comes after %+v", e, before)
		}
		before = e
	}
	if last := all[len(all)-1]; last.Event != "loop_end" {
		t.Errorf("the last event is %+v", last)
	}
}

// TestWatchSurvivesRestart checks that a watched output continues over a restart of the
// server.
func TestWatchSurvivesRestart(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	u := m.up()
	w := m.start(t, "", "status", "--watch")
	w.says("lucky")
	m.cli("session", "send", "lucky", "hello")
	events := m.start(t, "", "session", "events", "lucky-main", "--watch", "-o", "json")
	events.says("loop_end")
	u.stop()
	w.says("trying again")
	events.says("the server cannot be reached")
	again := m.up() // at other ports
	w.says(again.NATS)
	events.says("reconnected")
	end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello again")
	events.says(`"loop_end","data":{"runId":"` + end.Run)
	for _, b := range []*background{w, events} {
		b.stop()
		if code := b.code(); code != exitOK {
			t.Errorf("exit %d\n%s", code, b.err.text())
		}
	}
	var ends []string
	for _, e := range lines[cliEvent](t, events.out.text()) {
		if e.Event == "loop_end" {
			ends = append(ends, string(e.Data))
		}
	}
	if len(ends) != 2 || !strings.Contains(ends[1], end.Run) {
		t.Errorf("the ends are %q, want those of two runs, once each", ends)
	}
}

// TestSendServerStaysAway checks that the wait for a server is bounded.
func TestSendServerStaysAway(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_DRAIN"] = "10ms"
	u := m.up()
	b := m.start(t, "", "session", "send", "lucky", "slow", "--timeout", "20s")
	b.says("→ check_credits")
	u.stop()
	if code := b.code(); code != exitUnavailable {
		t.Fatalf("exit %d\n%s%s", code, b.out.text(), b.err.text())
	}
	b.says("could not be reached again within 20s")
	b.says("continues when the server is back")
}

// TestEndAsTheConnectionBreaks checks that a use that has completed is not repeated when
// the connection breaks at the same time.
func TestEndAsTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	u := m.up()
	b, done, err := m.app(nil, nil, nil).bus()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broken, err := useConnection(ctx, b, func(ctx context.Context, _ *bus.Bus) error {
		u.stop()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errBroken) {
			t.Errorf("the connection ends with %v", context.Cause(ctx))
		}
		return errRunEnded
	})
	if broken || !errors.Is(err, errRunEnded) {
		t.Errorf("broken %t, %v, want %v", broken, err, errRunEnded)
	}
}

// TestEndWithoutEvents checks that the end of a run is found also if its events were
// lost.
func TestEndWithoutEvents(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello")
	var out bytes.Buffer
	w := m.app(nil, &out, apptest.Output(t)).watcher(&out)
	w.session, w.run, w.after = end.Session, end.Run, 1<<40
	if err := w.follow(t.Context()); err != nil || w.end == nil || w.end.Response != end.Response || !w.end.Success {
		t.Errorf("%v, the end is %+v, want %+v", err, w.end, end)
	}
	if !strings.Contains(out.String(), "I read: hello") {
		t.Errorf("it shows %q", &out)
	}
}

func TestSessionWatch(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.fails(exitNotFound, "", []string{"session", "watch", "ghost"}, "no session and no agent ghost", "anima session list")
	m.cli("session", "send", "lucky", "hello")
	b := m.start(t, "", "session", "watch", "Lucky")
	b.says("I read: hello") // the last run
	m.cli("session", "send", "lucky", "work")
	b.says("Counted: 3")
	b.says("3 turns")
	b.stop()
	if code := b.code(); code != exitOK {
		t.Errorf("exit %d\n%s", code, b.err.text())
	}
	for _, want := range []string{"> hello", "> work", "First the file.", "→ write_file", "← exec ok: 3", "Counted: 3", "Z  message of lucky, run "} {
		if !strings.Contains(b.out.text(), want) {
			t.Errorf("it shows\n%s\nwant %q", b.out.text(), want)
		}
	}
	if n := strings.Count(b.out.text(), "Counted: 3"); n != 1 {
		t.Errorf("the answer is shown %d times:\n%s", n, b.out.text())
	}
	all := m.start(t, "", "session", "watch", "lucky-main", "--all", "-o", "json")
	all.says(`"response":"Counted: 3`)
	if first := lines[cliEvent](t, all.out.text())[0]; first.Event != "loop_start" || first.Seq == 0 {
		t.Errorf("the first event is %+v", first)
	}
}

func TestChatPiped(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	r := m.run("hello\n\n/session\n/new\nwork\n/history 1\n/help\n/quit\nnot sent\n", "chat", "lucky")
	for _, want := range []string{"> hello\nI read: hello\n", "session lucky-main: 1 turns", "> work\n", "First the file.\n", "  → write_file", "Counted: 3", "/quit            exit"} {
		if r.code != exitOK || r.err != "" || !strings.Contains(r.out, want) {
			t.Errorf("exit %d, it says\n%s%s\nwant %q", r.code, r.out, r.err, want)
		}
	}
	if strings.Contains(r.out, "not sent") || strings.Contains(r.out, "\x1b") || strings.Count(r.out, "I read: hello") != 1 {
		t.Errorf("it says\n%s", r.out)
	}
	if got := asked[api.Sessions](m, "session", "list", "lucky"); len(got.Sessions) != 2 {
		t.Errorf("%d sessions, want 2", len(got.Sessions))
	}
	r = m.run("/help\n/session\nhello\n/history 1\n", "chat", "lucky", "-o", "json")
	if all := lines[cliEvent](t, r.out); r.code != exitOK || len(all) < 3 || all[len(all)-1].Event != "loop_end" || !strings.Contains(r.err, "/quit") {
		t.Errorf("with -o json: exit %d, %q, %q, want events only on standard output", r.code, r.out, r.err)
	}
	r = m.run("hello\n/nope\n", "chat", "lucky", "--session", "new")
	if r.code != exitUsage || !strings.Contains(r.err, "there is no command /nope") || !strings.Contains(r.out, "I read: hello") {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	r = m.run("caf\xe9\nhello\n", "chat", "lucky")
	if r.code != exitUsage || !strings.Contains(r.err, "not UTF-8") || strings.Contains(r.out, "caf") || !strings.Contains(r.out, "> hello") {
		t.Errorf("a line that is not UTF-8: %+v, want it refused and the next one sent", r)
	}
	m.fails(exitNotFound, "hello\n", []string{"chat", "ghost"}, "no such agent")
	m.fails(exitNotFound, "hello\n", []string{"chat", "lucky", "--session", "ghost"}, "no such session")
}

func TestChatOnATerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.cli("session", "send", "lucky", "good morning")
	p := sitting(t, m, true, "chat", "lucky")
	p.sees("I read: good morning") // the history
	p.answer("lucky> ", "two \\\r")
	p.answer("… ", "lines\r")
	p.sees("I read: two \r\nlines")
	p.answer("lucky> ", "slow\r")
	p.sees("check_credits ok")
	p.answer("", "/session\r\x03") // the first line is kept for the next prompt
	p.sees("cancelling the run")
	p.sees("(interrupted)")
	p.sees("session lucky-main: ")
	p.answer("lucky> ", "\x03")
	if code := p.code(); code != exitOK {
		t.Errorf("exit %d\n%s", code, p.text())
	}

	p = sitting(t, m, true, "chat", "lucky", "--history", "0")
	p.answer("lucky> ", "slow\r")
	p.sees("check_credits ok")
	p.answer("", "\x03\x03")
	if code := p.code(); code != exitOK || strings.Contains(p.text(), "did not end within") {
		t.Errorf("left: exit %d\n%s", code, p.text())
	}
	until(t, func() []api.Turn { return asked[api.Turns](m, "turn", "list", "lucky", "--limit", "1").Turns }, func(last []api.Turn) bool {
		run := asked[api.RunState](m, "run", "get", strings.Split(last[0].ID, ".")[0], "--session", "lucky-main")
		return run.Status == api.RunEnded && !run.Success
	})
}

// TestUpShowsTurns checks that anima up prints the turns of agents on a terminal.
func TestUpShowsTurns(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		m := newMachine(t)
		args := []string{"up"}
		if quiet {
			args = append(args, "--quiet")
		}
		p := sitting(t, m, true, args...)
		p.sees("run one complete example")
		m.cli("session", "send", "lucky", "work")
		if !quiet {
			p.sees(`UTC  lucky  turn 1 by creator "work"  write_file  $`)
			p.sees("UTC  lucky  turn 2  exec  $")
			p.sees("UTC  lucky  run ended  3 turns  $")
		}
		p.stop()
		if code := p.code(); code != exitOK || quiet && strings.Contains(p.text(), "write_file") {
			t.Errorf("quiet %t: exit %d\n%s", quiet, code, p.text())
		}
	}
}
