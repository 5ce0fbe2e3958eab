// Package api is everything the services say to each other: subjects,
// messages, errors, and the streams and bucket that carry them. It imports
// only the standard library and holds no behaviour beyond encoding, validation
// of names and limits, and the decision token both ends must agree on byte for byte.
//
// To change a conversation, start here: add the message to its owner's file and
// to [Contracts], run the tests with -update, and commit the new golden. Goldens
// are added, never edited; an incompatible change is a new version.
//
// JSON is camelCase because seed 004 fixes the names of the loop's events.
// Times are Unix microseconds (UTC); money is [Micros]; durations carry their
// unit in the name. Readers ignore fields they do not know.
package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Root is the first token of every subject, the prefix of every environment
// variable (upper case) and metric, and the name of the command.
const Root = "anima"

// Class is how a message travels. The zero value is not a class.
type Class string

// The classes of design §3.
const (
	Event   Class = "evt"  // a fact, kept in a stream, many readers
	Command Class = "cmd"  // work to do once, kept in a work queue
	Request Class = "req"  // a question, answered or lost
	Live    Class = "live" // for whoever watches right now; never stored
)

// Owner is the service that answers, does or says a message.
type Owner string

// The six owners. An owner is a subject token and not always the name of the
// service: inference-router owns "inference".
const (
	Loop      Owner = "loop"
	Inference Owner = "inference"
	Policy    Owner = "policy"
	Treasury  Owner = "treasury"
	Heartbeat Owner = "heartbeat"
	Social    Owner = "social"
)

// Subject says where a message travels:
//
//	anima.<owner>.<class>.<name>.v<version>[.<key>]
//
// Owner comes first so that one NATS permission line covers a service.
type Subject struct {
	Owner   Owner
	Class   Class
	Name    string
	Version int
	Key     string // agent, session or address; "" where the message has none
	Keyed   bool   // the message always carries a key: subscribe with [Subject.All]
}

// String is the subject on the wire. A keyed subject without a key ends in
// ".-", so that a missing key can never widen a subscription.
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

// All matches the messages of s for every key.
func (s Subject) All() string {
	if s.Keyed {
		return s.Template() + ".*"
	}
	return s.Template()
}

// Same says whether two subjects are of the same messages, whatever their keys are.
func (s Subject) Same(o Subject) bool {
	return s.Name == o.Name && s.Owner == o.Owner && s.Class == o.Class && s.Version == o.Version
}

// Template is the subject without its key: the low-cardinality name for spans,
// metrics and goldens.
func (s Subject) Template() string {
	return Root + "." + string(s.Owner) + "." + string(s.Class) + "." + s.Name + ".v" + strconv.Itoa(s.Version)
}

// Stream is the JetStream stream that keeps messages of s; "" for classes that
// are not kept.
func (s Subject) Stream() string {
	if s.Class != Event && s.Class != Command {
		return ""
	}
	return strings.ToUpper(string(s.Owner) + "_" + string(s.Class))
}

// A Message knows its own subject. The method must work on a zero value.
type Message interface{ Subject() Subject }

// An encoder is a message that makes its own bytes, which are JSON.
type encoder interface{ encode() ([]byte, error) }

// A decoder is a message that reads the form that its encoder writes; false for another.
type decoder interface {
	decode(data []byte) (bool, error)
}

// Encode is the one place where a message becomes bytes.
func Encode(m any) ([]byte, error) {
	if e, ok := m.(encoder); ok {
		return e.encode()
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // model text is full of < and >; escaping it only costs bytes
	if err := enc.Encode(m); err != nil {
		return nil, fmt.Errorf("encode %T: %w", m, err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// Decode is the one place where bytes become a message. Fields it does not
// know are ignored, so an old reader survives a new writer. A failure is an
// [Invalid] error. The message may have parts of data in it.
func Decode(data []byte, m any) error {
	known, err := false, error(nil)
	if d, ok := m.(decoder); ok {
		known, err = d.decode(data)
	}
	if !known {
		err = json.Unmarshal(data, m)
	}
	if err != nil {
		return &Error{Code: Invalid, Message: fmt.Sprintf("message is not a valid %T: %v", m, err)}
	}
	return nil
}

// ValidKey reports whether s can be the key of a subject or a part of a bucket
// key: 1 to 128 of letters, digits, "-" and "_".
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

func event(o Owner, name, key string) Subject {
	return Subject{Owner: o, Class: Event, Name: name, Version: 1, Key: key, Keyed: true}
}

func request(o Owner, name string) Subject {
	return Subject{Owner: o, Class: Request, Name: name, Version: 1}
}

// version is the same message in another version.
func (s Subject) version(n int) Subject {
	s.Version = n
	return s
}
