package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// Limits of a schema.
const (
	maxSchema   = 32 << 10 // bytes, after rebuilding
	maxNodes    = 2_000    // subschemas, with references expanded
	maxAllNodes = 50_000   // subschemas of all tools of a server
	maxDepth    = 24
	maxText     = 500 // characters of a description
)

// schema is the input schema of a tool, as text for the model and in the form that checks
// arguments.
type schema struct {
	text     json.RawMessage
	resolved *jsonschema.Resolved
}

// compile rebuilds a schema from the keywords that it supports. It drops keywords that
// constrain nothing and defuses descriptions. It refuses a schema that is not of an
// object, refers to itself or to another document, is too large, or has hidden
// instructions in a name or value. budget is the number of subschemas that remain for all
// tools of the server; compile reduces it.
func compile(raw any, budget *int) (s schema, err error) {
	defer func() {
		if v := recover(); v != nil { // a panic of the library on an unusual schema
			s, err = schema{}, errors.New("its schema cannot be read")
		}
	}()
	root, ok := raw.(map[string]any)
	if !ok || root["type"] != "object" {
		return s, errors.New("its schema is not that of an object")
	}
	if *budget <= 0 {
		return s, errors.New("the schemas of its server are too large together")
	}
	var r rebuild
	defer func() { *budget -= r.nodes }()
	clean, err := r.node(root, 0)
	if err != nil {
		return s, err
	}
	m, ok := clean.(map[string]any)
	if !ok {
		return s, errors.New("its schema is not that of an object")
	}
	if m["properties"] == nil {
		m["properties"] = map[string]any{} // some models require the key
	}
	e := expansion{root: m, sizes: map[string]int{}}
	if _, err := e.size(m); err != nil {
		return s, err
	}
	if s.text, err = json.Marshal(m); err != nil {
		return s, errors.New("its schema cannot be written")
	}
	if len(s.text) > maxSchema {
		return s, fmt.Errorf("its schema has %d bytes, at most %d are taken", len(s.text), maxSchema)
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(s.text, &parsed); err != nil {
		return s, fmt.Errorf("its schema is not valid: %w", calm(err))
	}
	if s.resolved, err = parsed.Resolve(nil); err != nil {
		return s, fmt.Errorf("its schema is not valid: %w", calm(err))
	}
	return s, nil
}

// calm returns an error without hidden instructions; the text of err may contain text of
// the server.
func calm(err error) error {
	return errors.New(defused(err.Error(), maxText))
}

// kind is the type of a keyword's value.
type kind int

const (
	other    kind = iota // numbers, booleans, lists of names: kept unchanged if they hide no instructions
	aSchema              // a schema, true or false, or in older drafts a list of schemas
	schemas              // a list of schemas
	named                // schemas by name
	text                 // shown to the model
	fallback             // a default value, which constrains nothing
	ref
)

// keywords are the keywords of JSON Schema 2020-12 and draft 7 that are kept.
var keywords = map[string]kind{
	"type": other, "enum": other, "const": other, "required": other, "dependentRequired": other, "pattern": other, "format": other,
	"minimum": other, "maximum": other, "exclusiveMinimum": other, "exclusiveMaximum": other, "multipleOf": other,
	"minLength": other, "maxLength": other, "minItems": other, "maxItems": other, "uniqueItems": other, "minContains": other, "maxContains": other,
	"minProperties": other, "maxProperties": other,
	"items": aSchema, "additionalItems": aSchema, "additionalProperties": aSchema, "contains": aSchema, "propertyNames": aSchema,
	"not": aSchema, "if": aSchema, "then": aSchema, "else": aSchema, "unevaluatedItems": aSchema, "unevaluatedProperties": aSchema,
	"allOf": schemas, "anyOf": schemas, "oneOf": schemas, "prefixItems": schemas,
	"properties": named, "patternProperties": named, "dependentSchemas": named, "$defs": named, "definitions": named,
	"description": text, "default": fallback, "$ref": ref,
}

// rebuild is the state of rebuilding a schema.
type rebuild struct{ nodes int }

var (
	errDeep  = fmt.Errorf("its schema is deeper than %d levels", maxDepth)
	errLarge = fmt.Errorf("its schema has more than %d parts", maxNodes)
	errShape = errors.New("its schema has a keyword with a value of the wrong type")
	errNames = errors.New("its schema hides instructions in a name or a value")
)

func (r *rebuild) node(v any, depth int) (any, error) {
	if b, ok := v.(bool); ok {
		return b, nil
	}
	m, ok := v.(map[string]any)
	switch r.nodes++; {
	case !ok:
		return nil, errShape
	case depth > maxDepth:
		return nil, errDeep
	case r.nodes > maxNodes:
		return nil, errLarge
	}
	out := make(map[string]any, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		kind, known := keywords[key]
		if !known {
			continue
		}
		value, keep, err := r.value(kind, m[key], depth)
		if err != nil {
			return nil, err
		}
		if keep {
			out[key] = value
		}
	}
	return out, nil
}

func (r *rebuild) value(k kind, v any, depth int) (_ any, keep bool, err error) {
	switch k {
	case text:
		s, ok := v.(string)
		return defused(s, maxText), ok, nil
	case fallback:
		return v, innocent(v, depth), nil
	case ref:
		if s, ok := v.(string); !ok || definition(s) == "" {
			return nil, false, errors.New("its schema refers to something other than its own $defs")
		}
		return v, true, nil
	case named:
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false, errShape
		}
		out := make(map[string]any, len(m))
		for name, sub := range m {
			if !innocent(name, depth) {
				return nil, false, errNames
			}
			if out[name], err = r.node(sub, depth+1); err != nil {
				return nil, false, err
			}
		}
		return out, true, nil
	case aSchema, schemas:
		list, ok := v.([]any)
		if !ok {
			if k == schemas {
				return nil, false, errShape
			}
			v, err = r.node(v, depth+1)
			return v, true, err
		}
		out := make([]any, len(list))
		for i, sub := range list {
			if out[i], err = r.node(sub, depth+1); err != nil {
				return nil, false, err
			}
		}
		return out, true, nil
	case other:
	}
	if !innocent(v, depth) {
		return nil, false, errNames
	}
	return v, true, nil
}

// innocent reports whether a value contains no text that would be defused, no text over
// 1,000 bytes, and at most maxDepth levels.
func innocent(v any, depth int) bool {
	switch x := v.(type) {
	case string:
		return len(x) <= 1_000 && sanitize.Instructions(x) == x
	case []any:
		return depth < maxDepth && !slices.ContainsFunc(x, func(e any) bool { return !innocent(e, depth+1) })
	case map[string]any:
		for k, e := range x {
			if depth >= maxDepth || !innocent(k, depth+1) || !innocent(e, depth+1) {
				return false
			}
		}
	}
	return true
}

// definition returns the "<keyword>/<name>" of a reference to a definition, or "" for any
// other reference.
func definition(ref string) string {
	for _, keyword := range []string{"$defs", "definitions"} {
		if name, ok := strings.CutPrefix(ref, "#/"+keyword+"/"); ok && name != "" && !strings.ContainsAny(name, "/~%") {
			return keyword + "/" + name
		}
	}
	return ""
}

// expansion measures a schema with all references expanded. It refuses references that
// form a cycle, for which a check would not terminate, and those whose expansion is too
// large, for which a check would take too long.
type expansion struct {
	root  map[string]any
	sizes map[string]int // sizes of definitions; -1 while one is measured
}

func (e *expansion) size(v any) (total int, err error) {
	add := func(n int, err error) error {
		if total += n; err == nil && total > maxNodes {
			err = errLarge
		}
		return err
	}
	switch x := v.(type) {
	case []any:
		for _, sub := range x {
			if err := add(e.size(sub)); err != nil {
				return 0, err
			}
		}
	case map[string]any:
		total++
		for key, sub := range x {
			measure := e.size
			if _, ok := sub.(string); ok && key == "$ref" {
				measure = e.definition
			}
			if err := add(measure(sub)); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

// definition returns the size of the definition that a reference names.
func (e *expansion) definition(ref any) (int, error) {
	at := definition(ref.(string))
	switch n, known := e.sizes[at]; {
	case n < 0:
		return 0, errors.New("its schema refers to itself")
	case known:
		return n, nil
	}
	keyword, name, _ := strings.Cut(at, "/")
	defs, _ := e.root[keyword].(map[string]any)
	body, ok := defs[name]
	if !ok {
		return 0, errors.New("its schema refers to a definition that it does not have")
	}
	e.sizes[at] = -1
	n, err := e.size(body)
	e.sizes[at] = n
	return n, err
}

// check returns an error for the model if the arguments do not fit the schema.
func (s schema) check(args json.RawMessage) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("the arguments cannot be checked with the tool's schema")
		}
	}()
	v, err := decode(args)
	if err != nil {
		return err
	}
	if err := s.resolved.Validate(v); err != nil {
		return fmt.Errorf("the arguments do not fit the tool's schema: %w", calm(err))
	}
	return nil
}

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
