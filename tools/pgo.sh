#!/usr/bin/env bash
# Writes deploy/turn.pgo, the profile with which the images are built: of turns of one
# session and of 16, with the model over HTTP and directly, and with synced writes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$root/e2e"
go test -c -pgo=off -o "$dir/e2e.test" .
profile() { # NAME BENCHMARKS RUNS
  "$dir/e2e.test" -test.run '^$' -test.bench "$2" -test.benchtime "$3" -test.cpuprofile "$dir/$1.cpu"
}
profile many 'Turn/sync=interval/sessions=16$' 3000x
profile one 'Turn/sync=interval/sessions=1$' 1000x
profile synced 'Turn/sync=always$/sessions=16$' 1000x
go tool pprof -proto "$dir"/*.cpu > "$root/deploy/turn.pgo"
ls -l "$root/deploy/turn.pgo"
