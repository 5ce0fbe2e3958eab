#!/usr/bin/env bash
# Runs every fuzz target of the workspace for the given time (default 10s), one after the
# other. The test program of a package is built once, for all its targets.
set -euo pipefail
time=${1:-10s}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out

# once TARGET CACHE runs a fuzz target of the current folder. It prints the output without
# progress lines and returns the exit code.
once() {
  local code=0
  "$work/test" -test.run '^$' -test.fuzz "^$1\$" -test.fuzztime "$time" -test.fuzzcachedir "$2" </dev/null >"$out" 2>&1 || code=$?
  grep -vE '^(fuzz: elapsed|PASS)' "$out" || true
  ! grep -q 'not built with coverage instrumentation' "$out" || return 1
  return "$code"
}

# ended succeeds if the only failure is the end of the time. Go before 1.27 may report the
# end of -fuzztime as a failure of the target (golang/go#75804). An input that fails is
# always written to a file, so it cannot be confused with that.
ended() {
  grep -qx '    context deadline exceeded' "$out" && ! grep -q 'Failing input written' "$out"
}

cache=$(go env GOCACHE)/fuzz # that of go test -fuzz
go list -f '{{.Dir}} {{.ImportPath}}' work | while read -r dir path; do
  targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | sed 's/^func //' | sort -u) || continue
  cd "$dir"
  go test -c -fuzz . -o "$work/test" .
  for target in $targets; do
    echo "fuzz ${dir#"$OLDPWD"/} $target"
    for try in 1 2 3; do
      once "$target" "$cache/$path" && break
      if [ "$try" = 3 ] || ! ended; then exit 1; fi
      echo "retrying: golang/go#75804"
    done
  done
  cd - >/dev/null
done
