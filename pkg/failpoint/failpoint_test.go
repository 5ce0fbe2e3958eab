package failpoint_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/failpoint"
)

func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for p, i := range failpoint.Table() {
		switch {
		case i.Name == "" || i.Before == "" || i.After == "" || len(i.Services) == 0:
			t.Errorf("point %d is not described: %+v", p, i)
		case strings.ContainsAny(i.Name, ": \n"):
			t.Errorf("%q cannot be armed", i.Name)
		case seen[i.Name]:
			t.Errorf("%s is there twice", i.Name)
		}
		seen[i.Name] = true
	}
}

// TestUses checks, for the code of pkg and services, that each point is passed somewhere
// and that Do and Value get only points of the table.
func TestUses(t *testing.T) {
	t.Parallel()
	points := constants(t)
	if len(points) != len(failpoint.Table()) {
		t.Fatalf("%d points in table.go and %d in the table", len(points), len(failpoint.Table()))
	}
	used := map[string]bool{}
	for _, root := range []string{"..", "../../services"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				filepath.Base(filepath.Dir(path)) == "failpoint" {
				return err
			}
			for _, fault := range uses(t, path, points, used) {
				t.Errorf("%s: %s", path, fault)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range points {
		if !used[p] {
			t.Errorf("no code passes failpoint.%s", p)
		}
	}
}

// constants returns the names of the points, in order.
func constants(t *testing.T) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "table.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && ast.IsExported(v.Names[0].Name) {
					names = append(names, v.Names[0].Name)
				}
			}
		}
		return true
	})
	return names
}

// uses records in used the points that a file names, and returns the places that pass a
// number or a conversion instead of a point.
func uses(t *testing.T, path string, points []string, used map[string]bool) (faults []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if of(n) && slices.Contains(points, n.Sel.Name) {
				used[n.Sel.Name] = true
			}
		case *ast.CallExpr:
			fun, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || !of(fun) {
				return true
			}
			if fun.Sel.Name == "Point" {
				faults = append(faults, "it makes a point of a number")
			}
			if (fun.Sel.Name == "Do" || fun.Sel.Name == "Value") && len(n.Args) == 3 {
				if _, number := n.Args[1].(*ast.BasicLit); number {
					faults = append(faults, "it passes a number for a point")
				}
			}
		}
		return true
	})
	return faults
}

// of reports whether a selector belongs to this package.
func of(s *ast.SelectorExpr) bool {
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "failpoint"
}

// TestPasses passes a point that is not armed: the step is called once, and its own
// result is returned.
func TestPasses(t *testing.T) {
	t.Parallel()
	own := errors.New("its own")
	n := 0
	if err := failpoint.Do(t.Context(), failpoint.LoopPersist, func(context.Context) error { n++; return own }); !errors.Is(err, own) || n != 1 {
		t.Errorf("got %v after %d steps, want its own error after one", err, n)
	}
	v, err := failpoint.Value(t.Context(), failpoint.LoopPersist, func(context.Context) (int, error) { return 7, nil })
	if v != 7 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
}

// sink keeps the compiler from eliminating the work.
var sink int64

//go:noinline
func work(_ context.Context, v int64) error {
	sink += v
	return nil
}

// BenchmarkDirect is the baseline of BenchmarkDo: without the build tag both cost the
// same.
func BenchmarkDirect(b *testing.B) {
	ctx, v := b.Context(), int64(1)
	for b.Loop() {
		_ = work(ctx, v)
	}
}

func BenchmarkDo(b *testing.B) {
	b.ReportAllocs()
	ctx, v := b.Context(), int64(1)
	for b.Loop() {
		_ = failpoint.Do(ctx, failpoint.LoopPersist, func(ctx context.Context) error { return work(ctx, v) })
	}
}
