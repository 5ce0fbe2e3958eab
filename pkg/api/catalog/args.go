package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Type is the type of a parameter, in the words of JSON Schema.
type Type string

// The types of parameters. A parameter is never an object or a list.
const (
	Text    Type = "string"
	Number  Type = "number"
	Whole   Type = "integer"
	Boolean Type = "boolean"
)

// Param describes one parameter of a tool.
type Param struct {
	Name     string   `json:"name"`
	Type     Type     `json:"type"`
	Does     string   `json:"does,omitempty"` // description for the model
	Required bool     `json:"required,omitempty"`
	Empty    bool     `json:"empty,omitempty"`    // text may be blank
	Binary   bool     `json:"binary,omitempty"`   // text may hold U+0000
	MaxBytes int      `json:"maxBytes,omitempty"` // limit of text in UTF-8; 0: none
	OneOf    []string `json:"oneOf,omitempty"`    // allowed texts; empty: any
	Min      *float64 `json:"min,omitempty"`      // inclusive limit of a number
	Max      *float64 `json:"max,omitempty"`      // inclusive limit of a number
}

// Args holds arguments that are valid for a tool's parameters. The zero value has none.
type Args struct{ m map[string]any }

// Has reports whether an argument was given.
func (a Args) Has(name string) bool {
	_, ok := a.m[name]
	return ok
}

// String returns a text argument, or "" if it is absent.
func (a Args) String(name string) string { return value(a, name, "") }

// Float returns a number, or otherwise if it is absent.
func (a Args) Float(name string, otherwise float64) float64 { return value(a, name, otherwise) }

// Int returns a whole number, or otherwise if it is absent.
func (a Args) Int(name string, otherwise int64) int64 {
	if f, ok := a.m[name].(float64); ok {
		return int64(f)
	}
	return otherwise
}

// Bool returns a boolean, or otherwise if it is absent.
func (a Args) Bool(name string, otherwise bool) bool { return value(a, name, otherwise) }

func value[T any](a Args, name string, otherwise T) T {
	if v, ok := a.m[name].(T); ok {
		return v
	}
	return otherwise
}

// Parse decodes and validates args by the tool's parameters. The error is for the model
// and names the argument to correct. Parse is stricter than encoding/json, which
// ignores the case of keys and keeps the last of two equal ones: an executor must not
// read another value than the one that policy evaluated (docs/reference/platform.md, two
// readings).
func (t Tool) Parse(args json.RawMessage) (Args, error) {
	args = bytes.TrimSpace(args)
	if len(args) == 0 {
		args = json.RawMessage("{}") // some models send nothing for a tool without parameters
	}
	if !utf8.Valid(args) {
		return Args{}, errors.New("arguments are not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return Args{}, errors.New("arguments are not a JSON object")
	}
	a := Args{m: make(map[string]any, len(t.Params))}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return Args{}, errors.New("arguments are not valid JSON")
		}
		key, _ := tok.(string)
		i := slices.IndexFunc(t.Params, func(p Param) bool { return p.Name == key })
		if i < 0 {
			return Args{}, fmt.Errorf("%s has no argument %.40q", t.Name, key)
		}
		if a.Has(key) {
			return Args{}, fmt.Errorf("argument %s is given twice", key)
		}
		if tok, err = dec.Token(); err != nil {
			return Args{}, errors.New("arguments are not valid JSON")
		}
		if tok == nil {
			return Args{}, fmt.Errorf("argument %s is null; leave out what you do not want to say", key)
		}
		if a.m[key], err = t.Params[i].read(tok); err != nil {
			return Args{}, err
		}
	}
	if _, err := dec.Token(); err != nil {
		return Args{}, errors.New("arguments are not valid JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Args{}, errors.New("arguments are more than one JSON value")
	}
	for _, p := range t.Params {
		if p.Required && !a.Has(p.Name) {
			return Args{}, fmt.Errorf("argument %s is missing", p.Name)
		}
	}
	return a, nil
}

// read converts one JSON token to a value of the parameter's type.
func (p Param) read(tok json.Token) (any, error) {
	switch x := tok.(type) {
	case string:
		if p.Type == Text {
			return x, p.checkText(x)
		}
	case json.Number:
		if p.Type == Number || p.Type == Whole {
			return p.number(x)
		}
	case bool:
		if p.Type == Boolean {
			return x, nil
		}
	}
	return nil, fmt.Errorf("argument %s must be of type %s", p.Name, p.Type)
}

func (p Param) checkText(s string) error {
	switch {
	case strings.TrimSpace(s) == "" && !p.Empty:
		return fmt.Errorf("argument %s is empty", p.Name)
	case !p.Binary && strings.ContainsRune(s, 0):
		return fmt.Errorf("argument %s holds U+0000", p.Name)
	case p.MaxBytes > 0 && len(s) > p.MaxBytes:
		return fmt.Errorf("argument %s has %d bytes, at most %d are allowed", p.Name, len(s), p.MaxBytes)
	case len(p.OneOf) > 0 && !slices.Contains(p.OneOf, s):
		return fmt.Errorf("argument %s must be one of %s", p.Name, strings.Join(p.OneOf, ", "))
	}
	return nil
}

func (p Param) number(n json.Number) (float64, error) {
	f, err := strconv.ParseFloat(n.String(), 64)
	switch {
	case err != nil: // out of range
		return 0, fmt.Errorf("argument %s is too large", p.Name)
	case p.Type == Whole && (f != math.Trunc(f) || math.Abs(f) > 1<<53):
		return 0, fmt.Errorf("argument %s must be a whole number", p.Name)
	case p.Min != nil && f < *p.Min:
		return 0, fmt.Errorf("argument %s must be at least %v", p.Name, *p.Min)
	case p.Max != nil && f > *p.Max:
		return 0, fmt.Errorf("argument %s must be at most %v", p.Name, *p.Max)
	}
	return f, nil
}
