package api_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// fullMatrix returns a valid matrix.
func fullMatrix() api.Matrix {
	var m api.Matrix
	for _, tier := range api.Tiers() {
		for _, task := range api.Tasks() {
			m = append(m, api.Cell{Tier: tier, Task: task, Models: []string{"m"}, MaxTokens: 1, Ceiling: -1})
		}
	}
	return m
}

func TestMatrixIsValidated(t *testing.T) {
	t.Parallel()
	if err := fullMatrix().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(api.Matrix) api.Matrix{
		`cell "high" "agent_turn": it is missing`:                                            func(m api.Matrix) api.Matrix { return m[1:] },
		`cell "high" "agent_turn": the cell is there twice`:                                  func(m api.Matrix) api.Matrix { return append(m, m[0]) },
		`cell "rich" "agent_turn": this is not a tier`:                                       func(m api.Matrix) api.Matrix { m[0].Tier = "rich"; return m },
		`cell "high" "gossip": this is not a task`:                                           func(m api.Matrix) api.Matrix { m[0].Task = "gossip"; return m },
		`cell "high" "agent_turn": maxTokens is 0: 1 to 1000000 are possible`:                func(m api.Matrix) api.Matrix { m[0].MaxTokens = 0; return m },
		`cell "high" "agent_turn": ceiling is 0: it is in micro-USD from 1, or -1 for none`:  func(m api.Matrix) api.Matrix { m[0].Ceiling = 0; return m },
		`cell "high" "agent_turn": ceiling is -2: it is in micro-USD from 1, or -1 for none`: func(m api.Matrix) api.Matrix { m[0].Ceiling = -2; return m },
		`cell "high" "agent_turn": "a b" is not the id of a model`:                           func(m api.Matrix) api.Matrix { m[0].Models = []string{"a b"}; return m },
		`cell "high" "agent_turn": "" is not the id of a model`:                              func(m api.Matrix) api.Matrix { m[0].Models = []string{""}; return m },
		`cell "high" "agent_turn": model "m" is named twice`:                                 func(m api.Matrix) api.Matrix { m[0].Models = []string{"m", "m"}; return m },
		`cell "high" "agent_turn": 17 models are more than 16`:                               func(m api.Matrix) api.Matrix { m[0].Models = make([]string, 17); return m },
		`cell "high" "agent_turn": without models, maxTokens and ceiling have to be 0`:       func(m api.Matrix) api.Matrix { m[0].Models = nil; return m },
	} {
		err := change(fullMatrix()).Validate()
		if api.CodeOf(err) != api.Invalid || !slices.Contains(api.Wire(err).Details, want) {
			t.Errorf("got %+v, want %s", err, want)
		}
	}
}

func TestDecodeMatrix(t *testing.T) {
	t.Parallel()
	whole, err := api.Encode(api.SetMatrix{Matrix: fullMatrix()})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := api.DecodeMatrix(whole); err != nil || len(m) != 25 {
		t.Errorf("got %d cells, %v; want 25", len(m), err)
	}
	if m, err := api.DecodeMatrix([]byte(`{}`)); err != nil || m != nil {
		t.Errorf("got %v, %v; want none: the built-in matrix", m, err)
	}
	for _, data := range []string{"", "{", "null null", `{"matriks":[]}`, `{"matrix":[]}`, `{"matrix":{}}`, `{"matrix":[{"ceiling":1e99}]}`, `[]`, string(whole) + "x", strings.Repeat(" ", 64<<10) + "{}"} {
		if _, err := api.DecodeMatrix([]byte(data)); api.CodeOf(err) != api.Invalid {
			t.Errorf("%.40q: got %v, want %s", data, err, api.Invalid)
		}
	}
}

// FuzzDecodeMatrix checks that a decoded matrix is complete and is decoded again from its
// encoding.
func FuzzDecodeMatrix(f *testing.F) {
	whole, err := api.Encode(api.SetMatrix{Matrix: fullMatrix()})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{whole, []byte(`{}`), []byte(`{"matrix":[{"tier":"high","task":"agent_turn","models":["a"],"maxTokens":-1}]}`)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := api.DecodeMatrix(data)
		if err != nil {
			if api.CodeOf(err) != api.Invalid {
				t.Errorf("got %v, want %s", err, api.Invalid)
			}
			return
		}
		if m == nil {
			return
		}
		again, err := api.Encode(api.SetMatrix{Matrix: m})
		if err != nil || len(m) != 25 {
			t.Fatalf("%d cells, %v", len(m), err)
		}
		if _, err := api.DecodeMatrix(again); err != nil {
			t.Errorf("its own encoding is refused: %v", err)
		}
	})
}
