#!/usr/bin/env bash
# Runs the test of docs/tracing.md, "Under faults", in its long form. The first argument
# is the number of turns. Spans are exported to a Jaeger of tools/jaeger, or, if that
# cannot be built, to the receiver of the tests, with the same rules.
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if GOWORK=off go -C tools/jaeger build -o "$tmp/jaeger" . && "$tmp/jaeger" build >/dev/null; then
  export ANIMA_TRACE_FAULTS_JAEGER="$tmp/jaeger"
else
  echo "NOT RUN: the real Jaeger, which cannot be built on this machine; the tests' receiver is used instead" >&2
fi
ANIMA_TRACE_FAULTS_TURNS=$1 go test -count=1 -v -run '^TestTraceFaults$' -timeout 40m ./e2e | grep -v 'level='
