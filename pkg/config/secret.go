package config

import (
	"fmt"
	"io"
	"log/slog"
)

const hidden = "***"

// Secret is a value that must not appear in a log, an error or a response: every way to
// print or encode it yields ***, whether it is empty or not. There are two exceptions:
// fmt cannot call the methods of unexported fields, so store it in exported fields; and
// JSON writes map keys of a string type in plain text. The zero value is an empty secret.
type Secret string

// Reveal returns the secret itself, for the code that has to send or compare it.
func (s Secret) Reveal() string { return string(s) }

// String and GoString return ***.
func (Secret) String() string   { return hidden }
func (Secret) GoString() string { return hidden }

// Format writes *** for every verb, also for those that do not call String, such as %x
// and %d.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText returns *** for all text encodings.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON returns "***".
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// LogValue returns *** to handlers that inspect values themselves.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
