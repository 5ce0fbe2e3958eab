#!/usr/bin/env bash
# Prints the functions of the workspace that nothing calls, and fails if there are any:
#   - in cmd and services, those that no program calls. A helper that only tests call
#     belongs in a _test.go file or in a package for tests;
#   - elsewhere, those that neither a program nor a test calls, because pkg and e2e also
#     contain packages for tests.
#   tools/deadcode.sh PROGRAM      PROGRAM is golang.org/x/tools/cmd/deadcode
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
program=$1
module=github.com/anima-run/anima

# Accessors for tests in other packages, which cannot be in a _test.go file.
accessors='Ledger\.Queued|DefaultTools'

mapfile -t programs < <(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' work)
found=$("$program" -filter "^$module/(cmd|services)\b" "${programs[@]}"
  "$program" -test -filter "^$module/(pkg|e2e)\b" work)
found=$(grep -vE "unreachable func: ($accessors)\$" <<<"$found" || true)
[ -z "$found" ] || { echo "$found"; echo 'delete these functions, or move them to test files' >&2; exit 1; }
