package mcp

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/safehttp"
)

// TestDocumentedServers tests that the examples of docs/tools-skills-mcp.md are valid
// servers and arguments.
func TestDocumentedServers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../../docs/tools-skills-mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, e := range regexp.MustCompile("(?s)\n```json (file|tool)=(\\S+)\n(.*?)\n```\n").FindAllSubmatch(page, -1) {
		kind, name, text := string(e[1]), string(e[2]), e[3]
		seen[kind]++
		if kind == "tool" {
			if tool := New(Config{}).Installer(); tool.Name != name || tool.Check(text) != nil {
				t.Errorf("%s: %v", name, tool.Check(text))
			}
			continue
		}
		if _, err := read(strings.TrimSuffix(name, ".json"), text, safehttp.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if seen["file"] != 2 || seen["tool"] != 1 {
		t.Errorf("examples %v, want a program, an address and an installation", seen)
	}
}

// TestDocumentedInstallation tests that the installation shown in
// docs/tools-skills-mcp.md works as written, with a server of this test in place of npx.
func TestDocumentedInstallation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../../docs/tools-skills-mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)\n```json tool=install_mcp_server\n(.*?)\n```\n").FindSubmatch(page)
	if example == nil {
		t.Fatal("the page has no installation")
	}
	w := newWorld(t, nil)
	w.agent.Tools = []string{"mcp_files_*"}
	install := w.m.Installer()
	args := string(example[1])
	if err := install.Check([]byte(args)); err != nil {
		t.Fatal(err)
	}
	var words struct{ Package string }
	if err := json.Unmarshal(example[1], &words); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(words.Package, " ")
	program := linked(t, w.agent.Workspace) + " " + serverArg
	args = strings.Replace(args, words.Package, program+" "+rest, 1)
	got, err := w.call(t.Context(), install, args)
	if err != nil || !strings.Contains(got, "connected the MCP server files") || !strings.Contains(got, "mcp_files_echo") {
		t.Fatalf("got %q, %v", got, err)
	}
	status, err := w.m.Status(w.agent)
	if err != nil || len(status) != 1 || status[0].State != api.ServerConnected || len(status[0].Tools) == 0 {
		t.Fatalf("got %+v, %v, want one server that is connected", status, err)
	}
	if want := program + " " + rest + " ."; status[0].Program != want {
		t.Errorf("it was started as %q, want %q", status[0].Program, want)
	}
	if said := defused("Secure MCP Filesystem: reads files", maxDescription); said != "Secure MCP Filesystem: reads files" {
		t.Errorf("a description became %q", said)
	}
}

// TestStatus tests that Status contains no credential, reports why a server failed and
// connects to no server.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.stdio("good", "usual")
	w.stdio("sad", "crash")
	states := func() map[string]api.MCPServer {
		all, err := w.m.Status(w.agent)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]api.MCPServer{}
		for _, s := range all {
			out[s.Name] = s
		}
		return out
	}
	if got := states(); got["good"].State != api.ServerIdle || got["sad"].State != api.ServerIdle || w.links() != 0 {
		t.Errorf("before: got %+v, %d connections, want idle servers", got, w.links())
	}
	w.m.Connect(t.Context(), w.agent)
	got := states()
	if got["good"].State != api.ServerConnected || !slices.Contains(got["good"].Tools, "mcp_good_echo") {
		t.Errorf("got %+v, want it connected, with its tools", got["good"])
	}
	if s := got["sad"]; s.State != api.ServerFailed || s.Error == "" || s.RetryAt == 0 {
		t.Errorf("got %+v, want why it failed and when it is tried again", s)
	}
	if strings.Contains(fmt.Sprintf("%+v", got), secret) {
		t.Errorf("a credential is shown: %+v", got)
	}
	offers, err := w.m.Offers(t.Context(), w.agent)
	if err != nil || len(offers) == 0 || offers[0].Server != "good" {
		t.Errorf("offers: got %+v, %v", offers, err)
	}
	if err := w.m.Remove(w.agent.ID); err != nil || len(states()) != 0 {
		t.Errorf("removed: got %+v, %v, want none", states(), err)
	}
}
