package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// The types of a [Format].
const (
	FormatText   = "text"
	FormatObject = "json_object" // any JSON object
	FormatSchema = "json_schema" // JSON that a schema describes
)

// maxFormatName is the longest name of a schema in bytes.
const maxFormatName = 64

// Format is the form of an answer, as [Options.ResponseFormat] has it.
type Format struct {
	Type        string
	Name        string // of the schema
	Description string // of the schema
	Schema      json.RawMessage
	Strict      *bool
}

// format is the JSON of a [Format].
type format struct {
	Type   string        `json:"type"`
	Schema *formatSchema `json:"json_schema,omitempty"`
}

type formatSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"`
	Strict      *bool           `json:"strict,omitempty"`
}

// FormatOf reads a format in OpenAI's form. An empty one is that of a text. It returns an
// error for another type, and for a schema without a valid name or that is not a JSON
// object.
func FormatOf(raw json.RawMessage) (Format, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return Format{Type: FormatText}, nil
	}
	var in format
	if err := json.Unmarshal(raw, &in); err != nil {
		return Format{}, errors.New("the response format is not an object with a type")
	}
	f := Format{Type: in.Type}
	if s := in.Schema; s != nil {
		f.Name, f.Description, f.Schema, f.Strict = s.Name, s.Description, s.Schema, s.Strict
	}
	return f, f.check()
}

func (f Format) check() error {
	switch f.Type {
	case FormatText, FormatObject:
		return nil
	case FormatSchema:
	default:
		return fmt.Errorf("the response format %.40q is none of text, json_object, json_schema", f.Type)
	}
	if f.Name == "" || len(f.Name) > maxFormatName || bytes.ContainsFunc([]byte(f.Name), func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return fmt.Errorf("the response format needs a name of at most %d letters, digits, - and _ for its schema", maxFormatName)
	}
	if schema := bytes.TrimSpace(f.Schema); len(schema) == 0 || schema[0] != '{' {
		return errors.New("the response format needs a schema that is a JSON object")
	}
	return nil
}

// Encode returns the format in OpenAI's form, nil for a text. The errors are those of
// [FormatOf].
func (f Format) Encode() (json.RawMessage, error) {
	if err := f.check(); err != nil || f.Type == FormatText {
		return nil, err
	}
	out := format{Type: f.Type}
	if f.Type == FormatSchema {
		out.Schema = &formatSchema{f.Name, f.Description, f.Schema, f.Strict}
	}
	return json.Marshal(out)
}
