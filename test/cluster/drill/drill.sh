#!/usr/bin/env bash
# Runs the six services in the lab and takes things away from under them while
# messages are sent: every pod once, NATS, Postgres, a drained node, a dead node.
# Each step asks that nothing was lost, failed or paid twice. The closing line is
# "N passed, N failed, N not run"; the exit status is 1 if anything failed.
#   drill.sh LAB [STEP…]      LAB is the lab's program (test/cluster); all steps by default
# It needs the lab up, with the images of tools/image tagged lab (`make cluster-load`).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$here/../../.." && pwd)
lab=$1; shift
steps=${*:-deploy services nats postgres drain kill policies traces}
agents=${AGENTS:-16} tmp=$(mktemp -d) began=$SECONDS passed=0 failed=0 notrun=0
trap 'rm -rf "$tmp"' EXIT
k() { "$lab" kubectl -n anima "$@"; }
say() { printf '%4ds  %s\n' $((SECONDS - began)) "$*"; }
pass() { passed=$((passed + 1)); say "PASS     $1"; }
fail() { failed=$((failed + 1)); say "FAIL     $1"; }
check() { local what=$1; shift; if "$@" >"$tmp/out" 2>&1; then pass "$what"; else fail "$what"; tail -5 "$tmp/out" | sed 's/^/      /'; fi; }

ready() { # every deployment and set is whole
  for w in statefulset/nats statefulset/postgres deployment/{heartbeat,inference-router,loop,policy,social,treasury}; do
    k rollout status "$w" --timeout="${1:-180}s" >/dev/null || return 1
  done
}

load() { # NAME SECONDS: begins to send, and returns when the first answers have come
  k delete job "$1" --ignore-not-found >/dev/null
  sed "s/NAME/$1/g; s/SECONDS/$2/; s/AGENTS/$agents/; s/TEXT/one tool/" "$here/load.yaml" | k apply -f - >/dev/null
  k wait --for=jsonpath='{.status.ready}'=1 "job/$1" --timeout=60s >/dev/null
}

whole() { # NAME WHAT: waits for a load's end and judges its summary
  local ended= t
  for t in {1..480}; do # a job that failed is never complete
    ended=$(k get job "$1" -o jsonpath='{.status.conditions[?(@.status=="True")].type}' 2>/dev/null)
    case $ended in *Complete* | *Failed*) break ;; esac
    sleep 0.5
  done
  k logs "job/$1" >"$tmp/$1.log" 2>&1
  say "         $(grep '^{' "$tmp/$1.log" | cut -c1-420)"
  case $ended in *Complete*) pass "$2" ;; *) fail "$2" ;; esac
}

deploy() {
  "$lab" exec -- kubectl kustomize "$root/deploy/k8s/overlays/lab" >"$tmp/lab.yaml" || { fail "the overlay renders"; return; }
  local t=$SECONDS
  "$lab" kubectl apply --server-side --force-conflicts -f "$tmp/lab.yaml" >/dev/null || { fail "one apply"; return; }
  check "one apply, everything ready ($((60)) s allowed)" ready 60
  say "         ready after $((SECONDS - t)) s"
}

services() {
  for s in ${SERVICES:-heartbeat inference-router loop policy social treasury}; do
    load "roll-$s" 30
    k rollout restart "deployment/$s" >/dev/null
    k rollout status "deployment/$s" --timeout=120s >/dev/null || fail "$s rolls"
    whole "roll-$s" "rolling update of $s: nothing lost, failed or paid twice"
  done
}

nats() {
  load nats 90
  k rollout restart statefulset/nats >/dev/null
  k rollout status statefulset/nats --timeout=240s >/dev/null || fail "NATS rolls"
  whole nats "rolling update of NATS: nothing lost, failed or paid twice"
}

postgres() {
  load postgres 40
  k delete pod postgres-0 --wait=false >/dev/null
  sleep 2 # until the controller has seen it
  k rollout status statefulset/postgres --timeout=120s >/dev/null || fail "Postgres comes back"
  whole postgres "Postgres moves: nothing lost, failed or paid twice"
}

drain() {
  load drain 50
  "$lab" kubectl drain node2 --ignore-daemonsets --delete-emptydir-data --timeout=150s >/dev/null 2>&1 || fail "node2 drains"
  "$lab" kubectl uncordon node2 >/dev/null
  whole drain "a node is drained: nothing lost, failed or paid twice"
  ready || fail "everything is back after the drain"
}

kill() {
  load kill 60
  "$lab" node kill 3 >/dev/null 2>&1
  whole kill "a node dies: nothing lost, failed or paid twice"
  "$lab" node start 3 >/dev/null 2>&1
  ready || fail "everything is back after the node's death"
}

reach() { # LABELS HOST PORT: whether a pod with these labels gets through
  k delete pod probe --ignore-not-found --now >/dev/null 2>&1
  k run probe --image=k8slab.local/anima/loop:lab --restart=Never --labels="$1" --overrides='{"spec":{"automountServiceAccountToken":false,"securityContext":{"runAsNonRoot":true,"runAsUser":65532,"seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"probe","image":"k8slab.local/anima/loop:lab","command":["/bin/busybox","timeout","3","/bin/busybox","nc","'"$2"'","'"$3"'","-e","/bin/true"],"resources":{"limits":{"memory":"64Mi"}},"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}' >/dev/null
  k wait --for=jsonpath='{.status.phase}'=Succeeded pod/probe --timeout=8s >/dev/null 2>&1
}

policies() {
  local denied
  if reach anima.run/nats=client nats 4222; then pass "a labelled pod reaches NATS"; else fail "a labelled pod reaches NATS"; fi
  if reach anima.run/postgres=client postgres 5432; then pass "a labelled pod reaches Postgres"; else fail "a labelled pod reaches Postgres"; fi
  for denied in "nats 4222" "postgres 5432" "treasury 8080" "loop 8080"; do
    # shellcheck disable=SC2086
    if reach app.kubernetes.io/name=stranger $denied; then fail "a stranger is kept from $denied"; else pass "a stranger is kept from $denied"; fi
  done
  k delete pod probe --ignore-not-found --now >/dev/null 2>&1
}

traces() {
  local ip
  ip=$(k get pod -l app.kubernetes.io/name=jaeger -o jsonpath='{.items[0].status.podIP}')
  if [ -z "$ip" ]; then notrun=$((notrun + 1)); say "NOT RUN: no Jaeger"; return; fi
  k delete networkpolicy drill-jaeger --ignore-not-found >/dev/null
  load traces 10
  whole traces "a load to be traced"
  local turn
  turn=$(grep '^{' "$tmp/traces.log" | sed 's/.*"lastTurn":"\([^".]*\)[^"]*".*/\1.1/') # the turn with the tool
  (cd "$root/tools/trace" && GOWORK=off CGO_ENABLED=0 go build -o "$tmp/trace" .) || { fail "tools/trace builds"; return; }
  "$lab" kubectl -n anima port-forward "pod/$(k get pod -l app.kubernetes.io/name=jaeger -o jsonpath='{.items[0].metadata.name}')" 16686 >/dev/null 2>&1 &
  local forward=$!
  sleep 8 # the services send their spans every few seconds
  check "the last turn in Jaeger: one root, no orphan, every link resolves" "$lab" exec -- "$tmp/trace" check -jaeger http://127.0.0.1:16686 -turn "$turn" -services loop,policy,inference-router,treasury
  sed 's/^/      /' "$tmp/out"
  builtin kill "$forward" 2>/dev/null
}

for s in $steps; do "$s"; done
echo "$passed passed, $failed failed, $notrun not run"
[ "$failed" = 0 ]
