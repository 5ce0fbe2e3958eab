package limits_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/limits"
)

const now int64 = 1_800_000_000_000_000

func us(d time.Duration) int64 { return d.Microseconds() }

func window(w api.Window, category string, amount api.Micros, payments int64) api.WindowLimit {
	return api.WindowLimit{Window: w, Category: category, Amount: &amount, Payments: &payments}
}

func policy(l api.Limits) limits.Policy { return limits.Resolve(&l) }

// TestCheck has one payment for each limit, at the limit and beyond it.
func TestCheck(t *testing.T) {
	t.Parallel()
	at := func(ago time.Duration, category string, amount api.Micros) limits.Meter {
		return limits.Meter{}.Add(now-us(ago), limits.ClassOf(category, ""), amount)
	}
	tally := func(category string, amount api.Micros) limits.Tally {
		return limits.Tally{}.Add(limits.ClassOf(category, ""), amount)
	}
	transfer := func(amount api.Micros) limits.Payment {
		return limits.Payment{Agent: "lucky", Amount: amount, Category: "transfer", Payee: "agent:bob"}
	}
	thought := func(amount api.Micros) limits.Payment {
		return limits.Payment{Agent: "lucky", Amount: amount, Category: "inference"}
	}
	paid := limits.Payment{
		Agent: "lucky", Amount: 5, Category: "x402", Payee: "0xAb", Domain: "api.example.com", Asset: "usdc", Chain: "eip155:8453", Facilitator: "x402.org",
	}
	const outside = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	none := int64(api.Unlimited)
	for name, tt := range map[string]struct {
		limits api.Limits
		pay    limits.Payment
		sums   limits.Sums
		reason string
		wait   time.Duration
	}{
		"no limits":                         {pay: thought(1 << 50)},
		"call, equal":                       {limits: api.Limits{Windows: []api.WindowLimit{window("call", "", 5, none)}}, pay: thought(5)},
		"call":                              {limits: api.Limits{Windows: []api.WindowLimit{window("call", "", 5, none)}}, pay: thought(6), reason: "call_limit"},
		"call of another category":          {limits: api.Limits{Windows: []api.WindowLimit{window("call", "x402", 5, none)}}, pay: thought(6)},
		"turn, equal":                       {limits: api.Limits{Windows: []api.WindowLimit{window("turn", "inference", 9, none)}}, pay: thought(6), sums: limits.Sums{Turn: tally("inference", 3)}},
		"turn":                              {limits: api.Limits{Windows: []api.WindowLimit{window("turn", "inference", 9, none)}}, pay: thought(7), sums: limits.Sums{Turn: tally("inference", 3)}, reason: "turn_limit"},
		"turn, spent on something else":     {limits: api.Limits{Windows: []api.WindowLimit{window("turn", "inference", 9, none)}}, pay: thought(7), sums: limits.Sums{Turn: tally("other", 3)}},
		"turn, payments":                    {limits: api.Limits{Windows: []api.WindowLimit{window("turn", "transfer", -1, 1)}}, pay: transfer(1), sums: limits.Sums{Turn: tally("transfer", 3)}, reason: "velocity_limit"},
		"session":                           {limits: api.Limits{Windows: []api.WindowLimit{window("session", "", 9, none)}}, pay: thought(7), sums: limits.Sums{Session: tally("other", 3)}, reason: "session_limit"},
		"hour, a µs before it frees":        {limits: api.Limits{Windows: []api.WindowLimit{window("hour", "", 9, none)}}, pay: thought(7), sums: limits.Sums{Rolling: at(time.Hour-time.Microsecond, "other", 3)}, reason: "hour_limit", wait: time.Millisecond},
		"hour, freed":                       {limits: api.Limits{Windows: []api.WindowLimit{window("hour", "", 9, none)}}, pay: thought(7), sums: limits.Sums{Rolling: at(time.Hour, "other", 3)}},
		"hour, more than it ever frees":     {limits: api.Limits{Windows: []api.WindowLimit{window("hour", "", 9, none)}}, pay: thought(10), sums: limits.Sums{Rolling: at(time.Minute, "other", 3)}, reason: "hour_limit"},
		"day":                               {limits: api.Limits{Windows: []api.WindowLimit{window("day", "inference", 9, none)}}, pay: thought(7), sums: limits.Sums{Rolling: at(20*time.Hour, "inference", 3)}, reason: "day_limit", wait: 4 * time.Hour},
		"hour, payments":                    {limits: api.Limits{Windows: []api.WindowLimit{window("hour", "", -1, 1)}}, pay: thought(1), sums: limits.Sums{Rolling: at(time.Minute, "other", 3)}, reason: "velocity_limit", wait: 59 * time.Minute},
		"nothing may be spent":              {limits: api.Limits{Windows: []api.WindowLimit{window("hour", "", 0, none)}}, pay: thought(1), reason: "hour_limit"},
		"peers":                             {limits: api.Limits{Windows: []api.WindowLimit{window("day", "peer", 5, none)}}, pay: limits.Payment{Amount: 6, Category: "inference", By: api.Peer}, reason: "peer_limit"},
		"strangers":                         {limits: api.Limits{Windows: []api.WindowLimit{window("day", "peer", 5, none)}}, pay: limits.Payment{Amount: 6, Category: "inference", By: api.External}, reason: "peer_limit"},
		"the creator is no peer":            {limits: api.Limits{Windows: []api.WindowLimit{window("day", "peer", 5, none)}}, pay: limits.Payment{Amount: 6, Category: "inference", By: api.Creator}},
		"peers count for the category":      {limits: api.Limits{Windows: []api.WindowLimit{window("day", "inference", 5, none)}}, pay: limits.Payment{Amount: 6, Category: "inference", By: api.Peer}, reason: "day_limit"},
		"reserve, equal":                    {limits: api.Limits{Reserve: new(api.Micros(10))}, pay: transfer(5), sums: limits.Sums{Available: 15}},
		"reserve":                           {limits: api.Limits{Reserve: new(api.Micros(10))}, pay: transfer(6), sums: limits.Sums{Available: 15}, reason: "reserve"},
		"reserve, thinking":                 {limits: api.Limits{Reserve: new(api.Micros(10))}, pay: thought(15), sums: limits.Sums{Available: 15}},
		"cooldown":                          {limits: api.Limits{CooldownMS: new(int64(60_000))}, pay: transfer(1), sums: limits.Sums{Rolling: at(20*time.Second, "transfer", 3)}, reason: "cooldown", wait: 40 * time.Second},
		"cooldown, passed":                  {limits: api.Limits{CooldownMS: new(int64(60_000))}, pay: transfer(1), sums: limits.Sums{Rolling: at(time.Minute, "transfer", 3)}},
		"new payee":                         {limits: api.Limits{NewPayee: new(api.Micros(4))}, pay: transfer(5), reason: "new_payee_limit"},
		"new payee, equal":                  {limits: api.Limits{NewPayee: new(api.Micros(5))}, pay: transfer(5)},
		"new payee, held":                   {limits: api.Limits{NewPayee: new(api.Micros(4))}, pay: transfer(5), sums: limits.Sums{Payee: tally("transfer", 1)}, reason: "new_payee_limit"},
		"known payee":                       {limits: api.Limits{NewPayee: new(api.Micros(4))}, pay: transfer(5), sums: limits.Sums{Payee: limits.Tally{Settled: 1}}},
		"payee":                             {limits: api.Limits{Payees: []string{"agent:ada"}}, pay: transfer(1), reason: "payee_not_allowed"},
		"payee on the list":                 {limits: api.Limits{Payees: []string{"agent:ada", "agent:bob"}}, pay: transfer(1)},
		"address in other letters":          {limits: api.Limits{Payees: []string{"0xaB"}}, pay: paid},
		"address of an account":             {limits: api.Limits{Payees: []string{outside}}, pay: limits.Payment{Amount: 1, Category: "transfer", Payee: "agent:" + strings.ToLower(outside)}},
		"name without its prefix":           {limits: api.Limits{Payees: []string{"bob"}}, pay: transfer(1), reason: "payee_not_allowed"},
		"any payee":                         {limits: api.Limits{Payees: []string{"*"}}, pay: transfer(1)},
		"the list is not for thinking":      {limits: api.Limits{Payees: []string{"agent:ada"}}, pay: thought(1)},
		"domain":                            {limits: api.Limits{Domains: []string{"example.com"}}, pay: paid, reason: "domain_not_allowed"},
		"domain, suffix":                    {limits: api.Limits{Domains: []string{".example.com"}}, pay: paid},
		"domain, exact":                     {limits: api.Limits{Domains: []string{"API.example.com"}}, pay: paid},
		"domain, not a part of a label":     {limits: api.Limits{Domains: []string{".ample.com"}}, pay: paid, reason: "domain_not_allowed"},
		"domain that is not named":          {limits: api.Limits{Domains: []string{"example.com"}}, pay: limits.Payment{Amount: 1, Category: "x402"}, reason: "domain_not_allowed"},
		"domains are not for transfers":     {limits: api.Limits{Domains: []string{"example.com"}}, pay: transfer(1)},
		"asset":                             {limits: api.Limits{Assets: []string{"usdc@eip155:1"}}, pay: paid, reason: "asset_not_allowed"},
		"asset on the list":                 {limits: api.Limits{Assets: []string{"usdc@eip155:8453"}}, pay: paid},
		"facilitator":                       {limits: api.Limits{Facilitators: []string{"other.org"}}, pay: paid, reason: "facilitator_not_allowed"},
		"approval, equal":                   {limits: api.Limits{ApproveAbove: new(api.Micros(5))}, pay: transfer(5)},
		"approval":                          {limits: api.Limits{ApproveAbove: new(api.Micros(5))}, pay: transfer(6), reason: "approval_required"},
		"approved":                          {limits: api.Limits{ApproveAbove: new(api.Micros(5))}, pay: transfer(6), sums: limits.Sums{Approved: true}},
		"no approval for what is forbidden": {limits: api.Limits{ApproveAbove: new(api.Micros(5)), Payees: []string{"agent:ada"}}, pay: transfer(6), reason: "payee_not_allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := policy(tt.limits)
			got := p.Check(&tt.pay, &tt.sums, now)
			if tt.reason == "" {
				if got != nil {
					t.Fatalf("got %v, want the payment to be within its limits", got)
				}
				return
			}
			if got == nil || got.Code != api.Denied || got.Reason != tt.reason || got.Retry() != tt.wait || len(got.Details) != 1 {
				t.Fatalf("got %+v, want %s with a wait of %s", got, tt.reason, tt.wait)
			}
			if !api.OverLimit(got.Reason) {
				t.Errorf("%s is not a reason of OverLimit", got.Reason)
			}
		})
	}
}

func TestCheckNamesEveryLimit(t *testing.T) {
	t.Parallel()
	p := policy(api.Limits{
		Windows: []api.WindowLimit{window("hour", "", 9, -1), window("day", "", 10, -1), window("lineage", "", 5, -1)}, Reserve: new(api.Micros(100)),
	})
	s := limits.Sums{Available: 100, Rolling: limits.Meter{}.Add(now-us(50*time.Minute), limits.ClassOf("other", ""), 8)}
	s.Pool = s.Rolling
	pay := limits.Payment{Agent: "lucky", Amount: 3, Category: "transfer"}
	got := p.Check(&pay, &s, now)
	if got == nil || got.Reason != api.ReasonHourLimit || len(got.Details) != 3 || got.Retry() != 23*time.Hour+10*time.Minute {
		t.Errorf("got %+v, want the hour first, three details and the wait of the day", got)
	}
	for _, part := range []string{"lucky", "$0.000009 in an hour", "leaves $0.000001", "$0.000008 is spent"} {
		if !strings.Contains(got.Message, part) {
			t.Errorf("message %q lacks %q", got.Message, part)
		}
	}
	if e := p.CheckPool(&pay, "lucky", &s, now); e == nil || e.Reason != api.ReasonLineageLimit {
		t.Errorf("lineage: got %v, want %s", e, api.ReasonLineageLimit)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	base := api.Limits{
		Windows: []api.WindowLimit{window("hour", "", 9, 3), window("day", "x402", 7, -1)}, Reserve: new(api.Micros(100)), Domains: []string{"a"},
	}
	own := api.Limits{
		Windows: []api.WindowLimit{{Window: "hour", Amount: new(api.Micros(4))}, {Window: "day", Category: "x402", Amount: new(api.Micros(-1))}},
		Domains: []string{"*"}, Parent: "ada",
	}
	got := limits.Resolve(&base, nil, &own)
	want := limits.Policy{
		Rules: []limits.Rule{{Window: "hour", Amount: 4, Payments: 3}}, Reserve: 100, NewPayee: -1, ApproveAbove: -1,
		Domains: []string{"*"}, Parent: "ada",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, policy(got.Limits()), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("resolved again (-want +got):\n%s", diff)
	}
}

// TestMeter compares a meter with a list of payments: it never counts less than the list,
// at most what was paid within the step of its resolution more, and exactly as much while
// there are few payments.
func TestMeter(t *testing.T) {
	t.Parallel()
	type payment struct {
		at     int64
		class  limits.Class
		amount api.Micros
		paid   bool
	}
	sum := func(all []payment, since int64) (s limits.Tally) {
		for _, p := range all {
			if p.at > since {
				s = s.Add(p.class, p.amount)
			}
		}
		return s
	}
	total := func(t limits.Tally, category string) api.Micros { return t.Of(category).Amount }
	rapid.Check(t, func(t *rapid.T) {
		var m limits.Meter
		var all []payment
		at := now
		busy := rapid.Bool().Draw(t, "busy")
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		if busy {
			steps *= 20
		}
		jump := rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Second, 3 * time.Minute, time.Hour}).Draw(t, "jump")
		rng := rapid.Int64Range(0, us(jump))
		for range steps {
			at += rng.Draw(t, "later")
			if n := len(all); n > 0 && rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, n-1).Draw(t, "which")
				p := &all[i]
				part := api.Micros(rapid.Int64Range(0, int64(p.amount)).Draw(t, "rest"))
				if p.paid || part == p.amount { // an ended payment stays as it is
					continue
				}
				p.paid = true
				m = m.Take(p.at, p.class, part, true)
				p.amount -= part
				continue
			}
			p := payment{at: at, class: limits.Class(rapid.Uint8Range(0, 7).Draw(t, "class")), amount: api.Micros(rapid.Int64Range(1, 1000).Draw(t, "amount"))}
			m, all = m.Add(at, p.class, p.amount), append(all, p)
		}
		again, err := limits.DecodeMeter(m.Encode())
		if err != nil || again.Encode() != m.Encode() {
			t.Fatalf("decoded: %v, %q, want %q", err, again.Encode(), m.Encode())
		}
		if n := len(m.Encode()); n > 3500 {
			t.Errorf("the meter has %d bytes, want it to fit into a page", n)
		}
		for d, slack := range map[time.Duration]time.Duration{time.Hour: time.Minute, 24 * time.Hour: 30 * time.Minute} {
			got, least, most := again.Within(at, d), sum(all, at-us(d)), sum(all, at-us(d+slack))
			if len(all) <= 64 {
				most = least
			}
			for _, category := range []string{"", "inference", "transfer", "x402", "other", "peer"} {
				if g, lo, hi := total(got, category), total(least, category), total(most, category); g < lo || g > hi {
					t.Fatalf("%s of %q in %d payments: got %d, want %d to %d", d, category, len(all), g, lo, hi)
				}
			}
		}
	})
}

// TestMeterAfterAClockAhead checks that one payment by a clock that is days ahead does not
// make the meter forget the payments of other classes that are made afterwards.
func TestMeterAfterAClockAhead(t *testing.T) {
	t.Parallel()
	m := limits.Meter{}.Add(now+us(72*time.Hour), limits.ClassOf("inference", ""), 1)
	transfer := limits.ClassOf("transfer", "")
	for i := range int64(3) {
		m = m.Add(now+i*us(time.Minute), transfer, 10)
	}
	m = m.Take(now+us(time.Minute), transfer, 4, true)
	got := m.Within(now+us(3*time.Minute), time.Hour)
	if s := got.Of("transfer"); s != (limits.Sum{Amount: 26, Payments: 3}) {
		t.Errorf("got %+v, want 3 payments of 26", s)
	}
}

// TestMeterReleased checks that released payments are not counted, with their numbers.
func TestMeterReleased(t *testing.T) {
	t.Parallel()
	c := limits.ClassOf("inference", "")
	var m limits.Meter
	for i := range int64(500) {
		m = m.Add(now+i*us(time.Second), c, 10)
	}
	for i := range int64(500) {
		if i%2 == 0 {
			m = m.Take(now+i*us(time.Second), c, 10, false)
		}
	}
	got := m.Within(now+us(10*time.Minute), time.Hour)
	if s := got.Of(""); s != (limits.Sum{Amount: 2500, Payments: 250}) {
		t.Errorf("got %+v, want 250 payments of 2500", s)
	}
	for i := range int64(500) {
		m = m.Take(now+i*us(time.Second), c, 10, false) // of more than there is
	}
	if got = m.Within(now+us(10*time.Minute), time.Hour); got != (limits.Tally{}) {
		t.Errorf("got %+v, want nothing", got)
	}
}

func FuzzDecode(f *testing.F) {
	c := limits.ClassOf("transfer", api.Peer)
	f.Add(limits.Meter{}.Add(now, c, 5).Add(now+1, 0, 1<<50).Encode())
	f.Add(limits.Tally{Settled: 3}.Add(c, 7).Encode())
	f.Add("")
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := limits.DecodeMeter(text); err == nil {
			again, err := limits.DecodeMeter(m.Encode())
			if err != nil || again.Encode() != m.Encode() {
				t.Errorf("meter %q: got %q, %v", text, again.Encode(), err)
			}
		}
		if s, err := limits.DecodeTally(text); err == nil {
			if again, err := limits.DecodeTally(s.Encode()); err != nil || again != s {
				t.Errorf("tally %q: got %+v, %v, want %+v", text, again, err, s)
			}
		}
	})
}

func BenchmarkMeterAdd(b *testing.B) {
	var m limits.Meter
	for i := range int64(2000) {
		m = m.Add(now+i*us(time.Minute), 0, 10)
	}
	b.ReportMetric(float64(len(m.Encode())), "bytes")
	b.ReportAllocs()
	for b.Loop() {
		_ = m.Add(now+2000*us(time.Minute), 0, 10).Encode()
	}
}

// TestNext checks that a refusal names the agent that has the limit and the flag of the
// command that changes it, and nothing that the payment names.
func TestNext(t *testing.T) {
	t.Parallel()
	for flag, l := range map[string]api.Limits{
		"--hour DOLLARS":                  {Windows: []api.WindowLimit{window("hour", "", 0, -1)}},
		"--call x402=DOLLARS":             {Windows: []api.WindowLimit{window("call", "x402", 0, -1)}},
		"--payments day=NUMBER":           {Windows: []api.WindowLimit{window("day", "", -1, 0)}},
		"--payments session.x402=NUMBER":  {Windows: []api.WindowLimit{window("session", "x402", -1, 0)}},
		"--reserve DOLLARS":               {Reserve: new(api.Micros(100))},
		"--new-payee DOLLARS":             {NewPayee: new(api.Micros(1))},
		"--approve-above DOLLARS":         {ApproveAbove: new(api.Micros(1))},
		"--payee PAYEE,PAYEE":             {Payees: []string{"agent:ada"}},
		"--domain DOMAIN,DOMAIN":          {Domains: []string{"example.com"}},
		"--asset ASSET@CHAIN,ASSET@CHAIN": {Assets: []string{"usdc@eip155:1"}},
		"--facilitator HOST,HOST":         {Facilitators: []string{"example.com"}},
	} {
		pay := limits.Payment{Agent: "lucky", Amount: 3, Category: "x402", Payee: "agent:$(rm)", Domain: "$(rm).com", Facilitator: "$(rm)"}
		p := policy(l)
		got := p.Check(&pay, &limits.Sums{Available: 3}, now)
		if want := "anima budget get lucky shows the limits; anima budget set lucky " + flag + " changes this one; docs/runbooks/limits.md"; got == nil || got.Next != want {
			t.Errorf("got %+v, want next %q", got, want)
		}
	}
	p := policy(api.Limits{Windows: []api.WindowLimit{window("lineage", "", 0, -1)}})
	got := p.CheckPool(&limits.Payment{Agent: "kid", Amount: 3}, "ada", &limits.Sums{}, now)
	if got == nil || !strings.Contains(got.Message, `agent "kid"`) || !strings.HasPrefix(got.Next, "anima budget get ada") || !strings.Contains(got.Next, "set ada --lineage DOLLARS") {
		t.Errorf("limit of the parent: got %+v, want the parent in next", got)
	}
}
