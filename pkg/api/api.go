// Package api defines the contracts between the services: subjects, messages, errors,
// and the streams and the bucket that carry them. It imports only the standard library
// and must not contain behaviour beyond encoding, the validation of names and limits,
// and the rules that several services have to compute identically, such as the decision
// token.
//
// To change a contract, add the message to the file of its owner and to [Contracts],
// run the tests with -update, and commit the new golden file. Golden files are added,
// never edited; an incompatible change is a new version of the message.
//
// The comment of a request names the type of its answer and its errors.
//
// JSON fields are camelCase (docs/reference/platform.md, Encoding).
// Times are Unix microseconds (UTC). Amounts are [Micros]. A duration has its unit in
// its name or comment. Readers ignore unknown fields.
package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Root is the first token of every subject, the prefix of every environment variable
// (in upper case) and metric, and the name of the command.
const Root = "anima"

// Class describes how a message is delivered. The zero value is not a valid class.
type Class string

// The classes (docs/reference/platform.md, Subjects).
const (
	Event   Class = "evt"  // a fact, stored in a stream, for any number of readers
	Command Class = "cmd"  // work for one consumer, stored in a work queue
	Request Class = "req"  // a question with one answer, not stored
	Live    Class = "live" // an update for the current subscribers, not stored
)

// Owner is the service that answers a request, executes a command, or publishes an
// event or a live message.
type Owner string

// The six owners. An owner is a subject token and not always the name of the service:
// inference-router owns "inference". See [Owner.Service].
const (
	Loop      Owner = "loop"
	Inference Owner = "inference"
	Policy    Owner = "policy"
	Treasury  Owner = "treasury"
	Heartbeat Owner = "heartbeat"
	Social    Owner = "social"
)

// Subject describes where a message is published:
//
//	anima.<owner>.<class>.<name>.v<version>[.<key>]
//
// The owner comes first so that one NATS permission covers all subjects of a service.
type Subject struct {
	Owner   Owner
	Class   Class
	Name    string
	Version int
	Key     string // agent, session or address; "" if the message has none
	Keyed   bool   // the message always has a key; subscribe with [Subject.All]
}

// String returns the subject as NATS uses it. A keyed subject without a key ends in
// ".-", so that a missing key cannot widen a subscription.
func (s Subject) String() string {
	sub := s.Template()
	switch {
	case s.Key != "":
		return sub + "." + s.Key
	case s.Keyed:
		return sub + ".-"
	}
	return sub
}

// All returns the subject that matches the messages of s with any key.
func (s Subject) All() string {
	if s.Keyed {
		return s.Template() + ".*"
	}
	return s.Template()
}

// Same reports whether s and o are subjects of the same type of message. It ignores
// their keys.
func (s Subject) Same(o Subject) bool {
	return s.Name == o.Name && s.Owner == o.Owner && s.Class == o.Class && s.Version == o.Version
}

// Template returns the subject without its key. Spans, metrics and golden files use it
// as a name because it has few values.
func (s Subject) Template() string {
	return Root + "." + string(s.Owner) + "." + string(s.Class) + "." + s.Name + ".v" + strconv.Itoa(s.Version)
}

// Stream returns the name of the JetStream stream that stores messages of s, or "" if
// their class is not stored.
func (s Subject) Stream() string {
	if s.Class != Event && s.Class != Command {
		return ""
	}
	return strings.ToUpper(string(s.Owner) + "_" + string(s.Class))
}

// Message is implemented by every message of [Contracts]. Subject must work on a zero
// value.
type Message interface{ Subject() Subject }

// encoder is implemented by messages that write their own JSON.
type encoder interface{ encode() ([]byte, error) }

// decoder is implemented by messages that read the form that their encoder writes.
// decode returns false if data has another form.
type decoder interface {
	decode(data []byte) (bool, error)
}

// Encode returns the JSON of a message. All messages are encoded with it. It does not
// escape HTML characters.
func Encode(m any) ([]byte, error) {
	if e, ok := m.(encoder); ok {
		return e.encode()
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // model text has many < and >, and escaping makes it longer
	if err := enc.Encode(m); err != nil {
		return nil, fmt.Errorf("encode %T: %w", m, err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// Decode reads a message from JSON. All messages are decoded with it. It ignores
// unknown fields, so an old reader accepts the messages of a new writer. An error has
// the code [Invalid]. The message may share memory with data.
func Decode(data []byte, m any) error {
	known, err := false, error(nil)
	if d, ok := m.(decoder); ok {
		known, err = d.decode(data)
	}
	if !known {
		err = json.Unmarshal(data, m)
	}
	if err != nil {
		return &Error{Code: Invalid, Message: fmt.Sprintf("message is not a valid %T: %s", m, JSONFault(err))}
	}
	return nil
}

// JSONFault returns the text of an error of encoding/json for the caller that sent the
// JSON. It names the field and the JSON type, where the error would name Go types, and
// says that the JSON is empty, incomplete or followed by more.
func JSONFault(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return cmp.Or(wrong.Field, "the value") + " cannot be of type " + wrong.Value
	}
	syntax, _ := errors.AsType[*json.SyntaxError](err)
	switch text := err.Error(); {
	case errors.Is(err, io.EOF), syntax != nil && syntax.Offset == 0:
		return "it is empty"
	case errors.Is(err, io.ErrUnexpectedEOF), syntax != nil && text == "unexpected end of JSON input":
		return "it ends within a value"
	case syntax != nil && strings.HasSuffix(text, " after top-level value"):
		return "it has more than one value"
	default:
		return text
	}
}

// ValidKey reports whether s can be the key of a subject or a part of a bucket key: 1
// to 128 ASCII letters, digits, "-" and "_".
func ValidKey(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
		if !ok {
			return false
		}
	}
	return true
}

func event(o Owner, name, key string) Subject { return keyed(o, Event, name, key) }

func keyed(o Owner, c Class, name, key string) Subject {
	return Subject{Owner: o, Class: c, Name: name, Version: 1, Key: key, Keyed: true}
}

func request(o Owner, name string) Subject {
	return Subject{Owner: o, Class: Request, Name: name, Version: 1}
}

// version returns the subject of version n of the same message.
func (s Subject) version(n int) Subject {
	s.Version = n
	return s
}
