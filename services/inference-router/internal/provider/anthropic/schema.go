package anthropic

import (
	"encoding/json"

	"github.com/tidwall/gjson"
)

// maxDepth bounds the nesting of the objects that [closed] changes.
const maxDepth = 64

// closed returns the schema of an answer in which each object that says nothing about further
// properties forbids them, because the protocol requires that. An answer to it is an answer to
// the given schema, too. The order of the properties is kept: models answer in it. The parts
// of an allOf stay as they are, because each would forbid the properties of the others.
func closed(schema json.RawMessage) json.RawMessage {
	return appendClosed(nil, gjson.ParseBytes(schema), maxDepth)
}

func appendClosed(out []byte, schema gjson.Result, depth int) []byte {
	if !schema.IsObject() || depth == 0 {
		return append(out, schema.Raw...)
	}
	open := false
	if kind := schema.Get("type"); kind.Str == "object" || kind.Get(`#(=="object")`).Exists() {
		open = !schema.Get("additionalProperties").Exists()
	}
	out = append(out, '{')
	schema.ForEach(func(name, v gjson.Result) bool {
		out = append(append(separated(out), name.Raw...), ':')
		switch name.Str {
		case "items":
			out = appendClosed(out, v, depth-1)
		case "properties", "$defs", "definitions", "anyOf", "oneOf", "prefixItems":
			out = appendAll(out, v, depth-1)
		default:
			out = append(out, v.Raw...)
		}
		return true
	})
	if open {
		out = append(separated(out), `"additionalProperties":false`...)
	}
	return append(out, '}')
}

// appendAll appends the schemas of a list, or those that an object has by name.
func appendAll(out []byte, all gjson.Result, depth int) []byte {
	if !all.IsObject() && !all.IsArray() {
		return append(out, all.Raw...)
	}
	out = append(out, all.Raw[0])
	all.ForEach(func(name, v gjson.Result) bool {
		if out = separated(out); all.IsObject() {
			out = append(append(out, name.Raw...), ':')
		}
		out = appendClosed(out, v, depth)
		return true
	})
	return append(out, all.Raw[len(all.Raw)-1])
}

// separated returns JSON with a comma before the next member of the list or object that it
// ends in.
func separated(out []byte) []byte {
	if last := out[len(out)-1]; last != '{' && last != '[' {
		out = append(out, ',')
	}
	return out
}
