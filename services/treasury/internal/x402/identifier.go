package x402

import (
	"encoding/json"
	"maps"
)

// identifierKey names the extension payment-identifier: the payer names its payment, so
// that a seller recognises a repeated request.
const identifierKey = "payment-identifier"

// Limits of an identifier, from the extension's specification.
const (
	minIdentifier = 16
	maxIdentifier = 128
)

type identifierInfo struct {
	Required bool   `json:"required"`
	ID       string `json:"id,omitempty"`
}

// declared is how a seller states that it reads the identifier.
var declared = map[string]any{identifierKey: map[string]any{
	"info": identifierInfo{},
	"schema": map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"type":    "object",
		"properties": map[string]any{
			"required": map[string]any{"type": "boolean"},
			"id":       map[string]any{"type": "string", "minLength": minIdentifier, "maxLength": maxIdentifier, "pattern": "^[a-zA-Z0-9_-]+$"},
		},
		"required": []string{"required"},
	},
}}

// ValidIdentifier reports whether a text can be a payment identifier.
func ValidIdentifier(id string) bool {
	if len(id) < minIdentifier || len(id) > maxIdentifier {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// Identified returns the extensions of a challenge with the identifier of its payment, or
// the extensions unchanged if the seller does not declare that it reads one.
func Identified(extensions map[string]json.RawMessage, id string) map[string]json.RawMessage {
	o, err := decode(extensions[identifierKey])
	if err != nil || !o.has("info") {
		return extensions
	}
	info, err := decode(o["info"])
	if err != nil {
		return extensions
	}
	info["id"] = encode(id)
	o["info"] = encode(info)
	all := maps.Clone(extensions)
	all[identifierKey] = encode(o)
	return all
}

// Identifier returns the identifier of a payment, "" if it has none. It refuses one that
// is not valid.
func (p *Payment) Identifier() (string, error) {
	o, err := decode(p.Extensions[identifierKey])
	if err != nil {
		return "", nil //nolint:nilerr // other programs ignore an extension that they cannot read
	}
	info, err := decode(o["info"])
	if err != nil {
		return "", nil //nolint:nilerr // as above
	}
	id, err := info.text("id")
	if err != nil || id != "" && !ValidIdentifier(id) {
		return "", fault(BadPayload, "the payment identifier is not %d to %d letters, digits, - and _", minIdentifier, maxIdentifier)
	}
	return id, nil
}
