package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one source file with one change.
type mutant struct {
	file     string // path from the root
	line     int
	operator string
	text     string // the source line that is changed, trimmed
	source   []byte
	tests    []string // arguments of go test
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d %s: %s", m.file, m.line, m.operator, m.text)
}

// change replaces the bytes from begin to end of a file.
type change struct {
	begin, end int
	with       string
	operator   string
}

// drawnMutants returns every mutant that the operators can make of a target's files.
func (t target) drawnMutants(root string) ([]mutant, error) {
	var all []mutant
	for _, pattern := range t.files {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			changes, err := changesOf(src)
			if err != nil {
				return nil, err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			for _, c := range changes {
				all = append(all, apply(c, file, src, t.tests))
			}
		}
	}
	return all, nil
}

// apply returns the mutant of a change.
func apply(c change, file string, src []byte, tests []string) mutant {
	broken := append(append(append([]byte{}, src[:c.begin]...), c.with...), src[c.end:]...)
	from := strings.LastIndexByte(string(src[:c.begin]), '\n') + 1
	text := string(src[from:])
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		text = text[:end]
	}
	return mutant{
		file: file, line: 1 + strings.Count(string(src[:c.begin]), "\n"), operator: c.operator,
		text: strings.TrimSpace(text), source: broken, tests: tests,
	}
}

// opposites maps operators to their replacements.
func opposites() map[token.Token]string {
	return map[token.Token]string{
		token.EQL: "!=", token.NEQ: "==", token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
		token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+",
	}
}

// changesOf returns the changes that the operators can make in a file.
func changesOf(src []byte) ([]change, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return files.Position(p).Offset }
	var all []change
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR || n.Tok == token.CONST
		case *ast.IfStmt:
			begin, end := at(n.Cond.Pos()), at(n.Cond.End())
			all = append(all, change{begin, end, "!(" + string(src[begin:end]) + ")", "negate the condition"})
		case *ast.BinaryExpr:
			if with, ok := opposites()[n.Op]; ok {
				begin := at(n.OpPos)
				all = append(all, change{begin, begin + len(n.Op.String()), with, "replace " + n.Op.String() + " by " + with})
			}
		case *ast.ExprStmt:
			if _, ok := n.X.(*ast.CallExpr); ok {
				all = append(all, change{at(n.Pos()), at(n.End()), "", "remove the call"})
			}
		case *ast.ReturnStmt:
			all = append(all, nilErrors(n, src, at)...)
		}
		return true
	})
	return all, nil
}

// nilErrors replaces the error that a function returns as its last result with nil.
func nilErrors(n *ast.ReturnStmt, src []byte, at func(token.Pos) int) []change {
	if len(n.Results) == 0 {
		return nil
	}
	last := n.Results[len(n.Results)-1]
	begin, end := at(last.Pos()), at(last.End())
	if text := string(src[begin:end]); text != "err" && !strings.HasPrefix(text, "api.Errorf") && !strings.HasPrefix(text, "&api.Error{") {
		return nil
	}
	return []change{{begin, end, "nil", "return no error"}}
}
