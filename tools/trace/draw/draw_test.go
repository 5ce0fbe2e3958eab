package draw

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/tools/trace/query"
)

func load(t *testing.T, id string) query.Trace {
	t.Helper()
	data, err := os.ReadFile("../query/testdata/trace-" + id + ".json")
	if err != nil {
		t.Fatal(err)
	}
	all, err := query.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// texts parses an SVG, which must be well-formed, and returns its text and the number of
// elements by name.
func texts(t *testing.T, svg []byte) (string, map[string]int) {
	t.Helper()
	var said strings.Builder
	count := map[string]int{}
	for dec := xml.NewDecoder(bytes.NewReader(svg)); ; {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return said.String(), count
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			count[tok.Name.Local]++
		case xml.CharData:
			said.Write(tok)
			said.WriteByte('\n')
		}
	}
}

func turn(t *testing.T) (query.Trace, map[string]query.Trace) {
	t.Helper()
	const sender = "035d9846ba8f2f60fde3f1a637f00382"
	return load(t, "c2919316119ccb61f25f82e535225b9d"), map[string]query.Trace{sender: load(t, sender)}
}

func TestPictureOfARealTurn(t *testing.T) {
	t.Parallel()
	tr, linked := turn(t)
	svg := SVG(tr, linked, Options{})
	said, count := texts(t, svg)
	for _, want := range []string{
		"invoke_agent Lucky — 7.66 ms, 25 spans", "call anima.inference.req.complete.v1", "chat anima-sim-1", "execute_tool sleep",
		"linked trace 035d9846ba8f2f60fde3f1a637f00382, began 1.18 ms earlier", "publish anima.loop.cmd.run.v1",
		"heartbeat", "inference-router", "loop", "policy", "social", "treasury", "policy: process anima.policy.req.evaluate.v1, 295 µs",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if count["title"] != 27 {
		t.Errorf("%d bars, want one for each of 25 spans and 2 of the linked trace", count["title"])
	}
	if !bytes.Contains(svg, []byte("marker-end")) || !bytes.Contains(svg, []byte("prefers-color-scheme:dark")) {
		t.Error("there is no arrow for the link, or nothing for dark pages")
	}
	if len(svg) > 30_000 {
		t.Errorf("%d bytes, want few enough for a repository", len(svg))
	}
	if !bytes.Equal(svg, SVG(tr, linked, Options{})) {
		t.Error("a second picture differs")
	}
}

func TestFewerRows(t *testing.T) {
	t.Parallel()
	tr, _ := turn(t)
	said, count := texts(t, SVG(tr, nil, Options{Rows: 12}))
	if count["title"] > 14 || !strings.Contains(said, "invoke_agent Lucky") || !strings.Contains(said, "(+") {
		t.Errorf("%d bars: want few, and how many are left out", count["title"])
	}
}

func TestOddTraces(t *testing.T) {
	t.Parallel()
	at := time.Unix(100, 0)
	bad := query.Trace{ID: "x", Spans: []query.Span{
		{ID: "1", Parent: "gone", Service: "<svc>", Name: `a & "b" <c>` + strings.Repeat("long ", 50), Start: at, End: at, Failed: true, Attributes: map[string]string{"error.type": "policy_denied"}},
		{ID: "2", Parent: "1", Service: "loop", Name: "SELECT", Start: at, End: at.Add(-time.Second), Links: []query.Link{{TraceID: "none", SpanID: "9"}}},
		{ID: "3", Parent: "1", Service: "loop", Name: "SELECT", Start: at, End: at.Add(time.Hour)},
	}}
	said, _ := texts(t, SVG(bad, nil, Options{}))
	for _, want := range []string{"<svc>", "…", "SELECT ×2", "failed: policy_denied"} {
		if !strings.Contains(said, want) {
			t.Errorf("the picture does not say %q:\n%s", want, said)
		}
	}
	texts(t, SVG(query.Trace{ID: "empty"}, nil, Options{}))
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 µs", 999 * time.Nanosecond: "0 µs", 85 * time.Microsecond: "85 µs", 7656 * time.Microsecond: "7.66 ms",
		20 * time.Millisecond: "20 ms", 1500 * time.Millisecond: "1.5 s", 100 * time.Second: "100 s",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%d) = %q, want %q", d, got, want)
		}
	}
}
