#!/usr/bin/env bash
# Runs every fuzz target of the workspace for a while, one after the other.
set -euo pipefail
time=${1:-10s}
go list -f '{{.Dir}}' work | while read -r dir; do
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | sed 's/^func //' | sort -u); do
    echo "fuzz ${dir#"$PWD"/} $target"
    (cd "$dir" && go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" . </dev/null | grep -vE '^(fuzz: elapsed|PASS|ok)' || [ "${PIPESTATUS[0]}" = 0 ])
  done
done
