package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// decode parses arguments as strictly as the parser of package catalog: one JSON object
// without repeated keys. A server therefore cannot read other values than those that
// policy judged. Numbers have the types of the schema library. Empty arguments mean {}.
func decode(args json.RawMessage) (map[string]any, error) {
	if len(bytes.TrimSpace(args)) == 0 {
		return map[string]any{}, nil
	}
	if !utf8.Valid(args) {
		return nil, errors.New("the arguments are not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("the arguments are not a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the arguments are more than one JSON value")
	}
	return m, nil
}

var errJSON = errors.New("the arguments are not valid JSON")

func decodeValue(dec *json.Decoder, depth int) (any, error) {
	if depth > 64 {
		return nil, errors.New("the arguments are deeper than 64 levels")
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, errJSON
	}
	var value any
	switch tok {
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		value = list
	case json.Delim('{'):
		m := map[string]any{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, errJSON
			}
			name, _ := key.(string)
			if _, twice := m[name]; twice {
				return nil, fmt.Errorf("argument %.40q is given twice", name)
			}
			if m[name], err = decodeValue(dec, depth+1); err != nil {
				return nil, err
			}
		}
		value = m
	default:
		if n, ok := tok.(json.Number); ok {
			return number(n), nil
		}
		return tok, nil
	}
	if _, err := dec.Token(); err != nil { // the closing bracket
		return nil, errJSON
	}
	return value, nil
}

func number(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return n.String() // out of range for all number types
}
