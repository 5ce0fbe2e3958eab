package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

const aKey = "sk-a-key-of-a-test"

// modelService starts an OpenAI-compatible service that requires a key.
func modelService(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+aKey {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"tiny"},{"id":"small"}]}`) // the client reports a short response
	})
	mux.HandleFunc("/html/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	mux.HandleFunc("/moved/models", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/v1/models", http.StatusPermanentRedirect)
	})
	mux.HandleFunc("/broken/models", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadGateway) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestProbe(t *testing.T) {
	t.Parallel()
	base := modelService(t)
	free := listen(t)
	closed := "http://" + free.Addr().String()
	_ = free.Close() // the port is closed now
	for url, c := range map[string]struct {
		key  string
		code api.Code
		says string
	}{
		base + "/v1":     {aKey, "", ""},
		base:             {aKey, api.Invalid, "404"},
		base + "/html":   {aKey, api.Invalid, "not with a list of models"},
		base + "/broken": {aKey, api.Unavailable, "502"},
		base + "/moved":  {aKey, api.Invalid, "308"},
		closed:           {aKey, api.Unavailable, "cannot be reached: connect: connection refused"},
	} {
		n, err := (provider{URL: url, Key: c.key}).probe(t.Context())
		if api.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && n != 2 {
			t.Errorf("%s: %d models, %v; want %s %q", url, n, err, c.code, c.says)
		}
		if err != nil && strings.Contains(err.Error(), aKey) {
			t.Errorf("%s: the key is in the error", url)
		}
	}
	for key, says := range map[string]string{"": "give a key: the service requires one", "wrong": "check the key"} {
		_, err := (provider{URL: base + "/v1", Key: key}).probe(t.Context())
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.Denied || e.Next != says {
			t.Errorf("with key %q: %v", key, err)
		}
	}
	for _, text := range []string{"ftp://x", "x", "http://", "http://me:secret@x/v1", "http://x/v1?key=1", "://"} {
		if url, err := providerURL(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %q, %v, want a refusal", text, url, err)
		}
	}
	for text, want := range map[string]string{"": "", " simulated ": "", "openai": openaiURL, "http://x/v1/": "http://x/v1"} {
		if got, err := providerURL(text); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestInitStoresTheModel checks that up uses the provider that init stored, that a
// provider of the environment takes precedence, and that the key is never printed.
func TestInitStoresTheModel(t *testing.T) {
	t.Parallel()
	base := modelService(t)
	m := newMachine(t)
	delete(m.env, "ANIMA_INFERENCE_ROUTER_SIMULATED")
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	write(t, key, aKey+"\n")
	args := []string{"init", filepath.Join(dir, "AGENT.md"), "--name", "Nova", "--genesis", "Be.", "--model-url"}
	m.fails(exitUsage, "", append(args, base+"/v2", "--model-key-file", key), "404", "/v1")
	m.fails(exitDenied, "", append(args, base+"/v1"), "401", "requires one")
	m.fails(exitUsage, "", append(args[:len(args)-1:len(args)-1], "--model-key-file", key), "requires --model-url")
	empty := filepath.Join(dir, "empty")
	write(t, empty, "\n")
	m.fails(exitUsage, "", append(args, base+"/v1", "--model-key-file", empty, "--no-model-check"), empty+" is empty")
	for _, amount := range []string{"0", "five", "-1"} {
		m.fails(exitUsage, "", append(args, base+"/v1", "--model-key-file", key, "--fund="+amount), "amount")
	}
	stored := filepath.Join(m.data(), providerFile)
	for _, file := range []string{stored, args[1]} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s was written", file)
		}
	}
	v := asked[initView](m, append(args, base+"/v1", "--model-key-file", key)...)
	if v.Model == nil || v.Model.URL != base+"/v1" || v.Model.Models != 2 || !v.Model.Key || v.Model.File != stored {
		t.Errorf("init says %+v", v.Model)
	}
	if info, err := os.Stat(stored); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want 0600", info, err)
	}
	if out := m.cli(append(args, base+"/v1", "--model-key-file", key)...); !strings.Contains(out, "model service: "+base+"/v1, stored with its key") || strings.Contains(out, aKey) {
		t.Errorf("init says\n%s", out)
	}
	second := filepath.Join(dir, "SECOND.md")
	if out := m.cli("init", second, "--name", "Second", "--genesis", "Be."); !strings.Contains(out, "model service: "+base+"/v1") || strings.Contains(out, "the simulated model is used") {
		t.Errorf("init of another agent says\n%s\nwant the stored service", out)
	}
	u := m.up()
	if !strings.Contains(u.Model, "openai") || strings.Contains(u.log(), aKey) {
		t.Errorf("up uses %q\n%s", u.Model, u.log())
	}
	u.stop()

	if err := os.Chmod(stored, 0o644); err != nil {
		t.Fatal(err)
	}
	m.fails(exitUsage, "", []string{"up"}, "can be read by others", "chmod 600")
	if got := unusedProvider(lookupIn(m.env), m.data()); len(got) != 0 {
		t.Errorf("without a provider in the environment: got the warning %q, want none", got)
	}
	m.env["OPENAI_BASE_URL"] = base + "/other"
	if got := unusedProvider(lookupIn(m.env), m.data()); len(got) != 1 || !strings.Contains(got[0], "OPENAI_BASE_URL") {
		t.Errorf("with another provider in the environment: got the warning %q, want one that names the variable", got)
	}
	if l, err := storedProvider(lookupIn(m.env), m.data()); err != nil {
		t.Errorf("the environment names a provider: %v", err)
	} else if key, ok := l("OPENAI_API_KEY"); ok {
		t.Errorf("the stored key %.3s… goes to the environment's address", key)
	}
	delete(m.env, "OPENAI_BASE_URL")
	m.cli(append(args, simulated)...)
	if _, err := os.Stat(stored); err == nil {
		t.Error("the stored key is still there")
	}
}

// TestStoredModelBesideEmptyVariables checks that variables which are set and empty change
// neither the stored address nor the stored key: the key must not go to another address.
func TestStoredModelBesideEmptyVariables(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	want := provider{URL: "http://127.0.0.1:1/v1", Key: aKey}
	if err := storeProvider(m.data(), want); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"OPENAI_BASE_URL", "OPENAI_API_KEY", "OLLAMA_HOST"} {
		m.env[name] = ""
		stored, err := storedProvider(lookupIn(m.env), m.data())
		if err != nil {
			t.Fatal(err)
		}
		all := upLookup(lookupIn(m.env), nil, stored)
		url, _ := all("OPENAI_BASE_URL")
		key, _ := all("OPENAI_API_KEY")
		if url != want.URL || key != want.Key {
			t.Errorf("with an empty %s: got the address %q and the key %q, want those that are stored", name, url, key)
		}
		delete(m.env, name)
	}
}

func TestInitAsksForTheModel(t *testing.T) {
	t.Parallel()
	base := modelService(t)
	m := newMachine(t)
	m.up()
	file := filepath.Join(t.TempDir(), "AGENT.md")
	p := onTerminal(t, m, "init", file, "--name", "Nova", "--genesis", "Be.", "--creator", "", "--message", "", "--autonomy")
	p.answer("model: ", "me\r")
	p.sees("not the address of a model service")
	p.answer("model: ", base+"/v1\r")
	p.answer("for none): ", "wrong\r")
	p.sees("401")
	p.answer("model: ", base+"/v1\r")
	p.answer("for none): ", aKey+"\r")
	p.sees("has 2 models")
	p.answer("Write it? [Y/n] ", "\r")
	p.answer("test credits? [Y/n] ", "\r")
	if code := p.code(); code != exitOK || strings.Contains(p.text(), aKey) || !strings.Contains(p.out.String(), "nova is created and has $5.00") {
		t.Errorf("exit %d\n%s%s", code, p.text(), p.out.String())
	}
	if got, err := readProvider(m.data()); err != nil || got.Key != aKey || got.URL != base+"/v1" {
		t.Errorf("stored is %q, %v", got.URL, err)
	}
	if v := asked[initView](m, "init", file, "--name", "Nova", "--genesis", "Be.", "--fund", "5"); v.Balance == nil || v.Balance.Available != 5*api.Dollar {
		t.Errorf("funded again: %+v, want five dollars once", v.Balance)
	}
}
