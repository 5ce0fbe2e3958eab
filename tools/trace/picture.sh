#!/usr/bin/env bash
# Draws docs/img/turn.svg: starts a separate Jaeger, runs the demo of anima, and draws the
# turn with the most services.
#   tools/trace/picture.sh [FILE.svg]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(realpath -m "${1:-$root/docs/img/turn.svg}")
tmp=$(mktemp -d)
trap '[ -z "${jaeger:-}" ] || kill "$jaeger" 2>/dev/null || true; wait; rm -rf "$tmp"' EXIT

GOWORK=off go -C "$root/tools/jaeger" build -o "$tmp/jaeger" .
GOWORK=off go -C "$root/tools/trace" build -o "$tmp/trace" .
CGO_ENABLED=0 go -C "$root/cmd/anima" build -o "$tmp/anima" .
"$tmp/jaeger" build >/dev/null
"$tmp/jaeger" run -otlp-grpc 14317 -otlp-http 14318 -query 14686 -query-grpc 14685 -health 14133 >"$tmp/log" 2>&1 &
jaeger=$!
for _ in $(seq 100); do grep -q 'is ready' "$tmp/log" && break; kill -0 "$jaeger" || break; sleep 0.1; done
grep -q 'is ready' "$tmp/log" || { cat "$tmp/log" >&2; exit 1; }
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:14317 "$tmp/anima" demo -o json >"$tmp/demo.json" 2>"$tmp/said" || { cat "$tmp/said" >&2; exit 1; }
"$tmp/trace" draw -jaeger http://127.0.0.1:14686 -since 5m -wait 20s -o "$out"
echo "drawn: $out"
