package social_test

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/services/social"
)

// wallet is the key and the address of a sender or a recipient.
type wallet struct {
	key     *ecdsa.PrivateKey
	address string // EIP-55
}

func newWallet(t *testing.T) wallet {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return wallet{key, crypto.PubkeyToAddress(key.PublicKey).Hex()}
}

// lower returns the address in lower case, as clients write it.
func (w wallet) lower() string { return strings.ToLower(w.address) }

func (w wallet) sign(t *testing.T, text string) string {
	t.Helper()
	digest := crypto.Keccak256([]byte("\x19Ethereum Signed Message:\n" + strconv.Itoa(len(text)) + text))
	sig, err := crypto.Sign(digest, w.key)
	if err != nil {
		t.Fatal(err)
	}
	sig[64] += 27
	return hexutil.Encode(sig)
}

func iso(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (w wallet) send(t *testing.T, to wallet, content string) api.Send {
	t.Helper()
	at := iso(time.Now())
	hash := crypto.Keccak256Hash([]byte(content)).Hex()
	return api.Send{
		From: w.address, To: to.address, Content: content, SignedAt: at,
		Signature: w.sign(t, "Conway:send:"+to.lower()+":"+hash+":"+at),
	}
}

func call[Resp any](t *testing.T, b *bus.Bus, req api.Message) Resp {
	t.Helper()
	resp, err := bus.Call[Resp](t.Context(), b, req)
	if err != nil {
		t.Fatalf("%T: %v", req, err)
	}
	return resp
}

// register publishes an agent with the wallet w and waits until social has stored it.
func register(t *testing.T, b *bus.Bus, agent string, w wallet) {
	t.Helper()
	m := api.AgentChanged{Agent: agent, Name: "The " + agent, Address: w.address, State: api.StateSleeping, Seq: 1}
	if err := b.Publish(t.Context(), "agent_state/"+agent+"/1", m); err != nil {
		t.Fatal(err)
	}
	received := apptest.Watch[api.MessageReceived](t, b)
	probe := call[api.Sent](t, b, newWallet(t).send(t, w, "are you there?"))
	apptest.Next(t, received, func(m api.MessageReceived) bool { return m.ID == probe.ID && m.Agent == agent })
	call[api.Inbox](t, b, api.ClaimInbox{Agent: agent, Run: "probe"})
	call[api.InboxCount](t, b, api.SettleInbox{Agent: agent, Run: "probe"})
}

func TestSendClaimSettle(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, social.Service)
	alice, bob := newWallet(t), newWallet(t)
	register(t, b, "alice", alice)
	register(t, b, "bob", bob)
	received := apptest.Watch[api.MessageReceived](t, b)

	m := alice.send(t, bob, "hello 🐎")
	m.ReplyTo = "m0"
	sent := call[api.Sent](t, b, m)
	event := apptest.Next(t, received, func(e api.MessageReceived) bool { return e.ID == sent.ID })
	if event.Agent != "bob" || event.From != alice.address {
		t.Errorf("announced: got %+v", event)
	}
	if got := call[api.InboxCount](t, b, api.CountInbox{Agent: "bob"}); got.Unread != 1 {
		t.Errorf("unread: got %d, want 1", got.Unread)
	}
	want := api.InboxMessage{
		ID: sent.ID, From: alice.address, To: bob.address, Content: "hello 🐎", SignedAt: m.SignedAt, Signature: m.Signature,
		ReplyTo: "m0", Status: "in_progress", ReceivedAt: event.At, Peer: "The alice",
	}
	for range 2 { // the same run claims the same messages again
		got := call[api.Inbox](t, b, api.ClaimInbox{Agent: "bob", Run: "r1"})
		if d := cmp.Diff([]api.InboxMessage{want}, got.Messages); d != "" {
			t.Errorf("claimed: -want +got\n%s", d)
		}
	}
	if got := call[api.Inbox](t, b, api.ClaimInbox{Agent: "bob", Run: "r2"}); len(got.Messages) != 0 {
		t.Errorf("claimed by another run: got %+v, want nothing", got)
	}
	for range 2 {
		if got := call[api.InboxCount](t, b, api.SettleInbox{Agent: "bob", Run: "r1"}); got.Unread != 0 {
			t.Errorf("settled: got %d unread, want 0", got.Unread)
		}
	}
	list := call[api.Inbox](t, b, api.ListInbox{Agent: "bob", Status: "processed", Limit: 1}).Messages
	want.Status = "processed"
	if d := cmp.Diff([]api.InboxMessage{want}, list); d != "" {
		t.Errorf("listed: -want +got\n%s", d)
	}
	if got := call[api.Inbox](t, b, api.ClaimInbox{Agent: "unknown", Run: "r1"}); got.Messages == nil || len(got.Messages) != 0 {
		t.Errorf("of an unknown agent: got %+v, want an empty list", got)
	}
}

// TestUnanswered tests that three runs may claim a message that none of them has answered.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, social.Service)
	alice, bob := newWallet(t), newWallet(t)
	register(t, b, "bob", bob)
	sent := call[api.Sent](t, b, alice.send(t, bob, "hello"))
	for i, want := range []int64{1, 1, 0} {
		run := fmt.Sprint("r", i)
		got := call[api.Inbox](t, b, api.ClaimInbox{Agent: "bob", Run: run}).Messages
		if len(got) != 1 || got[0].ID != sent.ID {
			t.Fatalf("claimed by %s: got %+v, want the message", run, got)
		}
		for range 2 {
			if got := call[api.InboxCount](t, b, api.SettleInbox{Agent: "bob", Run: run, Unanswered: true}); got.Unread != want {
				t.Errorf("settled by %s: got %d unread, want %d", run, got.Unread, want)
			}
		}
	}
	if got := call[api.Inbox](t, b, api.ListInbox{Agent: "bob", Status: "failed"}).Messages; len(got) != 1 || got[0].ID != sent.ID {
		t.Errorf("failed: got %+v, want the message", got)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, social.Service)
	alice, bob := newWallet(t), newWallet(t)
	good := alice.send(t, bob, "hello")
	old := func(age time.Duration) api.Send {
		m := good
		m.SignedAt = iso(time.Now().Add(-age))
		m.Signature = alice.sign(t, "Conway:send:"+bob.lower()+":"+crypto.Keccak256Hash([]byte(m.Content)).Hex()+":"+m.SignedAt)
		return m
	}
	forged, changed := good, good
	forged.From, changed.Content = bob.address, "hello!"
	for name, test := range map[string]struct {
		send api.Send
		code api.Code
	}{
		"another sender": {forged, api.Denied}, "another content": {changed, api.Denied},
		"old": {old(6 * time.Minute), api.Invalid}, "from the future": {old(-2 * time.Minute), api.Invalid},
		"almost old": {old(4 * time.Minute), ""},
	} {
		if _, err := bus.Call[api.Sent](t.Context(), b, test.send); api.CodeOf(err) != test.code {
			t.Errorf("%s: got %v, want %q", name, err, test.code)
		}
	}
	for _, req := range []api.Message{
		api.ClaimInbox{Agent: "bob"}, api.SettleInbox{Agent: "bob"}, api.ListInbox{Agent: "bob", Status: "read"},
	} {
		if _, err := bus.Call[api.Inbox](t.Context(), b, req); api.CodeOf(err) != api.Invalid {
			t.Errorf("%+v: got %v, want invalid", req, err)
		}
	}
}

func TestDuplicateAndRate(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, social.Service)
	alice, bob := newWallet(t), newWallet(t)
	first := alice.send(t, bob, "message 0")
	id := call[api.Sent](t, b, first).ID
	for i := 1; i < 10; i++ {
		call[api.Sent](t, b, alice.send(t, bob, fmt.Sprint("message ", i)))
	}
	_, err := bus.Call[api.Sent](t.Context(), b, alice.send(t, bob, "one too many"))
	if api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonLimit || api.Wire(err).Retry() <= 0 || api.Wire(err).Retry() > time.Minute {
		t.Errorf("the eleventh within a minute: got %v, want unavailable, limit reached, with a time to wait", err)
	}
	first.Signature = first.Signature[:130] + fmt.Sprintf("%02x", first.Signature[131]-'b') // the same signature with v written as 0 or 1
	if again := call[api.Sent](t, b, first).ID; again != id {
		t.Errorf("the first again: got %s, want %s", again, id)
	}
}

func TestMessagesWaitForTheirAgent(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, social.Service)
	alice, bob := newWallet(t), newWallet(t)
	sent := call[api.Sent](t, b, alice.send(t, bob, "are you born yet?"))
	received := apptest.Watch[api.MessageReceived](t, b)
	m := api.AgentChanged{Agent: "bob", Name: "Bob", Address: bob.address, State: api.StateSetup, Seq: 1}
	if err := b.Publish(t.Context(), "agent_state/bob/1", m); err != nil {
		t.Fatal(err)
	}
	if got := apptest.Next(t, received, nil); got.ID != sent.ID || got.Agent != "bob" {
		t.Errorf("got %+v, want message %s for bob", got, sent.ID)
	}
}

// relay is a client of the HTTP API (docs/reference/social.md, Wire format).
type relay struct{ base string }

func (r relay) do(t *testing.T, method, path string, header map[string]string, body, answer any) (int, http.Header) {
	t.Helper()
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, r.base+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(resp.Body)
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		t.Fatalf("%s %s: %d %s: %v", method, path, resp.StatusCode, data, err)
	}
	return resp.StatusCode, resp.Header
}

func wire(m api.Send) map[string]string {
	return map[string]string{
		"from": strings.ToLower(m.From), "to": strings.ToLower(m.To), "content": m.Content, "signed_at": m.SignedAt, "signature": m.Signature,
	}
}

func (w wallet) auth(t *testing.T, at time.Time) map[string]string {
	t.Helper()
	return map[string]string{
		"X-Wallet-Address": w.lower(), "X-Timestamp": iso(at), "X-Signature": w.sign(t, "Conway:poll:"+w.lower()+":"+iso(at)),
	}
}

type failure struct {
	Error string `json:"error"`
}

func TestWire(t *testing.T) {
	t.Parallel()
	world := apptest.Start(t, apptest.Options{}, social.Service)
	r := relay{world.HTTP}
	alice, bob := newWallet(t), newWallet(t)

	var sent struct{ ID string }
	m := alice.send(t, bob, "<hello> & 🐎")
	body := wire(m)
	body["reply_to"] = "m0"
	for range 2 { // the client repeats the request after a lost response
		if status, _ := r.do(t, "POST", "/v1/messages", nil, body, &sent); status != http.StatusOK || sent.ID == "" {
			t.Fatalf("send: got %d, %+v", status, sent)
		}
	}
	var count struct{ Unread *int64 }
	status, _ := r.do(t, "GET", "/v1/messages/count", bob.auth(t, time.Now()), nil, &count)
	if status != http.StatusOK || count.Unread == nil || *count.Unread != 1 {
		t.Errorf("count: got %d, %+v, want 1", status, count)
	}
	var page struct {
		Messages   []map[string]string `json:"messages"`
		NextCursor string              `json:"next_cursor"`
	}
	before := time.Now().Add(-time.Minute)
	status, _ = r.do(t, "POST", "/v1/messages/poll", bob.auth(t, time.Now()), map[string]any{}, &page)
	if status != http.StatusOK || len(page.Messages) != 1 || page.NextCursor == "" {
		t.Fatalf("poll: got %d, %+v", status, page)
	}
	got := page.Messages[0]
	created, err := time.Parse("2006-01-02T15:04:05.000Z", got["createdAt"])
	if err != nil || created.Before(before) {
		t.Errorf("createdAt: got %q", got["createdAt"])
	}
	delete(got, "createdAt")
	want := map[string]string{
		"id": sent.ID, "from": alice.address, "to": bob.address, "content": m.Content, "signedAt": m.SignedAt,
		"replyTo": "m0", "signature": m.Signature,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("polled: -want +got\n%s", d)
	}
	cursor := page.NextCursor
	page.Messages = nil
	status, _ = r.do(t, "POST", "/v1/messages/poll", bob.auth(t, time.Now()), map[string]any{"cursor": cursor, "limit": 5}, &page)
	if status != http.StatusOK || page.Messages == nil || len(page.Messages) != 0 || page.NextCursor != cursor {
		t.Errorf("poll after the last: got %d, %+v, want an empty list and the cursor %s", status, page, cursor)
	}
	r.do(t, "GET", "/v1/messages/count", bob.auth(t, time.Now()), nil, &count)
	if *count.Unread != 0 {
		t.Errorf("count after polling on: got %d, want 0", *count.Unread)
	}
}

func TestWireErrors(t *testing.T) {
	t.Parallel()
	world := apptest.Start(t, apptest.Options{}, social.Service)
	r := relay{world.HTTP}
	alice, bob := newWallet(t), newWallet(t)
	forged := wire(alice.send(t, bob, "hello"))
	forged["from"] = bob.lower()
	empty := wire(alice.send(t, bob, ""))
	stale := bob.auth(t, time.Now().Add(-6*time.Minute))
	for name, test := range map[string]struct {
		method, path string
		header       map[string]string
		body         any
		status       int
		says         string
	}{
		"forged":              {"POST", "/v1/messages", nil, forged, 403, "signature is not that of"},
		"empty":               {"POST", "/v1/messages", nil, empty, 400, "empty"},
		"no object":           {"POST", "/v1/messages", nil, "text", 400, "JSON"},
		"too large":           {"POST", "/v1/messages", nil, strings.Repeat("a", 400_000), 413, "larger"},
		"poll unsigned":       {"POST", "/v1/messages/poll", nil, map[string]any{}, 401, "X-Wallet-Address"},
		"poll of another":     {"POST", "/v1/messages/poll", with(bob.auth(t, time.Now()), "X-Wallet-Address", alice.lower()), map[string]any{}, 401, "signature"},
		"poll, old signature": {"POST", "/v1/messages/poll", stale, map[string]any{}, 401, "ago"},
		"poll, bad cursor":    {"POST", "/v1/messages/poll", bob.auth(t, time.Now()), map[string]any{"cursor": "x"}, 400, "cursor"},
		"count unsigned":      {"GET", "/v1/messages/count", nil, nil, 401, "X-Wallet-Address"},
	} {
		var f failure
		status, _ := r.do(t, test.method, test.path, test.header, test.body, &f)
		if status != test.status || !strings.Contains(f.Error, test.says) {
			t.Errorf("%s: got %d %q, want %d with %q", name, status, f.Error, test.status, test.says)
		}
	}
	var sent struct{ ID string }
	for i := range 10 {
		r.do(t, "POST", "/v1/messages", nil, wire(alice.send(t, bob, fmt.Sprint("message ", i))), &sent)
	}
	var f failure
	status, header := r.do(t, "POST", "/v1/messages", nil, wire(alice.send(t, bob, "one too many")), &f)
	if after, err := strconv.Atoi(header.Get("Retry-After")); status != 429 || err != nil || after < 1 || after > 60 {
		t.Errorf("too many: got %d, Retry-After %q, want 429 and a minute at most", status, header.Get("Retry-After"))
	}
}

func with(header map[string]string, key, value string) map[string]string {
	header[key] = value
	return header
}
