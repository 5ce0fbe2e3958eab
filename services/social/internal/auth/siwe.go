package auth

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
)

// MaxMessage is the maximum length of a sign-in message in bytes. Those of wallets have a
// few hundred.
const MaxMessage = 4096

// Message is a sign-in message (EIP-4361, version 1).
type Message struct {
	Domain    string
	Address   string // EIP-55
	Statement string
	URI       string
	Chain     string // decimal
	Nonce     string
	IssuedAt  time.Time
	Expires   time.Time // zero: never
	NotBefore time.Time // zero: at once
}

// grammar is the complete message. Every field is anchored between its name and the end
// of its line, so that no field can contain another one.
var grammar = regexp.MustCompile(`\A(?:[a-z][a-z0-9+.-]*://)?([a-zA-Z0-9.:\[\]_-]+) wants you to sign in with your Ethereum account:
(0x[0-9a-fA-F]{40})

(?:([ -~]+)
)?
URI: ([!-~]+)
Version: 1
Chain ID: (0|[1-9][0-9]{0,17})
Nonce: ([a-zA-Z0-9]{8,128})
Issued At: ([0-9TZtz:.+-]+)(?:
Expiration Time: ([0-9TZtz:.+-]+))?(?:
Not Before: ([0-9TZtz:.+-]+))?(?:
Request ID: [!-~]*)?(?:
Resources:(?:
- [!-~]+)*)?\z`)

// Parse reads a sign-in message. Errors: Invalid.
func Parse(text string) (Message, error) {
	if len(text) > MaxMessage {
		return Message{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("the message has %d bytes, at most %d", len(text), MaxMessage), Next: "leave out resources"}
	}
	f := grammar.FindStringSubmatch(text)
	if f == nil {
		return Message{}, &api.Error{Code: api.Invalid, Message: "the message is not a sign-in message", Next: "sign the text of EIP-4361, version 1, with lines that end in LF"}
	}
	m := Message{Domain: f[1], Address: f[2], Statement: f[3], URI: f[4], Chain: f[5], Nonce: f[6]}
	for i, at := range []*time.Time{&m.IssuedAt, &m.Expires, &m.NotBefore} {
		text := f[7+i]
		if text == "" && i > 0 {
			continue
		}
		var err error
		if *at, err = time.Parse(time.RFC3339, text); err != nil {
			return Message{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%.40q is not a time", text), Next: "write times as in 2026-01-02T03:04:05.678Z"}
		}
	}
	if common.HexToAddress(m.Address).Hex() != m.Address {
		return Message{}, &api.Error{Code: api.Invalid, Message: "the address has a wrong checksum", Next: "write it as EIP-55 says: " + common.HexToAddress(m.Address).Hex()}
	}
	return m, nil
}

// Rules are what a sign-in message must say.
type Rules struct {
	Host    string   // of the request, with its port
	Domains []string // accepted besides Host: existing clients always name the same domain
	Chains  []string // decimal ids
}

// ahead is how far the clock of a client may be ahead.
const ahead = time.Minute

// Check reports whether a message is meant for this server, at this time. It does not
// check the nonce and the signature. Errors: Invalid.
//
// The host of the URI must be that of the request, so that another site cannot use a
// message that a wallet has signed there.
func (m Message) Check(r Rules, now time.Time) error {
	uri, err := url.Parse(m.URI)
	switch {
	case err != nil || uri.Scheme != "https" && uri.Scheme != "http" || uri.User != nil || !strings.EqualFold(uri.Host, r.Host):
		return refuse("the URI "+short(m.URI)+" is not an address of this server", "name the address to which the request is sent: "+r.Host)
	case !strings.EqualFold(m.Domain, r.Host) && !slices.Contains(r.Domains, strings.ToLower(m.Domain)):
		return refuse("the domain "+short(m.Domain)+" is not accepted", "name "+r.Host+"; ANIMA_SOCIAL_SIGN_IN_DOMAINS lists other accepted domains")
	case !slices.Contains(r.Chains, m.Chain):
		return refuse("the chain "+m.Chain+" is not accepted", "use one of "+strings.Join(r.Chains, ", "))
	case m.IssuedAt.After(now.Add(ahead)):
		return refuse("the message is from the future", "check the clock")
	case now.Sub(m.IssuedAt) > NonceLife+ahead:
		return refuse("the message is too old", "request a nonce and sign a new message")
	case !m.Expires.IsZero() && !now.Before(m.Expires):
		return refuse("the message has expired", "request a nonce and sign a new message")
	case now.Before(m.NotBefore):
		return refuse("the message is not valid yet", "send it at the time that it names")
	}
	return nil
}

func refuse(message, next string) error {
	return &api.Error{Code: api.Invalid, Message: message, Next: next}
}

func short(s string) string { return fmt.Sprintf("%.80q", s) }
