package openai

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// maxRefusal is how much of a refusal's body is read, in bytes.
const maxRefusal = 64 << 10

// said is the message of a refusal whose body is not OpenAI's error object:
// {"error": "text"}, {"message": "text"}, {"detail": …}. It is empty for anything
// else, such as a page. The body can be read again afterwards.
func said(res *http.Response) string {
	if res == nil || res.Body == nil {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	res.Body = io.NopCloser(bytes.NewReader(data))
	if err != nil {
		return ""
	}
	var body struct {
		Error   json.RawMessage `json:"error"`
		Message json.RawMessage `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(data, &body) != nil {
		return ""
	}
	for _, raw := range []json.RawMessage{body.Error, body.Message, body.Detail} {
		if text := words(raw); text != "" {
			return text
		}
	}
	return ""
}

// words are the text of a message, or the compact JSON of one that has parts.
func words(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return strings.TrimSpace(text)
	}
	var object struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(raw, &object) == nil && object.Message != "" {
		return object.Message
	}
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return ""
	}
	return compact.String()
}
