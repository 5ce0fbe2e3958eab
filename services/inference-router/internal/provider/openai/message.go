package openai

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// maxRefusal is the most bytes read of the body of a refusal.
const maxRefusal = 64 << 10

// refusalMessage returns the message of a refusal whose body is not OpenAI's error object
// but one of {"error": "text"}, {"message": "text"} or {"detail": …}. It is empty for any
// other body, such as a web page. The body can be read again afterwards.
func refusalMessage(res *http.Response) string {
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
		if text := messageText(raw); text != "" {
			return text
		}
	}
	return ""
}

// messageText returns the text of a message, or its compact JSON if it is neither a
// string nor an object with a message.
func messageText(raw json.RawMessage) string {
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
