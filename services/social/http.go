package social

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/message"
)

// The wire format is that of existing clients (docs/reference/social.md, Wire format):
// snake case in requests, camel case in responses, and an error is {"error": text}.

// maxBody is the maximum size of a body in bytes: a message of api.MaxMessageBytes, of
// which JSON may encode each byte as six, and the other fields.
const maxBody = 6*api.MaxMessageBytes + 16<<10

const pollLimit, pollMost = 50, 100

type sendBody struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Content   string `json:"content"`
	SignedAt  string `json:"signed_at"`
	Signature string `json:"signature"`
	ReplyTo   string `json:"reply_to"`
}

type pollBody struct {
	Cursor string `json:"cursor"`
	Limit  int    `json:"limit"`
}

type pollAnswer struct {
	Messages   []polled `json:"messages"`
	NextCursor string   `json:"next_cursor,omitempty"`
}

type polled struct {
	ID        string `json:"id"`
	From      string `json:"from"`
	To        string `json:"to"`
	Content   string `json:"content"`
	SignedAt  string `json:"signedAt"`
	CreatedAt string `json:"createdAt"`
	ReplyTo   string `json:"replyTo,omitempty"`
	Signature string `json:"signature"` // so that the receiver can verify the message without trusting this relay
}

func (h *handlers) postMessage(w http.ResponseWriter, r *http.Request) (any, error) {
	var b sendBody
	if err := readBody(w, r, &b); err != nil {
		return nil, err
	}
	id, err := h.receive(r.Context(), message.Signed(b))
	return map[string]string{"id": id}, err
}

func (h *handlers) poll(w http.ResponseWriter, r *http.Request, address string) (any, error) {
	var b pollBody
	if err := readBody(w, r, &b); err != nil && !errors.Is(err, io.EOF) { // an empty body means the defaults
		return nil, err
	}
	after, err := parseCursor(b.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := h.store.Poll(r.Context(), address, after, clampLimit(b.Limit, pollLimit, pollMost), h.now())
	size := int64(0)
	for _, m := range all {
		size += int64(len(m.Content))
	}
	if err := errors.Join(err, host.Occupy(r.Context(), size)); err != nil { // anybody can fill a mailbox, poll it often and read slowly
		return nil, err
	}
	out := pollAnswer{Messages: []polled{}, NextCursor: b.Cursor}
	for _, m := range all {
		out.Messages = append(out.Messages, polled{
			ID: m.ID, From: message.Display(m.From), To: message.Display(m.To), Content: m.Content, SignedAt: m.SignedAt,
			CreatedAt: message.FormatTime(m.Received), ReplyTo: m.ReplyTo, Signature: m.Signature,
		})
		out.NextCursor = formatCursor(m)
	}
	return out, nil
}

func (h *handlers) count(_ http.ResponseWriter, r *http.Request, address string) (any, error) {
	n, err := h.store.Unread(r.Context(), address)
	return map[string]int64{"unread": n}, err
}

// respond returns a handler that writes the answer of f as JSON, or its error.
func (h *handlers) respond(f func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(w, r)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		host.WriteJSON(w, answer, nil)
	}
}

// authenticated is like respond, for requests about the mailbox of the address that
// signed the request.
func (h *handlers) authenticated(f func(w http.ResponseWriter, r *http.Request, address string) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		address, err := message.Authenticate(r.Header.Get("X-Wallet-Address"), r.Header.Get("X-Signature"), r.Header.Get("X-Timestamp"), h.now())
		if err != nil {
			writeText(w, http.StatusUnauthorized, err)
			return
		}
		h.respond(func(w http.ResponseWriter, r *http.Request) (any, error) { return f(w, r, address) })(w, r)
	}
}

// formatCursor returns the cursor after a message: its place in the mailbox.
func formatCursor(m inbox.Message) string { return strconv.FormatInt(m.Seq, 10) }

func parseCursor(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, &api.Error{Code: api.Invalid, Message: "the cursor was not issued by this relay", Next: "repeat the request without a cursor"}
	}
	return n, nil
}

// readBody decodes a body. It ignores unknown fields, because newer clients may send
// more. For an empty body the error wraps io.EOF.
func readBody(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := host.ReadBody(w, r, maxBody)
	if err != nil {
		return err
	}
	return decodeBody(body, v)
}

func decodeBody(body []byte, v any) error {
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(v); err != nil {
		return errors.Join(api.Errorf(api.Invalid, "the body is not valid JSON for this route: %s", api.JSONFault(err)), err)
	}
	return nil
}

// fail writes an error response; the text of an internal error is only logged.
func (h *handlers) fail(w http.ResponseWriter, r *http.Request, err error) {
	if api.CodeOf(err) == api.Internal {
		h.log.ErrorContext(r.Context(), "http request failed", "route", r.Pattern, "err", err)
	}
	writeText(w, host.StatusOf(err), err)
}

func writeText(w http.ResponseWriter, status int, err error) {
	e := api.Wire(err)
	text := e.Message
	if e.Next != "" {
		text += "; " + e.Next
	}
	host.SetRetryAfter(w, status, err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text}) // fails only if the client has disconnected
}

// readList reads the request of the operator's list of an agent's inbox.
func readList(_ http.ResponseWriter, r *http.Request) (api.ListInbox, error) {
	limit, err := host.Limit(r)
	q := r.URL.Query()
	return api.ListInbox{Agent: strings.ToLower(r.PathValue("id")), Status: q.Get("status"), After: q.Get("after"), Limit: limit}, err
}
