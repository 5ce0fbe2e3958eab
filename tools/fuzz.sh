#!/usr/bin/env bash
# Runs every fuzz target of the workspace for the given time (default 10s), one after the
# other.
set -euo pipefail
time=${1:-10s}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# once TARGET runs a fuzz target of the current folder. It prints the output without
# progress lines and returns the exit code.
once() {
  local code=0
  go test -run '^$' -fuzz "^$1\$" -fuzztime "$time" . </dev/null >"$out" 2>&1 || code=$?
  grep -vE '^(fuzz: elapsed|PASS|ok)' "$out" || true
  return "$code"
}

# ended succeeds if the only failure is the end of the time. Go before 1.27 may report the
# end of -fuzztime as a failure of the target (golang/go#75804). An input that fails is
# always written to a file, so it cannot be confused with that.
ended() {
  grep -qx '    context deadline exceeded' "$out" && ! grep -q 'Failing input written' "$out"
}

go list -f '{{.Dir}}' work | while read -r dir; do
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | sed 's/^func //' | sort -u); do
    echo "fuzz ${dir#"$PWD"/} $target"
    cd "$dir"
    for try in 1 2 3; do
      once "$target" && break
      if [ "$try" = 3 ] || ! ended; then exit 1; fi
      echo "retrying: golang/go#75804"
    done
    cd - >/dev/null
  done
done
