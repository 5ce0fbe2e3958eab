package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// sampling is a configuration of tail_sampling.
type sampling struct {
	Processors struct {
		TailSampling struct {
			Policies []struct {
				Type            string
				StringAttribute struct {
					Key                  string
					Values               []string
					EnabledRegexMatching bool `json:"enabled_regex_matching"`
				} `json:"string_attribute"`
			}
		} `json:"tail_sampling"`
	}
}

func readSampling(t *testing.T, path string) (s sampling) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// keeps reports whether a policy keeps a trace with a span that has the attribute.
func (s sampling) keeps(t *testing.T, key, value string) bool {
	t.Helper()
	for _, p := range s.Processors.TailSampling.Policies {
		a := p.StringAttribute
		if p.Type != "string_attribute" || a.Key != key {
			continue
		}
		if !a.EnabledRegexMatching && slices.Contains(a.Values, value) {
			return true
		}
		for _, v := range a.Values {
			if a.EnabledRegexMatching && regexp.MustCompile(v).MatchString(value) {
				return true
			}
		}
	}
	return false
}

// TestSampling checks that the collectors, and the Jaeger of tools/jaeger, keep the traces
// that docs/tracing.md names, and not those of requests that only read.
func TestSampling(t *testing.T) {
	t.Parallel()
	subjects, err := os.ReadFile("../../docs/subjects.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]sampling{
		"otel-collector": readSampling(t, root+"/components/otel-collector/config.yaml"),
		"tools/jaeger":   readSampling(t, "../jaeger/sampling.yaml"),
	} {
		want := func(keep bool, key, value string) {
			if strings.HasPrefix(value, "anima.") && !strings.Contains(string(subjects), value) {
				t.Errorf("%s is no subject", value)
			}
			if s.keeps(t, key, value) != keep {
				t.Errorf("%s: the trace of a span with %s=%s is kept: %t, want %t", name, key, value, !keep, keep)
			}
		}
		for _, request := range []string{
			"hold", "settle", "settle_many", "release", "deposit", "transfer", "top_up", "return_credits", "set_limits", "pay", "fund_usdc", "resolve_freeze",
		} {
			want(true, "rpc.method", "anima.treasury.req."+request+".v1")
		}
		want(true, "http.route", "/v1/credits/transfer")
		want(true, "http.route", "/v1/credits/transfers")
		want(true, "automaton.turn.id", "01a1fd64-6d11-7413-a4fd-2dd3fef657b7.1")
		want(true, "automaton.payment.id", "tool/x")
		want(true, "messaging.destination.template", "anima.loop.cmd.run.v1")
		want(true, "messaging.destination.template", "anima.heartbeat.evt.wake_requested.v1")
		want(false, "rpc.method", "anima.treasury.req.get_balance.v1")
		want(false, "rpc.method", "anima.treasury.req.list_holds.v1")
		want(false, "http.route", "/v1/credits/balance")
	}
}
