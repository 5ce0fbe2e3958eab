package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/anima-run/anima/tools/trace/rules"
)

const (
	turnTrace = "c2919316119ccb61f25f82e535225b9d"
	turnID    = "01a1fd49-c4e6-736c-8300-1359c19a514f.1"
)

// jaeger starts a server with recorded answers, which returns no trace for the first
// requests.
func jaeger(t *testing.T, late int32) string {
	t.Helper()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "trace-" + filepath.Base(r.URL.Path) + ".json"
		switch r.URL.Path {
		case "/api/v3/services":
			name = "services.json"
		case "/api/v3/traces":
			name = "trace-" + turnTrace + ".json"
		}
		data, err := os.ReadFile(filepath.Join("query", "testdata", name))
		if err != nil || asked.Add(1) <= late {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"httpCode":404,"message":"No traces found"}}`))
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// tell runs a command with the URL of Jaeger in the environment.
func tell(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out, func(k string) (string, bool) { return url, k == "ANIMA_JAEGER_URL" })
	return out.String(), err
}

func TestCheck(t *testing.T) {
	t.Parallel()
	url := jaeger(t, 0)
	for _, args := range [][]string{{"-turn", turnID}, {"-trace", turnTrace}, {"-all", "-since", "10m"}} {
		out, err := tell(t, url, append([]string{"check"}, args...)...)
		if err != nil || strings.Contains(out, "FAIL") || !strings.Contains(out, "PASS  one-root") {
			t.Errorf("check %v: %v\n%s", args, err, out)
		}
	}
	out, err := tell(t, url, "check", "-turn", turnID, "-services", "loop,console")
	if !errors.Is(err, errBroken) || !strings.Contains(out, "FAIL 1") || !strings.Contains(out, "no span of console") {
		t.Errorf("a service that is not there: %v\n%s", err, out)
	}
	out, err = tell(t, url, "check", "-turn", turnID, "-o", "json")
	var r rules.Report
	if err := errors.Join(err, json.Unmarshal([]byte(out), &r)); err != nil || r.Turn != turnID || !r.OK() {
		t.Errorf("as JSON: %v\n%s", err, out)
	}
	if out, err := tell(t, url, "check", "-turn", "unknown"); err == nil || errors.Is(err, errBroken) {
		t.Errorf("an unknown turn: %v\n%s, want to be told", err, out)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	out, err := tell(t, jaeger(t, 2), "wait", "-turn", turnID)
	if err != nil || out != turnTrace+"\n" {
		t.Errorf("wait: %q, %v, want the trace's id", out, err)
	}
	if _, err := tell(t, jaeger(t, 1<<30), "wait", "-turn", turnID, "-timeout", "1ms"); err == nil {
		t.Error("wait ended well for a trace that was never exported")
	}
}

func TestWrongUseIsSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no command"},
		{[]string{"check"}, "no trace is selected"},
		{[]string{"check", "-all", "-turn", "x"}, "no trace is selected"},
		{[]string{"check", "-turn", "x", "y"}, "unexpected"},
		{[]string{"check", "-turn", "x", "-o", "xml"}, "json"},
		{[]string{"check", "-trace", "x"}, "32 hex digits"},
		{[]string{"draw", "-turn", "x"}, "no command"},
		{[]string{"wait"}, "no trace is selected"},
	} {
		if _, err := tell(t, "", c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("trace %q: %v, want it to say %q", c.args, err, c.want)
		}
	}
}
