#!/usr/bin/env bash
# Builds Jaeger into the cache unless it exists, and prints its path.
#   tools/jaeger/build.sh [-o FILE]      FILE becomes a symbolic link to it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
GOWORK=off exec go -C "$here" run . build "$@"
