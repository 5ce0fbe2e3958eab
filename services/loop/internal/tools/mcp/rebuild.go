package mcp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

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
		return v, harmless(v, depth), nil
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
			if !harmless(name, depth) {
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
	if !harmless(v, depth) {
		return nil, false, errNames
	}
	return v, true, nil
}

// harmless reports whether a value contains no text that would be defused, no text over
// 1,000 bytes, and at most maxDepth levels.
func harmless(v any, depth int) bool {
	switch x := v.(type) {
	case string:
		return len(x) <= 1_000 && sanitize.Instructions(x) == x
	case []any:
		return depth < maxDepth && !slices.ContainsFunc(x, func(e any) bool { return !harmless(e, depth+1) })
	case map[string]any:
		for k, e := range x {
			if depth >= maxDepth || !harmless(k, depth+1) || !harmless(e, depth+1) {
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
