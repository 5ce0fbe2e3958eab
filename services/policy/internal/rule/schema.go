package rule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Type of a parameter.
type Type string

// The types that tools have. A parameter is never an object or a list.
const (
	Text    Type = "string"
	Number  Type = "number"
	Boolean Type = "boolean"
)

// Param describes one argument of a tool.
type Param struct {
	Name     string   `json:"name"`
	Type     Type     `json:"type"`
	Required bool     `json:"required,omitempty"`
	Empty    bool     `json:"empty,omitempty"`    // text may be ""
	Binary   bool     `json:"binary,omitempty"`   // text may hold U+0000
	MaxBytes int      `json:"maxBytes,omitempty"` // of text as UTF-8; 0: no limit of its own
	OneOf    []string `json:"oneOf,omitempty"`    // text must be one of these; none: any
	Min      *float64 `json:"min,omitempty"`      // of a number, included
	Max      *float64 `json:"max,omitempty"`      // of a number, included
}

// Values are arguments that fit a tool's schema.
type Values struct{ m map[string]any }

// String returns a text argument, "" when absent.
func (v Values) String(name string) string {
	s, _ := v.m[name].(string)
	return s
}

// Has says whether an argument was given and not null.
func (v Values) Has(name string) bool {
	_, ok := v.m[name]
	return ok
}

// parse decodes args by the tool's schema. The error is for the model: it says
// which argument to correct. It is stricter than encoding/json, which folds the
// case of keys and keeps the last of two equal ones, so that no executor can
// read another value than the one that was judged.
func (t Tool) parse(args json.RawMessage) (Values, error) {
	args = bytes.TrimSpace(args)
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	if !utf8.Valid(args) {
		return Values{}, errors.New("arguments are not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return Values{}, errors.New("arguments are not a JSON object")
	}
	v := Values{m: make(map[string]any, len(t.Params))}
	seen := make([]bool, len(t.Params))
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return Values{}, errors.New("arguments are not valid JSON")
		}
		key, _ := tok.(string)
		i := slices.IndexFunc(t.Params, func(p Param) bool { return p.Name == key })
		if i < 0 {
			return Values{}, fmt.Errorf("%s has no argument %.40q", t.Name, key)
		}
		if seen[i] {
			return Values{}, fmt.Errorf("argument %s is given twice", key)
		}
		seen[i] = true
		if tok, err = dec.Token(); err != nil {
			return Values{}, errors.New("arguments are not valid JSON")
		}
		if tok == nil {
			continue
		}
		val, err := t.Params[i].read(tok)
		if err != nil {
			return Values{}, err
		}
		v.m[key] = val
	}
	if _, err := dec.Token(); err != nil {
		return Values{}, errors.New("arguments are not valid JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Values{}, errors.New("arguments are more than one JSON value")
	}
	for _, p := range t.Params {
		if p.Required && !v.Has(p.Name) {
			return Values{}, fmt.Errorf("argument %s is missing", p.Name)
		}
	}
	return v, nil
}

// read turns one JSON token into a value of the parameter's type.
func (p Param) read(tok json.Token) (any, error) {
	switch x := tok.(type) {
	case string:
		if p.Type == Text {
			return x, p.checkText(x)
		}
	case json.Number:
		if p.Type == Number {
			return p.number(x)
		}
	case bool:
		if p.Type == Boolean {
			return x, nil
		}
	}
	return nil, fmt.Errorf("argument %s must be a %s", p.Name, p.Type)
}

func (p Param) checkText(s string) error {
	switch {
	case s == "" && !p.Empty:
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
	case p.Min != nil && f < *p.Min:
		return 0, fmt.Errorf("argument %s must be at least %v", p.Name, *p.Min)
	case p.Max != nil && f > *p.Max:
		return 0, fmt.Errorf("argument %s must be at most %v", p.Name, *p.Max)
	}
	return f, nil
}
