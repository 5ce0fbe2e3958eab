package main

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
)

func TestNamed(t *testing.T) {
	t.Parallel()
	a := &app{Name: ".bin/anima"}
	for text, want := range map[string]string{
		"anima agent list shows them; anima up, or (anima session send)": ".bin/anima agent list shows them; .bin/anima up, or (.bin/anima session send)",
		"Usage: anima <command> [flags]":                                 "Usage: .bin/anima <command> [flags]",
		"anima --help":                                                   ".bin/anima --help",
		"no anima is running; start one with anima up":                   "no anima is running; start one with .bin/anima up",
		".bin/anima up and /anima up":                                    ".bin/anima up and /anima up",
	} {
		if got := a.named(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	a = &app{Name: "/opt/my tools/anima"}
	if got, want := a.named("anima up"), "'/opt/my tools/anima' up"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range []string{"", "anima"} {
		if got := (&app{Name: name}).named("anima up"); got != "anima up" {
			t.Errorf("named %q: %q", name, got)
		}
	}
}

// TestHelpAndVersion checks the output without arguments, with help and with --version.
func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	as := func(name string, args ...string) (int, string) {
		var out bytes.Buffer
		a := m.app(strings.NewReader(""), &out, &out)
		a.Name = name
		code := run(t.Context(), args, a)
		return code, out.String()
	}
	for want, args := range map[string][]string{
		"anima chat lucky":                  nil,
		"anima --help lists all":            nil,
		"Usage: anima <command>":            {"help"},
		"Usage: anima session send <agent>": {"help", "session", "send"},
		"anima " + host.Version():           {"--version"},
		"anima " + host.Version() + "\n":    {"version"},
	} {
		if code, out := as("anima", args...); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("anima %q: exit %d\n%s\nwant %q", args, code, out, want)
		}
	}
	if code, out := as("anima", "help", "nothing"); code != exitUsage || !strings.Contains(out, "nothing") {
		t.Errorf("help of what is not there: exit %d\n%s", code, out)
	}
	for _, args := range [][]string{nil, {"help"}, {"session", "send", "--help"}, {"agent", "get", "lucky"}, {"nothing"}} {
		if _, out := as(".bin/anima", args...); !strings.Contains(out, ".bin/anima ") || strings.Contains(out, " anima up") {
			t.Errorf(".bin/anima %q says\n%s", args, out)
		}
	}
}

// TestOutputNamesTheProgram checks that commands in the output of other commands begin with
// the name that the program was started with.
func TestOutputNamesTheProgram(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{Name: ".bin/anima", Out: &out, Err: &out}
	v := a.viewer(&out)
	d := &doctor{app: a, show: newProgress(a)}
	for want, write := range map[string]func(){
		".bin/anima goal approve g-1, or .bin/anima goal reject g-1": func() {
			a.goalText(&out, api.Goal{ID: "g-1", Plans: []api.GoalPlan{{Version: 1, Status: api.PlanWaiting}}})
		},
		".bin/anima budget get lucky":   func() { a.runText(&out, api.RunState{Status: api.RunEnded, Next: "anima budget get lucky shows it"}) },
		".bin/anima agent fund lucky 5": func() { a.explain(&out, api.Explanation{Next: "fund it: anima agent fund lucky 5"}, time.Now()) },
		".bin/anima turn output r.1 0":  func() { v.result(api.ToolEnd{Turn: "r.1", ToolName: "exec", Result: strings.Repeat("x\n", 20)}) },
		".bin/anima model list":         func() { d.fault("models", "anima model list shows why", "none can be used") },
		"store one with .bin/anima init": func() {
			out.WriteString(a.modelInUse(api.Models{Models: []api.Model{{Provider: simulated, Usable: true}}}))
		},
	} {
		out.Reset()
		write()
		if got := out.String(); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}

	m := newMachine(t)
	m.up()
	for want, args := range map[string][]string{
		".bin/anima session send lucky": {"session", "create", "lucky"},
		".bin/anima tool list nova":     {"agent", "apply", "-"},
	} {
		out.Reset()
		a := m.app(strings.NewReader("---\nname: Nova\ntools: [git_push]\n---\nBe useful.\n"), &out, &out)
		a.Name = ".bin/anima"
		if code := run(t.Context(), args, a); code != exitOK || !strings.Contains(out.String(), want) {
			t.Errorf("%q: exit %d and\n%s\nwant %q in it", args, code, out.String(), want)
		}
	}
}

func TestPort(t *testing.T) {
	t.Parallel()
	for port, want := range map[int]string{9000: "127.0.0.1:9000 127.0.0.1:9001 127.0.0.1:9002", 0: "127.0.0.1:0 127.0.0.1:0 127.0.0.1:0"} {
		c := upCmd{Port: &port}
		if err := c.ports(); err != nil || c.HTTP+" "+c.Ops+" "+c.Listen != want {
			t.Errorf("--port %d: %v, %+v", port, err, c)
		}
	}
	for _, port := range []int{-1, 65534} {
		if err := (&upCmd{Port: &port}).ports(); api.CodeOf(err) != api.Invalid {
			t.Errorf("--port %d: %v", port, err)
		}
	}
	m := newMachine(t)
	for _, k := range []string{"ANIMA_HTTP_ADDR", "ANIMA_OPS_ADDR", "ANIMA_NATS_LISTEN"} {
		m.env[k] = "192.0.2.1:1" // not an address of this machine
	}
	u := m.up("--port", "0")
	for _, url := range []string{u.HTTP, u.Ops, u.NATS} {
		_, addr, _ := strings.Cut(url, "://")
		if ap, err := netip.ParseAddrPort(addr); err != nil || ap.Port() == 0 || !ap.Addr().IsLoopback() {
			t.Errorf("%s: %v", url, err)
		}
	}
	addr := netip.MustParseAddrPort(strings.TrimPrefix(u.HTTP, "http://"))
	other := newMachine(t)
	r := other.run("", "up", "--port", strconv.Itoa(int(addr.Port())))
	if r.code != exitFailed || !strings.Contains(r.err, addr.String()) {
		t.Errorf("on a busy port: exit %d, %s", r.code, r.err)
	}
}

// TestTimesHaveAZone checks that times in tables have their zone.
func TestTimesHaveAZone(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.cli("session", "send", "lucky", "work")
	for _, args := range [][]string{
		{"session", "list"}, {"turn", "list"}, {"ledger", "entries"}, {"policy", "decisions"}, {"agent", "explain", "lucky"},
	} {
		out := m.cli(args...)
		if !strings.Contains(out, "Z  ") && !strings.Contains(out, "Z\n") && !strings.Contains(out, "Z (") {
			t.Errorf("%q has times without a zone:\n%s", args, out)
		}
	}
}
