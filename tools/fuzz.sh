#!/usr/bin/env bash
# Runs every fuzz target of the workspace for the given time (default 10s). One package is
# fuzzed per processor, its targets one after the other. The test program of a package is
# built once, for all its targets.
#   tools/fuzz.sh [TIME [N/PARTS]]      PARTS parts of the packages, of which N, from 0, is used
set -euo pipefail
export time=${1:-10s}
part=${2:-0/1}
export root=$PWD
export cache; cache=$(go env GOCACHE)/fuzz # that of go test -fuzz
work=$(mktemp -d)
export work
trap 'rm -rf "$work"' EXIT

# once TARGET CACHE PROGRAM runs a fuzz target of the current folder. It writes the output
# beside the program, prints it without progress lines and returns the exit code.
once() {
  local code=0 out=$3.out
  "$3" -test.run '^$' -test.fuzz "^$1\$" -test.fuzztime "$time" -test.fuzzcachedir "$2" -test.parallel 1 </dev/null >"$out" 2>&1 || code=$?
  grep -vE '^(fuzz: elapsed|PASS)' "$out" || true
  ! grep -q 'not built with coverage instrumentation' "$out" || return 1
  return "$code"
}

# ended OUTPUT succeeds if the only failure is the end of the time. Go before 1.27 may
# report the end of -fuzztime as a failure of the target (golang/go#75804). An input that
# fails is always written to a file, so it cannot be confused with that.
ended() {
  grep -qx '    context deadline exceeded' "$1" && ! grep -q 'Failing input written' "$1"
}

# package DIR PATH fuzzes the targets of a package.
package() {
  set -euo pipefail
  cd "$1"
  local targets program=$work/${2//\//-} target try
  targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' ./*_test.go | sed 's/^func //' | sort -u)
  go test -c -fuzz . -o "$program" .
  for target in $targets; do
    echo "fuzz ${1#"$root"/} $target"
    for try in 1 2 3; do
      once "$target" "$cache/$2" "$program" && break
      if [ "$try" = 3 ] || ! ended "$program.out"; then return 1; fi
      echo "retrying: golang/go#75804"
    done
  done
  rm "$program"
}

export -f once ended package
# fuzzed prints the folders and paths of the packages of the part that have fuzz targets.
fuzzed() {
  go list -f '{{.Dir}} {{.ImportPath}}' work | while read -r dir path; do
    if grep -qsE '^func Fuzz' "$dir"/*_test.go; then echo "$dir $path"; fi
  done | awk -v n="${part%/*}" -v parts="${part#*/}" 'NR % parts == n % parts'
}
# shellcheck disable=SC2016 # the inner shell expands the arguments
fuzzed | xargs -P "$(nproc)" -n 2 bash -c 'package "$0" "$1"'
