package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

func TestUpKeepsAgentsAndMoney(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	u := m.up()
	if u.Data != m.data() || !strings.HasPrefix(u.NATS, "nats://127.0.0.1:") || !strings.Contains(u.Model, "simulated") || !strings.Contains(u.Writes, "interval") {
		t.Errorf("up says %+v", u.upView)
	}
	for _, name := range []string{"token", "installation", endpointFile} {
		if info, err := os.Stat(filepath.Join(u.Data, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want one that its owner alone can read", name, info.Mode(), err)
		}
	}
	if info, err := os.Stat(u.Data); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data folder: %v, %v, want 0700", info.Mode(), err)
	}
	for _, page := range []string{u.Ops + "/readyz", u.Ops + "/healthz", u.Ops + "/metrics"} {
		if res := get(t, page, nil); res.status != http.StatusOK {
			t.Errorf("%s: %d", page, res.status)
		}
	}
	first := asked[agentView](m, "agent", "get", "lucky")
	if first.Balance == nil || first.Balance.Available != 5*api.Dollar {
		t.Fatalf("the first agent has %+v, want $5", first.Balance)
	}
	installed := readFile(t, filepath.Join(u.Data, "installation"))
	m.born("Nova")
	m.cli("session", "send", "nova", "hello")
	balance := balances(m)
	u.stop()

	if _, err := os.Stat(filepath.Join(u.Data, endpointFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s after the end: %v, want it gone", endpointFile, err)
	}
	m.fails(exitUnavailable, "", []string{"agent", "list"}, "no anima is running", "anima up")

	again := m.up()
	if again.token != u.token {
		t.Error("the token has changed")
	}
	if got := readFile(t, filepath.Join(u.Data, "installation")); got != installed {
		t.Errorf("the installation is %q now, want %q", got, installed)
	}
	if got := asked[agentView](m, "agent", "get", "lucky"); got.Address != first.Address || got.Balance.Available != 5*api.Dollar {
		t.Errorf("the first agent is %+v now, was %+v", got, first)
	}
	if diff := cmp.Diff(balance, balances(m)); diff != "" {
		t.Errorf("balances (-before +after):\n%s", diff)
	}
	if got := asked[api.Turns](m, "turn", "list", "nova"); len(got.Turns) != 1 {
		t.Errorf("%d turns, want the 1 of before", len(got.Turns))
	}
}

// TestUpTakesUpWhatWasInHand checks that a run which the end of anima cut off is resumed
// once by the next start.
func TestUpTakesUpWhatWasInHand(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_DRAIN"] = "10ms"
	u := m.up()
	acc := asked[api.Accepted](m, "session", "send", "lucky", "slow", "--no-wait")
	m.watch("lucky-main", "loop_execute")
	u.stop()
	m.up()
	end := asked[api.LoopEnd](m, "session", "send", "lucky", "slow", "--id", "after") // queued behind the run in progress
	if !end.Success || end.Run == acc.Run {
		t.Errorf("the next run ends as %+v", end)
	}
	ends := 0
	for _, e := range lines[cliEvent](t, m.cli("session", "events", "lucky-main", "-o", "json")) {
		if e.Event == "loop_end" && strings.Contains(string(e.Data), acc.Run) {
			ends++
		}
	}
	if ends != 1 {
		t.Errorf("%d ends of the run that was cut off, want 1", ends)
	}
}

func balances(m *machine) []api.Balance {
	all := asked[[]api.Balance](m, "ledger", "balance")
	for i := range all {
		all[i].At = 0 // time of the request
	}
	return all
}

// TestStaleEndpoint checks the case of an endpoint file that a killed process left
// behind.
func TestStaleEndpoint(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if err := os.MkdirAll(m.data(), 0o700); err != nil {
		t.Fatal(err)
	}
	free := listen(t)
	addr := free.Addr().String()
	_ = free.Close() // the port is closed now
	if err := os.WriteFile(filepath.Join(m.data(), endpointFile), []byte(`{"nats":"nats://`+addr+`","token":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.fails(exitUnavailable, "", []string{"agent", "list"}, "no anima is running", m.data(), "anima up")
	m.fails(exitUnavailable, "", []string{"agent", "list", "--nats", "nats://" + addr}, addr, "ANIMA_NATS_URL")

	u := m.up()
	m.cli("agent", "list")
	delete(m.env, "ANIMA_NATS_TOKEN")
	said := m.fails(exitUnavailable, "", []string{"agent", "list", "--nats", u.NATS}, "credentials")
	if strings.Contains(said, u.token) {
		t.Error("the token is in the error")
	}
	m.env["ANIMA_NATS_TOKEN"] = u.token
	m.cli("agent", "list", "--nats", u.NATS)
}

func TestUpOptions(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := t.TempDir()
	m.env["ANIMA_TOKEN"] = "a-token-of-my-own"
	m.env["ANIMA_OPS_ADDR"] = ""
	m.env["ANIMA_LOOP_SLOT"] = "4"
	m.env["ANIMA_NATS_URL"] = "nats://127.0.0.1:1"
	u := m.up("--empty", "--data", dir, "--sync", "always")
	if u.Data != dir || u.Ops != "" || !strings.Contains(u.Writes, "always") || u.Token != "the one of ANIMA_TOKEN" || u.token != "a-token-of-my-own" {
		t.Errorf("up says %+v, and the token is %q", u.upView, u.token)
	}
	for _, want := range []string{"ANIMA_LOOP_SLOT is not a setting: did you mean ANIMA_LOOP_SLOTS?", "ANIMA_NATS_URL is for the other commands"} {
		if !strings.Contains(u.log(), want) {
			t.Errorf("up says %q, want %q", u.log(), want)
		}
	}
	if strings.Contains(u.log(), "ANIMA_NATS_LISTEN") {
		t.Errorf("up warns of a setting that it has:\n%s", u.log())
	}
	delete(m.env, "ANIMA_NATS_URL")
	if got := asked[api.Agents](m, "agent", "list", "--data", dir); len(got.Agents) != 0 {
		t.Errorf("%d agents, want none", len(got.Agents))
	}
}

// TestWithoutNATSPort checks that a command does not connect anywhere if anima up has no
// port for NATS: the default address of the client may be that of another program, which
// would receive the token.
func TestWithoutNATSPort(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_NATS_LISTEN"] = ""
	m.up()
	m.fails(exitConflict, "", []string{"agent", "list"}, "no port for NATS", "ANIMA_NATS_LISTEN")
	if r := m.run("", "doctor"); r.code != exitFailed || !strings.Contains(r.out, "no port for NATS") || strings.Contains(r.out, "none is running") {
		t.Errorf("doctor: %+v, want the cause", r)
	}
}

// TestBanner checks the text form of the banner, as on a terminal.
func TestBanner(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out := &stopAt{text: "run one complete example", stop: cancel}
	dir := t.TempDir()
	if code := run(ctx, []string{"up", "--data", dir}, m.app(nil, out, &bytes.Buffer{})); code != exitOK {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{"is up", "http://127.0.0.1:", "nats://127.0.0.1:", "/readyz", dir, "power cut", "simulated", "anima agent list --data " + dir + " "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the banner is\n%s\nwant it to say %q", out.String(), want)
		}
	}
}

// TestDeletedAgentStaysDeleted checks that a start does not restore the first agent, and
// that the banner names an agent that exists.
func TestDeletedAgentStaysDeleted(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	banner := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out := &stopAt{text: "run one complete example", stop: cancel}
		if code := run(ctx, []string{"up"}, m.app(nil, out, &bytes.Buffer{})); code != exitOK || !strings.Contains(out.String(), want) {
			t.Errorf("exit %d, and the banner is\n%s\nwant it to say %q", code, out, want)
		}
	}
	u := m.up()
	m.cli("agent", "delete", "lucky", "--force")
	u.stop()
	u = m.up()
	if got := asked[api.Agents](m, "agent", "list"); len(got.Agents) != 0 {
		t.Errorf("agents after a restart: %+v, want none", got.Agents)
	}
	u.stop()
	banner("anima chat NAME")
	u = m.up()
	m.born("Nova")
	u.stop()
	banner("anima chat nova")
}

// TestEndpointNotWritten checks that up fails if the other commands cannot find it.
func TestEndpointNotWritten(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if err := os.MkdirAll(filepath.Join(m.data(), endpointFile), 0o700); err != nil {
		t.Fatal(err)
	}
	m.fails(exitUsage, "", []string{"up"}, "the data folder cannot be used", endpointFile)
}

// stopAt is a buffer that calls stop when a text has been written to it.
type stopAt struct {
	got  bytes.Buffer // not embedded: io.WriteString would use its WriteString
	text string
	stop func()
}

func (s *stopAt) String() string { return s.got.String() }

func (s *stopAt) Write(p []byte) (int, error) {
	n, err := s.got.Write(p)
	if strings.Contains(s.String(), s.text) {
		s.stop()
	}
	return n, err
}

func TestBusyPorts(t *testing.T) {
	t.Parallel()
	for _, variable := range []string{"ANIMA_HTTP_ADDR", "ANIMA_OPS_ADDR", "ANIMA_NATS_LISTEN"} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			addr := listen(t).Addr().String()
			m.env[variable] = addr
			m.fails(exitFailed, "", []string{"up"}, addr, "in use", "another program listens there", variable, "docs/config.md")
			if _, err := os.Stat(filepath.Join(m.data(), endpointFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v, want none", endpointFile, err)
			}
		})
	}
}

// TestWrongSetting starts anima up with settings in which a service finds the fault, not
// the check of all settings: the last line names what to do next, and not the log of a
// service that has answered, because none has.
func TestWrongSetting(t *testing.T) {
	t.Parallel()
	for variable, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": ":::bad",
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.env[variable] = value
			r := m.run("", "up", "--port", "0")
			lines := strings.Split(strings.TrimSpace(r.err), "\n")
			if last := lines[len(lines)-1]; r.code != exitFailed || !strings.Contains(last, "docs/config.md") {
				t.Errorf("exit %d and %q at the end, want exit %d and a line that names docs/config.md", r.code, last, exitFailed)
			}
		})
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // it may be closed already
	return l
}

func TestDataFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.fails(exitUsage, "", []string{"up", "--data", filepath.Join(file, "below")}, file, "--data")
	m.fails(exitUsage, "", []string{"up", "--data", file}, file, "--data")

	short := t.TempDir()
	if err := os.WriteFile(filepath.Join(short, "token"), []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.fails(exitUsage, "", []string{"up", "--data", short}, "fewer than 16", "remove the file")

	open := t.TempDir()
	if err := os.WriteFile(filepath.Join(open, "token"), []byte("a token of many characters\n"), 0o644); err != nil { //nolint:gosec // readable by others on purpose
		t.Fatal(err)
	}
	m.fails(exitUsage, "", []string{"up", "--data", open}, filepath.Join(open, "token"), "chmod 600")

	u := m.up()
	m.fails(exitFailed, "", []string{"up"}, m.data(), "in use by process", "name another folder")
	if got := asked[api.Agents](m, "agent", "list"); len(got.Agents) != 1 {
		t.Errorf("%d agents after a second up was refused, want 1", len(got.Agents))
	}
	u.stop()

	delete(m.env, "HOME")
	m.fails(exitUsage, "", []string{"agent", "list"}, "--data")
}

func TestSettings(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for k, v := range map[string]string{
		"ANIMA_LOOP_SLOTS": "abc", "ANIMA_LOG": "loud", "ANIMA_SYNC": "sometimes", "ANIMA_DRAIN": "30", "ANIMA_NATS_REPLICAS": "3",
		"ANIMA_TREASURY_KEYSTORE_SCRYPT_N": "3", "ANIMA_TOKEN_FILE": "/does/not/exist", "ANIMA_DATABASE_URL": "postgres://me:hunter2@x:port/y",
	} {
		m.env[k] = v
	}
	said := m.fails(
		exitUsage, "", []string{"up"}, `ANIMA_LOOP_SLOTS="abc": want a whole number`, `ANIMA_LOG="loud": want one of debug`,
		`ANIMA_SYNC="sometimes": want one of always, interval`, `ANIMA_DRAIN="30": want a duration`, "ANIMA_NATS_REPLICAS is 3",
		"ANIMA_TREASURY_KEYSTORE_SCRYPT_N is 3", "ANIMA_TOKEN_FILE", "ANIMA_DATABASE_URL", "nothing was started", "docs/config.md",
	)
	if strings.Contains(said, "hunter2") {
		t.Errorf("the password of the database is in %q", said)
	}
	if _, err := os.Stat(m.data()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data folder: %v, want it not made", err)
	}
}

// TestSettingsOfAddresses starts anima up with addresses and a script that cannot be used:
// nothing is started, and anima init warns of them.
func TestSettingsOfAddresses(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	delete(m.env, "ANIMA_INFERENCE_ROUTER_SIMULATED")
	for variable, value := range map[string]string{
		"ANIMA_INFERENCE_ROUTER_SCRIPT": filepath.Join(t.TempDir(), "missing.json"),
		"ANTHROPIC_BASE_URL":            "api.anthropic.com", "ANIMA_TREASURY_NETWORK": "mainnet", "ANIMA_TREASURY_RPC_URL": "localhost:8545",
		"ANIMA_TREASURY_SIGNER_URL": "localhost:8550", "OLLAMA_HOST": "ftp://127.0.0.1", "OPENAI_BASE_URL": "127.0.0.1:11434/v1",
	} {
		was, set := m.env[variable]
		m.env[variable] = value
		m.fails(exitUsage, "", []string{"up"}, variable, "nothing was started", "docs/config.md")
		file := filepath.Join(t.TempDir(), "AGENT.md")
		if r := m.run("", "init", file, "--name", "Nova", "--genesis", "Be."); r.code != exitOK || !strings.Contains(r.err, "anima up would not start: ") || !strings.Contains(r.err, variable) {
			t.Errorf("init with a wrong %s: exit %d, %q, want a warning that names it", variable, r.code, r.err)
		}
		if delete(m.env, variable); set {
			m.env[variable] = was
		}
	}
	if _, err := os.Stat(m.data()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data folder: %v, want it not made", err)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
