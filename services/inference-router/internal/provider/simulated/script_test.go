package simulated_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
)

func TestParseSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	rule := func(r string) string { return `{"model":"m","rules":[` + r + `]}` }
	step := func(s string) string { return rule(`{"when":{"last_user":"(a)"},"steps":[` + s + `]}`) }
	for script, want := range map[string]string{
		``:                                  "read the script",
		`{"model":"m"} {}`:                  "data after its end",
		`{"model":"m","rule":[]}`:           `unknown field "rule"`,
		`{}`:                                "no model",
		`{"model":"m","context_window":-1}`: "context_window",
		rule(`{"when":{},"steps":[{"text":"x"}]}`):   "rules[0]: when needs",
		rule(`{"when":{"last_user":"a"}}`):           "rules[0]: it has no steps",
		rule(`{"when":{"system":"("},"steps":[{}]}`): "rules[0]: system: error parsing regexp",
		step(`{}`): "rules[0]: steps[0]: it has neither",
		step(`{"text":"x"},{"text":"{{.Nobody}}"}`):                                "rules[0]: steps[1]: text: template",
		step(`{"text":"{{index .Match 2}}"}`):                                      "steps[0]: text: template",
		step(`{"text":"{{"}`):                                                      "steps[0]: text: template",
		step(`{"tool_calls":[{"name":""}]}`):                                       "tool_calls[0]: it has no name",
		step(`{"tool_calls":[{"name":"f","arguments":[1]}]}`):                      "tool_calls[0]: arguments is not a JSON object",
		step(`{"tool_calls":[{"name":"f","arguments":null}]}`):                     "tool_calls[0]: arguments is not a JSON object",
		step(`{"tool_calls":[{"name":"f","arguments":{"a":["{{index .X 1}}"]}}]}`): "tool_calls[0]: a: ",
		step(`{"text":"x","delay_ms":-1}`):                                         "delays",
		step(`{"error":{"status":200}}`):                                           "status is 400 to 599",
		step(`{"error":{"status":500,"times":1}}`):                                 "nor an error without times",
		`{"model":"m","default":{"steps":[{"text":"{{index .Match 1}}"}]}}`:        "default: steps[0]: text",
	} {
		_, err := simulated.Parse([]byte(script))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", script, err, want)
		}
	}
}

// FuzzParse checks that each valid script can be encoded and parsed again.
func FuzzParse(f *testing.F) {
	f.Add(`{"model":"m","rules":[{"when":{"last_user":"(a)"},"steps":[{"text":"{{index .Match 1}}","tool_calls":[{"name":"f","arguments":{"x":["{{.User}}"]}}]}]}]}`)
	f.Add(`{"model":"m","default":{"steps":[{"error":{"status":500}}]}}`)
	f.Fuzz(func(t *testing.T, script string) {
		s, err := simulated.Parse([]byte(script))
		if err != nil {
			return
		}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := simulated.Parse(data); err != nil {
			t.Errorf("%s: %v", data, err)
		}
	})
}
