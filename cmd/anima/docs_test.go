package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/loop"
)

var update = flag.Bool("update", false, "write the generated docs")

// compare compares a generated file with the one in docs, or writes it with -update.
func compare(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("..", "..", "docs", file)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what the code says; run make gen (-file +code):\n%s", file, diff)
	}
}

func TestConfigDoc(t *testing.T) {
	t.Parallel()
	cfg, up := host.Defaults(), upDefaults()
	sections := []config.Section{{
		Title:  "Every process",
		Intro:  "`anima up` and each service alone read these.",
		Fields: config.Fields("", &cfg),
	}}
	for _, s := range services() {
		sections = append(sections, config.Section{Title: s.Name, Fields: s.Fields()})
	}
	sections = append(sections, config.Section{Title: "anima up", Fields: config.Fields("", &up)})
	var out strings.Builder
	out.WriteString(`# Settings

Written by a test from the code: ` + "`make gen`" + `.

Every setting is an environment variable. One that is set and wrong stops the program before anything is started, and the error
names each fault with what is accepted; one that is misspelt is warned of, with the nearest name. A secret may be given in a file
instead, which ` + "`…_FILE`" + ` names.

Traces are configured by OpenTelemetry's own variables: ` + "`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_PROTOCOL`, `OTEL_TRACES_SAMPLER`" + ` and
the rest; without an endpoint none are sent.

` + "`GOGC` and `GOMEMLIMIT`" + ` are Go's own. Without the first it is 200: turns of 16 sessions in one process take an eighth less processor time than with 100. Without the
second it is nine tenths of what the process's cgroup may use, if that is bounded. A process that has been idle for 15 s returns the memory that it does not need.

`)
	var tables strings.Builder
	if err := config.Markdown(&tables, sections...); err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(tables.String()) {
		// Services have no flags for these settings, so the second column is removed.
		if cells := strings.SplitN(l, "|", 4); len(cells) == 4 {
			l = "|" + cells[1] + "|" + cells[3]
		}
		out.WriteString(l)
	}
	out.WriteString(devDoc(t))
	compare(t, "config.md", out.String())
}

// TestAgentDoc checks that the list of default tools in docs/agent.md agrees with the
// code.
func TestAgentDoc(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "agent.md"))
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- tools:begin, written by make gen -->\n", "<!-- tools:end -->"
	head, rest, found := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("docs/agent.md has no %s and %s", begin, end)
	}
	var b strings.Builder
	b.WriteString("A file that names no tools grants these, and `anima init` writes them down:\n\n| tool | risk | what it does |\n| --- | --- | --- |\n")
	for _, name := range loop.DefaultTools() {
		spec, ok := catalog.Named(name)
		if !ok {
			t.Fatalf("the default has %s, which is not in the catalogue", name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, spec.Risk, spec.Does)
	}
	compare(t, "agent.md", head+begin+b.String()+end+tail)
}

// devDoc returns the table of the defaults in which anima up differs from a service that
// runs alone.
func devDoc(t *testing.T) string {
	defaults := map[string]string{}
	for _, f := range known() {
		defaults[f.Env] = f.Default
	}
	dev := devProfile()
	var b strings.Builder
	b.WriteString("\nIt runs everything on one machine, with NATS embedded: `ANIMA_NATS_URL`, `_TOKEN` and `_CREDS` are for the other commands. The data\n" +
		"folder is `anima` in `XDG_DATA_HOME` or `~/.local/share`, unless `--data` or `ANIMA_DATA` name one; a token is made in it unless\n" +
		"`ANIMA_TOKEN` is set. Flags overrule the environment, which overrules this profile:\n\n| variable | a service alone | anima up |\n| --- | --- | --- |\n")
	for _, k := range slices.Sorted(maps.Keys(dev)) {
		was, ok := defaults[k]
		if !ok || was == dev[k] {
			t.Errorf("%s is in the profile and is no setting, or has the default that it has anyway", k)
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | `%s` |\n", k, was, dev[k])
	}
	return b.String()
}

// series matches one line of a metrics page.
var series = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)

// label matches a label of a series with its quoted value.
var label = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"`)

type instrument struct {
	kind, help string
	said       bool // at least one series has a value
	labels     map[string]bool
}

// scrape parses a metrics page, without the metrics of the Go runtime and of the process.
func scrape(t *testing.T, url string) map[string]*instrument {
	t.Helper()
	all := map[string]*instrument{}
	of := func(name string) *instrument {
		if all[name] == nil {
			all[name] = &instrument{labels: map[string]bool{}}
		}
		return all[name]
	}
	scan := bufio.NewScanner(strings.NewReader(get(t, url, nil).body))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := scan.Text()
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			of(name).help = help
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			of(name).kind = kind
			continue
		}
		m := series.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); all[base] != nil && all[base].kind == "histogram" {
				name = base
			}
		}
		of(name).said = true
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" && l[1] != "service" {
				of(name).labels[l[1]] = true
			}
		}
	}
	maps.DeleteFunc(all, func(name string, _ *instrument) bool {
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
	})
	return all
}

// declared returns the names of all instruments that the source declares, so that the
// document has also those that the test below does not use.
func declared(t *testing.T) []string {
	t.Helper()
	names := map[string]bool{"anima_telemetry_spans": true, "anima_build_info": true}
	made := regexp.MustCompile(`\.(?:Int64|Float64)(?:Observable)?(?:Counter|UpDownCounter|Histogram|Gauge)\("([^"]+)"`)
	for _, root := range []string{"../../pkg", "../../services"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "oteltest") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, m := range made.FindAllSubmatch(data, -1) {
				names[strings.ReplaceAll(string(m[1]), ".", "_")] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// unit returns the unit of an instrument; "" means a count of events.
func unit(name string) string {
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	case strings.Contains(name, "token"):
		return "token"
	case strings.HasSuffix(name, "_cost_total"), strings.HasSuffix(name, "_micros_total"):
		return "micro-USD"
	}
	return ""
}

// poison publishes a message on the subject of m that no consumer can decode.
func (r *running) poison(m api.Message) {
	r.t.Helper()
	nc, err := nats.Connect(r.NATS, nats.Token(r.token))
	if err != nil {
		r.t.Fatal(err)
	}
	defer nc.Close()
	if err := errors.Join(nc.Publish(m.Subject().String(), []byte("{")), nc.Flush()); err != nil {
		r.t.Fatal(err)
	}
}

func TestMetricsDoc(t *testing.T) {
	t.Parallel()
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(collector.Close)
	m := newMachine(t)
	m.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.URL
	m.env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
	m.env["ANIMA_DRAIN"] = "10ms"

	// These commands make every instrument record a value. A run that is in progress when
	// the first anima ends is redelivered to the next one.
	u := m.up()
	m.cli("session", "send", "lucky", "slow", "--no-wait")
	m.watch("lucky-main", "loop_execute")
	u.stop()
	u = m.up()
	nova := m.born("Nova")
	if r := m.run("---\nname: Poor\n---\nBe poor.\n", "agent", "apply", "-"); r.code != exitOK {
		t.Fatal(r.err)
	}
	m.cli("session", "send", "lucky", "work")
	m.cli("session", "send", "lucky", "forbidden")
	m.cli("session", "send", "lucky", "tell "+nova.Address+" hello")
	m.cli("session", "send", "lucky", "sleep")
	m.run("", "session", "send", "poor", "who pays?")
	m.usdc("poor", "1")
	m.cli("budget", "set", "nova", "--hour", "0")
	m.run("", "session", "send", "nova", "what do you spend?")
	m.cli("model", "matrix", "reset")
	u.try(http.MethodGet, "/v1/credits/balance", "", map[string]string{"Authorization": api.NewKey()})
	u.try(http.MethodPost, "/v1/auth/verify", "{}", nil)
	u.poison(api.AgentChanged{Agent: "nova"})

	want := declared(t)
	var page map[string]*instrument
	var missing []string
	late := time.After(patience)
	for again := time.Tick(50 * time.Millisecond); ; {
		page = scrape(t, u.Ops+"/metrics")
		missing = slices.DeleteFunc(slices.Clone(want), func(name string) bool {
			for n, i := range page {
				if i.said && (n == name || strings.HasPrefix(n, name+"_")) {
					return true
				}
			}
			return false
		})
		if len(missing) == 0 {
			break
		}
		select {
		case <-again:
			continue
		case <-late:
			t.Fatalf("the page has no %v", missing)
		}
	}

	var out bytes.Buffer
	out.WriteString("# Metrics\n\nWritten by a test from a running suite: `make gen`.\n\n" +
		"`/metrics` on the ops port, in Prometheus's format. Each has the label `service`, but for those of the process as a whole\n" +
		"(`anima_build_info`, `anima_telemetry_spans_total`, the `otel_sdk_` ones, and the `go_` and `process_` ones of Prometheus's own client). None has an\n" +
		"agent, a session or a turn for a label: those are in traces and in the services' own books.\n\n" +
		"| instrument | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(page)) {
		i := page[name]
		labels := slices.Sorted(maps.Keys(i.labels))
		for j := range labels {
			labels[j] = "`" + labels[j] + "`"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", name, i.kind, unit(name), strings.Join(labels, ", "), strings.TrimSuffix(i.help, "."))
	}
	compare(t, "metrics.md", out.String())
}

// span matches a code span or a code block of a document.
var span = regexp.MustCompile("(?s)```.*?```|`[^`]+`")

// called matches a command in code, with the rest of its line. In "-n anima" and "-d
// anima" the word is the name of a namespace and of a database.
var called = regexp.MustCompile(`(?m)(^|[^\w./-]|\.bin/)anima ((?:[a-z]+|--)[^\n|;&)` + "`" + `]*)`)

// TestCommandsOfTheDocs checks that each command that a document names exists, with its
// flags.
func TestCommandsOfTheDocs(t *testing.T) {
	t.Parallel()
	model := newMachine(t).app(nil, &bytes.Buffer{}, &bytes.Buffer{}).parser(t.Context(), func(int) {}).Model
	seen := 0
	err := fs.WalkDir(os.DirFS("../.."), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		page, err := os.ReadFile(filepath.Join("../..", path))
		if err != nil {
			return err
		}
		for _, code := range span.FindAllString(string(page), -1) {
			if !strings.HasPrefix(code, "```") {
				code = strings.ReplaceAll(code, "\n", " ")
			}
			code = strings.NewReplacer("-n anima ", "", "-d anima ", "").Replace(code)
			for _, m := range called.FindAllStringSubmatch(code, -1) {
				seen++
				if fault := unknown(model.Node, strings.Fields(m[2])); fault != "" {
					t.Errorf("%s: anima %s: %s", path, m[2], fault)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Errorf("%d commands in the documents, want 100 at least: does this test still find them?", seen)
	}
}

// unknown returns which of the words is not a command or flag of the program, or "".
func unknown(n *kong.Node, words []string) string {
	for len(words) > 0 && len(n.Children) > 0 && !strings.HasPrefix(words[0], "-") {
		i := slices.IndexFunc(n.Children, func(c *kong.Node) bool { return c.Name == words[0] })
		if i < 0 {
			return "there is no command " + words[0]
		}
		n, words = n.Children[i], words[1:]
	}
	for _, w := range words {
		if w == "#" { // start of a comment
			break
		}
		name, long := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(strings.TrimRight(name, ".,:]"), "=")
		name = strings.TrimSuffix(name, "[")
		if !long || name == "" || name == "version" && n.Parent == nil {
			continue
		}
		if !slices.ContainsFunc(slices.Concat(n.AllFlags(false)...), func(f *kong.Flag) bool {
			return f.Name == name || f.Tag.Negatable != "" && "no-"+f.Name == name
		}) {
			return "there is no flag " + w
		}
	}
	return ""
}
