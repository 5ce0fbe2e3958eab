#!/usr/bin/env bash
# Checks the Kubernetes manifests; only dryrun needs a cluster, which it starts.
#   tools/k8s.sh                     render and check all overlays: rules of this repository, schemas, kube-score
#   tools/k8s.sh dryrun [-changed]   apply to a real API server (needs root); -changed: only if a file has changed since the last success
#   tools/k8s.sh secrets [-o DIR]    create the missing secrets of overlays/dev, or a set of secrets in DIR
#   tools/k8s.sh pin OVERLAY         write its digests; reads lines of NAME REGISTRY/REPOSITORY[:TAG]@sha256:… from standard input
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/tools/k8s
export GOWORK=off
passed=0 failed=0 notrun=0

# tier NUMBER WHAT COMMAND… runs the command and counts its result. Exit code 3 means that
# the command could not run on this machine, which is reported as NOT RUN and is neither
# passed nor failed.
tier() {
  local n=$1 what=$2 start=$SECONDS status=0; shift 2
  "$@" || status=$?
  case $status in
    0) passed=$((passed + 1)); echo "tier $n: passed in $((SECONDS - start)) s: $what" ;;
    3) notrun=$((notrun + 1)); echo "tier $n: NOT RUN: $what" >&2 ;;
    *) failed=$((failed + 1)); echo "tier $n: FAILED: $what" >&2 ;;
  esac
}
finish() {
  echo "tiers: $passed passed, $failed failed, $notrun not run"
  [ $failed = 0 ]
}

# checkers sets $tools to the folder with kubeconform, kube-score, schemas and crds, and
# builds them if the folder does not exist. Its name contains a hash of their sources.
checkers() {
  local key made module version sum files info dir f swagger=''
  key=$(cat "$here/pins/go.mod" "$here/pins/go.sum" "$here/pins/files.txt" "$here/schemas.go" "$here"/crds/*.yaml <(go version) | sha256sum | cut -c1-16)
  tools=${ANIMA_CACHE:-$HOME/.cache/anima}/k8s/$key
  [ -e "$tools/made" ] && return
  echo "building the checkers in $tools (once)" >&2
  mkdir -p "$(dirname "$tools")"
  made=$(mktemp -d "$tools.XXXXXX")
  mkdir "$made/bin" "$made/crds"
  (cd "$here/pins" && CGO_ENABLED=0 nice -n 5 go build -trimpath -buildvcs=false -o "$made/bin/" tool) || return 1
  while read -r module version sum files; do
    case $module in ''|'#'*) continue ;; esac
    info=$(cd / && go mod download -json "$module@$version") || { echo "$info" >&2; return 1; }
    if ! grep -qF "\"Sum\": \"$sum\"" <<<"$info"; then echo "$module@$version does not have the checksum of tools/k8s/pins/files.txt" >&2; return 1; fi
    dir=$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' <<<"$info")
    for f in ${files//,/ }; do
      case $f in
        *swagger.json) swagger=$dir/$f ;;
        *) install -m 644 "$dir/$f" "$made/crds/" || return 1 ;;
      esac
    done
  done <"$here/pins/files.txt"
  cp "$here"/crds/*.yaml "$made/crds/" || return 1
  (cd "$here" && go run . schemas "$swagger" "$made/schemas" "$made"/crds/*.yaml) || return 1
  touch "$made/made"
  mv -T "$made" "$tools" 2>/dev/null || rm -rf "$made" # another process was first
}

# rendered sets $rendering to a folder with every rendered overlay. Only the first call
# renders.
rendered() {
  [ -z "$rendering" ] || return 0
  rendering=$(mktemp -d)
  (cd "$here" && go run . render "$root/deploy/k8s" "$rendering") || { rm -rf "$rendering"; rendering=; return 1; }
}

rules() {
  local s
  for s in "$root"/services/*/; do
    grep -rqE "^ +image: .?anima/$(basename "$s")" "$root/deploy/k8s/base" || { echo "$(basename "$s") is not in deploy/k8s/base" >&2; return 1; }
  done
  (cd "$here" && go test ./... >"$tmp/test.log") || { cat "$tmp/test.log" >&2; return 1; }
}

# nats checks the configuration of NATS, that of base and that with TLS, with the server
# itself.
nats() {
  local dir=$tmp/nats with
  mkdir -p "$dir/tls" && cp "$root"/deploy/k8s/base/nats/*.conf "$dir" || return 1
  go -C "$here" run ./secrets -o "$dir/secrets" >/dev/null || return 1
  cp "$dir/secrets/nats-routes.conf" "$dir/routes.conf" || return 1
  (cd "$dir/tls" && go run "$(go env GOROOT)/src/crypto/tls/generate_cert.go" -ca -host nats -ecdsa-curve P256 2>/dev/null &&
    cp cert.pem tls.crt && cp cert.pem ca.crt && cp key.pem tls.key) || return 1
  for with in base tls; do
    [ $with = base ] || sed "s#/etc/nats-tls#$dir/tls#" "$root/deploy/k8s/components/tls-cert-manager/cluster.conf" >"$dir/cluster.conf" || return 1
    (cd "$root/pkg" && env $(cat "$dir/secrets/nats-users.env") SERVER_NAME=nats-0 \
      go run github.com/nats-io/nats-server/v2 -t -c "$dir/nats.conf" >"$tmp/nats.log" 2>&1) || { cat "$tmp/nats.log" >&2; echo "NATS refuses its configuration ($with)" >&2; return 1; }
  done
}

schemas() {
  checkers && rendered || return 1
  "$tools/bin/kubeconform" -strict -summary -kubernetes-version 1.36.3 \
    -schema-location "$tools/schemas/{{ .ResourceKind }}{{ .KindSuffix }}.json" "$rendering"/*.yaml
}

score() {
  checkers && rendered || return 1
  # CPU limits are omitted on purpose, because they throttle. Images have digests, not tags.
  "$tools/bin/kube-score" score --kubernetes-version v1.36 --ignore-container-cpu-limit \
    --enable-optional-test container-seccomp-profile --enable-optional-test container-ports-check \
    --output-format ci "$rendering/prod.yaml" >"$tmp/score" || true
  grep -v '^\[\(OK\|SKIPPED\)\]' "$tmp/score" >&2 || true
  echo "kube-score on prod: $(grep -c '^\[CRITICAL\]' "$tmp/score") critical, $(grep -c '^\[WARNING\]' "$tmp/score") warning, $(grep -c '^\[OK\]' "$tmp/score") ok"
  grep -q '^\[OK\]' "$tmp/score" && ! grep -q '^\[\(CRITICAL\|WARNING\)\]' "$tmp/score"
}

# Files on which the answer of the API server depends.
asked=(deploy/k8s tools/k8s test/cluster/pins tools/k8s.sh)
stamp() {
  local key
  key=$(cd "$root" && git ls-files -co --exclude-standard -- "${asked[@]}" | sort | while read -r f; do [ -e "$f" ] && sha256sum "$f"; done | sha256sum | cut -c1-16)
  echo "${ANIMA_CACHE:-$HOME/.cache/anima}/k8s/dryrun-$key"
}

# lab runs the lab of test/cluster with its state in a temporary folder. The program is
# built before, because `go run` would replace its exit code.
lab() { (cd "$root/test/cluster" && ANIMA_LAB=$tmp/lab "$tmp/cluster" "$@"); }

# refuses checks the admission policies of ../deploy/k8s/components/hardening.
refuses() {
  local image said
  for image in "ghcr.io/anima-run/loop:1.0" "registry.example.com/loop@sha256:$(printf 'a%.0s' {1..64})" "ghcr.io/anima-run/loop@sha256:$(printf 'a%.0s' {1..64})"; do
    cat >"$tmp/pod.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata: {name: probe, namespace: anima}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers: [{name: probe, image: "$image", securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
YAML
    said=$(lab kubectl create --dry-run=server -f "$tmp/pod.yaml" 2>&1) || true
    case $image:$said in
      *:1.0:*"give every image by digest"* | *example*"images come from"* | ghcr*@*"pod/probe created"*) ;;
      *) echo "a pod with the image $image: $said" >&2; return 1 ;;
    esac
  done
}

# before renders the last release to $tmp/before, so that dryrun can test an upgrade from
# it: a change of an immutable field is refused only if the object exists.
before() {
  local release
  mkdir -p "$tmp/before" "$tmp/release"
  release=$(git -C "$root" describe --tags --abbrev=0 --match 'v*' 2>/dev/null) || { echo "there is no release yet to upgrade from"; return; }
  git -C "$root" archive "$release" deploy/k8s | tar -x -C "$tmp/release" || return 1
  (cd "$here" && go run . render "$tmp/release/deploy/k8s" "$tmp/before") || return 1
  echo "each overlay is an upgrade from $release"
}

dryrun() {
  local overlay file
  [ "$(id -u)" = 0 ] || { echo "NOT RUN: the API server runs in a network namespace of its own, which takes root" >&2; return 3; }
  [ -e "$root/test/cluster" ] || { echo "NOT RUN: test/cluster does not exist" >&2; return 3; }
  [ ! -e /run/netns/anima-lab ] || { echo "NOT RUN: a lab is up on this machine, and this would change it: take it down first" >&2; return 3; }
  checkers && rendered && before || return 1
  (cd "$root/test/cluster" && go build -o "$tmp/cluster" .) || return 1
  lab up -nodes 0 || return $?
  up=yes
  # Without a node metrics-server does not run, and a namespace is deleted only when all
  # API services answer.
  lab kubectl delete apiservice v1beta1.metrics.k8s.io --ignore-not-found >/dev/null || return 1
  lab kubectl apply --server-side -f "$tools/crds" >/dev/null || return 1
  lab kubectl wait --for=condition=Established crd --all --timeout=60s >/dev/null || return 1
  for file in "$rendering"/*.yaml; do
    overlay=$(basename "$file" .yaml)
    # A dry run does not create the namespace, which its objects require.
    awk 'BEGIN {RS = "---\n"} /\nkind: Namespace\n/' "$file" >"$tmp/namespace.yaml"
    lab kubectl --warnings-as-errors apply --server-side -f "$tmp/namespace.yaml" >/dev/null || return 1
    [ ! -e "$tmp/before/$overlay.yaml" ] || lab kubectl apply --server-side -f "$tmp/before/$overlay.yaml" >/dev/null || return 1
    lab kubectl --warnings-as-errors apply --server-side --dry-run=server -f "$file" >/dev/null || { echo "$overlay: refused" >&2; return 1; }
    lab kubectl --warnings-as-errors apply --server-side -f "$file" >/dev/null || { echo "$overlay: refused at the apply" >&2; return 1; }
    lab kubectl --warnings-as-errors apply --server-side -f "$file" >/dev/null || { echo "$overlay: refused at the second apply" >&2; return 1; }
    lab kubectl diff --server-side -f "$file" || { echo "$overlay: applying it again would change something" >&2; return 1; }
    [ "$overlay" != prod ] || refuses || return 1
    lab kubectl delete --wait --timeout=120s --ignore-not-found -f "$file" >/dev/null || return 1
    echo "$overlay: $(grep -c '^kind: ' "$file") objects accepted without a warning; a second apply changes nothing"
  done
  mkdir -p "$(dirname "$(stamp)")" && touch "$(stamp)"
}

tmp=$(mktemp -d)
rendering='' up=''
cleanup() {
  [ -z "$up" ] || lab down -wipe >/dev/null || echo "the lab in $tmp/lab is still there" >&2
  rm -rf "$tmp" ${rendering:+"$rendering"}
}
trap cleanup EXIT

case ${1:-} in
  '')
    tier 0 "render, policies, goldens" rules
    tier 0 "the configuration of NATS" nats
    tier 1 "schemas, strictly" schemas
    tier 1 "kube-score of prod" score
    finish ;;
  dryrun)
    if [ "${2:-}" = -changed ] && [ -e "$(stamp)" ]; then echo "tier 2 is skipped: the same files passed on this machine on $(date -r "$(stamp)" +%F)"; exit 0; fi
    tier 2 "server-side dry run, warnings as errors" dryrun
    finish ;;
  secrets)
    shift
    go -C "$here" build -o "$tmp/secrets" ./secrets
    [ $# -gt 0 ] || cd "$root" # it searches overlays/dev from here; the path of -o is relative to the caller's folder
    "$tmp/secrets" "$@" ;;
  pin)
    [ $# = 2 ] || { echo "no overlay is named: tools/k8s.sh pin deploy/k8s/overlays/prod <LINES" >&2; exit 2; }
    dir=$(cd "$2" && pwd)
    go -C "$here" run . pin "$dir" ;;
  *) sed -n 's/^#   //p' "$0" >&2; exit 2 ;;
esac
