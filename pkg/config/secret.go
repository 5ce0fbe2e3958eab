package config

import (
	"fmt"
	"io"
	"log/slog"
)

const hidden = "***"

// Secret is a value that must not reach a log, an error or an answer: every
// way to print or encode it gives ***, whether it is empty or not. Two ways
// around that remain: fmt cannot call the methods of unexported fields, so keep
// it in exported ones; and JSON writes map keys of a string type bare. The zero
// value is no secret.
type Secret string

// Reveal returns the secret itself, for the one who must present it.
func (s Secret) Reveal() string { return string(s) }

func (Secret) String() string   { return hidden }
func (Secret) GoString() string { return hidden }

// Format covers the verbs that do not ask for String, such as %x and %d.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText hides the secret in every other text encoding.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON hides the secret.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// LogValue hides the secret from handlers that look at values themselves.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
