package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// registeredRoutes parses the services' sources and returns every HTTP pattern that they
// register, in two lists: those that require the operator's token and those that do not.
func registeredRoutes(t *testing.T) (guarded, public []string) {
	t.Helper()
	err := filepath.WalkDir("../../services", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Handle" && sel.Sel.Name != "Public" {
				return true
			}
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s registers a route whose pattern is no literal: this test cannot check it", path)
				return true
			}
			pattern, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if sel.Sel.Name == "Public" {
				public = append(public, pattern)
			} else {
				guarded = append(guarded, pattern)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(public)
	return guarded, slices.Compact(public) // a route has another handler where its service has no chain
}

// TestEveryRouteAsksForTheToken requests all registered routes without the token. The
// public ones are listed here: they authenticate their callers by a signature, or by the
// token or key that a signature gives, or they are paid for, or they only say what can be
// paid or whose wallet an agent is.
func TestEveryRouteAsksForTheToken(t *testing.T) {
	t.Parallel()
	guarded, public := registeredRoutes(t)
	want := []string{
		"/anthropic/", // no route: its error has the form of the protocol
		"DELETE /v1/auth/api-keys/{id}", "GET /.well-known/agent-card.json", "GET /pay/{usd}/{address}", "GET /v1/auth/api-keys", "GET /v1/messages/count", "GET /x402/supported",
		"POST /v1/auth/api-keys", "POST /v1/auth/nonce", "POST /v1/auth/verify", "POST /v1/automatons/register", "POST /v1/messages", "POST /v1/messages/poll",
	}
	if diff := cmp.Diff(want, public); diff != "" {
		t.Errorf("public routes (-want +got):\n%s", diff)
	}
	if len(guarded) < 16 {
		t.Fatalf("found %d guarded routes, want 16 at least: %v", len(guarded), guarded)
	}
	u := newMachine(t).up()
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	for _, pattern := range guarded {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			t.Errorf("%q names no method", pattern)
			continue
		}
		path = parameter.ReplaceAllString(path, "lucky")
		for _, header := range []map[string]string{nil, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}, {"X-Wallet-Address": "0x0"}} {
			res := request(t, method, u.HTTP+path, "", header)
			if res.status != http.StatusUnauthorized || res.fault(t).Code != api.Denied {
				t.Errorf("%s with %v: got %d %s, want 401", pattern, header, res.status, res.body)
			}
		}
	}
}
