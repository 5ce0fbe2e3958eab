#!/usr/bin/env bash
# Measures the cost of a turn at another commit and in the working tree, in alternating
# rounds on the same machine, and prints the medians and their ratios:
# bench-pair.sh COMMIT [ROUNDS]. BENCH selects the benchmarks; RUNS is the number of runs
# of two turns in a round.
set -euo pipefail
commit=${1:?name a commit}
rounds=${2:-3}
bench=${BENCH:-Turn/sync=interval/sessions=(1|16)$}
runs=${RUNS:-400x}
root=$(git rev-parse --show-toplevel)
dir=$(mktemp -d)
cleanup() {
  git -C "$root" worktree remove --force "$dir/before" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
git -C "$root" worktree add --quiet --detach "$dir/before" "$commit"
# Each commit is built with the profile that its images are built with, if it has one.
build() {
  local profile=$1/deploy/turn.pgo
  [ -f "$profile" ] || profile=off
  (cd "$1/e2e" && go test -c -pgo="$profile" -o "$2" .)
}
build "$dir/before" "$dir/before.test"
build "$root" "$dir/now.test"
uname -srm; go version; nproc | sed 's/$/ processors/'
for round in $(seq "$rounds"); do
  for which in before now; do
    (cd "$root/e2e" && "$dir/$which.test" -test.run '^$' -test.bench "$bench" -test.benchtime "$runs" -test.benchmem) |
      awk -v w="$which" -v r="$round" '/^Benchmark/ { for (i = 3; i < NF; i += 2) print w, r, $1, $(i+1), $i }'
  done
done > "$dir/figures"
awk '
  { key = $3 " " $4; n = ++count[$1, key]; v[$1, key, n] = $5; keys[key] = 1 }
  function median(w, key,   n, i, j, t, a) {
    n = count[w, key]
    for (i = 1; i <= n; i++) a[i] = v[w, key, i] + 0
    for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] < a[j-1]; j--) { t = a[j]; a[j] = a[j-1]; a[j-1] = t }
    return a[int((n + 1) / 2)]
  }
  END {
    for (key in keys) {
      b = median("before", key); a = median("now", key)
      split(key, part, " ")
      printf "%-44s %-18s before %12.3f  now %12.3f  x %.3f\n", part[1], part[2], b, a, (b ? a / b : 0)
    }
  }' "$dir/figures" | sort
