package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestAdvice checks that Advice has a specific text for every reason of errors.go, and
// a text for every code.
func TestAdvice(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == 1 && len(spec.Values) == 1 {
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok && strings.HasPrefix(spec.Names[0].Name, "Reason") {
				reasons[spec.Names[0].Name], _ = strconv.Unquote(lit.Value)
			}
		}
		return true
	})
	if len(reasons) < 20 || reasons["ReasonInsufficient"] != api.ReasonInsufficient {
		t.Fatalf("found %d reasons: %v", len(reasons), reasons)
	}
	const unknown = api.Code("unknown")
	otherwise := api.Advice(&api.Error{Code: unknown})
	for name, reason := range reasons {
		if got := api.Advice(&api.Error{Code: unknown, Reason: reason}); got == otherwise {
			t.Errorf("%s has no advice: add it to Advice", name)
		}
	}
	for _, code := range []api.Code{api.Invalid, api.NotFound, api.Conflict, api.Denied, api.Unavailable, api.Internal} {
		if got := api.Advice(&api.Error{Code: code}); !strings.Contains(got, "anima ") {
			t.Errorf("%s: got %q, want the name of a command", code, got)
		}
	}
	if got := api.Advice(&api.Error{Code: api.Denied, Reason: api.ReasonInsufficient}); !strings.Contains(got, "anima agent fund") {
		t.Errorf("no money: got %q", got)
	}
	if got := api.Advice(&api.Error{Code: api.Invalid, Next: "ask"}); got != "ask" {
		t.Errorf("got %q, want what the error says itself", got)
	}
}
