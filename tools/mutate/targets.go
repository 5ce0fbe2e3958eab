package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// target is a part of the suite with the tests that guard it.
type target struct {
	name  string
	files []string // patterns from the root; mutants are made of these files
	tests []string // arguments of go test
	named []named
}

// named is a mutant that must always be killed: a safety rule that was once broken
// without a test that detected it. The field old must occur exactly once in the file.
type named struct{ file, old, with, operator string }

func targets() []target {
	return []target{
		{
			name:  "ledger",
			files: []string{"services/treasury/internal/ledger/*.go"},
			tests: []string{"./services/treasury/internal/..."},
			named: []named{
				{"services/treasury/internal/ledger/verify.go", "if t.Previous != a.head.Hash {", "if false {", "do not compare with the hash before"},
			},
		},
		{
			name:  "policy",
			files: []string{"services/policy/*.go", "services/policy/internal/rule/*.go"},
			tests: []string{"./services/policy/..."},
			named: []named{
				{"services/policy/handlers.go", `h.log.ErrorContext(ctx, "earlier decisions cannot be read", "err", err)`, "in.Facts = &rule.Facts{}", "count history that cannot be read as none"},
			},
		},
		{
			name:  "executor",
			files: []string{"pkg/executor/*.go", "pkg/api/trust.go"},
			tests: []string{"./pkg/executor", "./pkg/api"},
		},
		{
			name:  "journal",
			files: []string{"services/loop/internal/engine/*.go", "services/loop/internal/replay/*.go"},
			tests: []string{"./services/loop/internal/engine"},
			named: []named{
				{"services/loop/internal/engine/call.go", "(!there || tool.Effect == catalog.Irreversible)", "(there && tool.Effect == catalog.Irreversible)", "run an intent again whose tool is gone"},
			},
		},
		{
			name:  "router",
			files: []string{"services/inference-router/*.go", "services/inference-router/internal/model/*.go"},
			tests: []string{"./services/inference-router", "./services/inference-router/internal/model"},
			named: []named{
				{"services/inference-router/attempts.go", "if e.Kind == provider.Canceled || e.Kind == provider.Fatal {", "if e.Kind == provider.Canceled {", "ask again after a request was refused"},
				{"services/inference-router/attempts.go", "other.excluded, other.denied = true, false", "other.excluded, other.denied = false, false", "ask a model again whose failure lasts"},
				{"services/inference-router/attempts.go", "case c.tries < c.h.limits.attempts && (c.req.Run == \"\" || c.runFailures < c.h.limits.failures):", "case c.runFailures < c.h.limits.failures:", "leave out the budget of attempts"},
				{"services/inference-router/attempt.go", "return min(api.Micros(m.model.Cost(used.Tokens())), m.most)", "return api.Micros(m.model.Cost(used.Tokens()))", "settle more than the hold"},
				{"services/inference-router/attempt.go", "case res.Usage.Output > 0:", "case false:", "leave a broken stream unpaid"},
				{"services/inference-router/lost.go", "Cost: hold.Amount, At:", "Cost: 0, At:", "leave the attempt of a crashed router unpaid"},
			},
		},
		{
			name:  "sandbox",
			files: []string{"services/loop/internal/sandbox/*.go"},
			tests: []string{"./services/loop/internal/sandbox"},
			named: []named{
				{"services/loop/internal/sandbox/landlock_linux.go", `"/usr", "/bin",`, `"/usr", "/run", "/opt", "/srv", "/mnt", "/bin",`, "let the sandbox read more folders"},
				{"services/loop/internal/sandbox/seccomp_linux.go", "{unix.SYS_PTRACE, unix.EPERM},", "", "allow ptrace"},
				{"services/loop/internal/sandbox/seccomp_linux.go", "{unix.SYS_PROCESS_VM_READV, unix.EPERM},", "", "allow process_vm_readv"},
			},
		},
		{
			name:  "http",
			files: []string{"pkg/host/http.go", "pkg/host/body.go"},
			tests: []string{"-run", "TestEdge|TestOpsHost|TestSlowBody|TestBody|TestStatusOf|TestEveryRoute|TestHTTPGuards", "./pkg/host", "./cmd/anima"},
			named: []named{
				{"pkg/host/http.go", `open: c.Token.Reveal() == ""`, "open: false", "let the empty token open everything"},
				{"services/loop/http.go", `r.Handle("DELETE /v1/runs/{id}"`, `r.Public("DELETE /v1/runs/{id}"`, "make a route public"},
			},
		},
	}
}

// namedMutants returns the named mutants. A text that does not occur exactly once in its
// file is an error, because the table does not match the code.
func (t target) namedMutants(root string) ([]mutant, error) {
	var all []mutant
	for _, n := range t.named {
		src, err := os.ReadFile(filepath.Join(root, n.file))
		if err != nil {
			return nil, err
		}
		if got := strings.Count(string(src), n.old); got != 1 {
			return nil, fmt.Errorf("%s has %d times %q, want once: bring the table in targets.go up to date", n.file, got, n.old)
		}
		begin := strings.Index(string(src), n.old)
		all = append(all, apply(change{begin, begin + len(n.old), n.with, n.operator}, n.file, src, t.tests))
	}
	return all, nil
}
