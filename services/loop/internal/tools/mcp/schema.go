package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
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
		return s, fmt.Errorf("its schema is not valid: %w", sanitizeError(err))
	}
	if s.resolved, err = parsed.Resolve(nil); err != nil {
		return s, fmt.Errorf("its schema is not valid: %w", sanitizeError(err))
	}
	return s, nil
}

// sanitizeError returns an error without hidden instructions; the text of err may contain text of
// the server.
func sanitizeError(err error) error {
	return errors.New(defused(err.Error(), maxText))
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
		return fmt.Errorf("the arguments do not fit the tool's schema: %w", sanitizeError(err))
	}
	return nil
}
