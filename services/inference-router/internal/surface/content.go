package surface

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// openAIPart is a part of a content in the two protocols of OpenAI. They differ in the
// types and in the field of an image, which is an object or a text.
type openAIPart struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Refusal string          `json:"refusal"`
	Image   json.RawMessage `json:"image_url"`
	Detail  string          `json:"detail"` // of an image in the protocol of responses
}

// messageOf returns a message with a content, which is a string, null or a list of parts.
// The role developer is that of the system. Only the user may have images.
func messageOf(role string, raw json.RawMessage) (api.ChatMessage, error) {
	return contentOf(role, raw, role == provider.User)
}

// contentOf is [messageOf] for a message that may have images or not.
func contentOf(role string, raw json.RawMessage, images bool) (api.ChatMessage, error) {
	out := api.ChatMessage{Role: role}
	switch role {
	case provider.System, provider.User, provider.Assistant, provider.ToolRole:
	case "developer":
		out.Role = provider.System
	default:
		return out, fmt.Errorf("role %.40q is none of system, developer, user, assistant, tool", role)
	}
	if len(notNull(raw)) == 0 {
		return out, nil
	}
	if text, ok := stringOf(raw); ok {
		out.Content = text
		return out, nil
	}
	parts, ok := listOf(raw, func(kind, text string) openAIPart { return openAIPart{Type: kind, Text: text} })
	if !ok {
		return out, errors.New("the content is neither a text nor a list of parts")
	}
	var content chat.Builder
	for _, p := range parts {
		switch {
		case p.Type == "text", p.Type == "input_text", p.Type == "output_text": // the latter two in a response
			content.Add(chat.Part{Text: p.Text})
		case p.Type == "refusal":
			content.Add(chat.Part{Text: p.Refusal})
		case (p.Type == "image_url" || p.Type == "input_image") && images:
			picture, err := p.image()
			if err != nil {
				return out, fmt.Errorf("a part of type %q: %w", p.Type, err)
			}
			content.Add(chat.Part{Image: &picture})
		default:
			return out, fmt.Errorf("a part of type %q is not supported for the role %s", p.Type, role)
		}
	}
	content.Fill(&out)
	return out, nil
}

// image returns the image of a part.
func (p openAIPart) image() (api.Image, error) {
	address, ok := stringOf(p.Image)
	if !ok {
		var object struct {
			URL    string `json:"url"`
			Detail string `json:"detail"`
		}
		if json.Unmarshal(p.Image, &object) != nil {
			return api.Image{}, errors.New("its image_url is missing; files are not supported")
		}
		address, p.Detail = object.URL, object.Detail
	}
	picture, err := chat.ImageOf(address)
	if p.Detail != "auto" { // the default
		picture.Detail = p.Detail
	}
	return picture, err
}

// textOf returns the text of a content without images.
func textOf(raw json.RawMessage) (string, error) {
	m, err := messageOf(provider.System, raw)
	return m.Content, err
}

// addTool adds a tool. function says that the caller executes it. Names are checked by the
// providers, whose rules differ.
func addTool(all *[]api.Tool, t api.Tool, function bool) error {
	switch {
	case t.Name == "" || !function:
		return errors.New("a function with a name is needed; tools of the server are not supported")
	case slices.ContainsFunc(*all, func(o api.Tool) bool { return o.Name == t.Name }):
		return fmt.Errorf("there is another tool %.80q", t.Name)
	case len(t.Schema) > 0 && t.Schema[0] != '{':
		return errors.New("the schema of its arguments is not an object")
	}
	t.Schema = withProperties(t.Schema)
	*all = append(*all, t)
	return nil
}

// withProperties returns a schema that has properties. OpenAI refuses the schema of an object
// without them, which clients of other protocols send for a tool without arguments.
func withProperties(schema json.RawMessage) json.RawMessage {
	if s := gjson.ParseBytes(schema); s.Get("type").Str != "object" || s.Get("properties").Exists() {
		return schema
	}
	return append([]byte(`{"properties":{},`), schema[1:]...)
}

// checkEffort checks the effort of reasoning. A provider decides which words it takes.
func checkEffort(word string) error {
	if len(word) > 16 || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") != "" {
		return invalid("the reasoning effort %.40q is not a word", word)
	}
	return nil
}
