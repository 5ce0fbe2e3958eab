#!/usr/bin/env bash
# Builds the programs of deploy/Dockerfile without Docker: it executes the COPY, WORKDIR
# and RUN lines of a service's stages in an empty folder. This checks that an image needs
# only the files of the repository that it copies. A profile of the compiler makes it
# compile every package again, so only one program is built with it.
#   tools/image-check.sh [SERVICE…]      default: all services, and anima
#   PROFILED=SERVICE                     the program that is built with the profile; default: heartbeat
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
file=$root/deploy/Dockerfile
export GOWORK=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false VERSION=${VERSION:-0.0.0-check} COMMIT=${COMMIT:-0123456789ab} SERVICE
profiled=${PROFILED:-heartbeat} profile='-pgo=../../turn.pgo'

# from STAGE prints the stage that STAGE is based on.
from() { awk -v s="$1" '$1 == "FROM" && $4 == s {print $2; n++} END {exit n != 1}' "$file" || { echo "no stage $1 in $file" >&2; exit 1; }; }
# steps STAGE prints the COPY, WORKDIR and RUN lines of STAGE.
steps() { awk -v s="$1" '$1 == "FROM" {on = $4 == s; next} on && /^(COPY|WORKDIR|RUN) /' "$file"; }

check() {
  local src=$tmp/src dir=$tmp/src out=$tmp/out stage base kind arg to line
  base=$(from "source-$SERVICE")
  [ "$base" = source ] && base=source-$SERVICE
  from "base-$SERVICE" >/dev/null
  mkdir -p "$src" "$out"
  grep -q "^RUN go build .*$profile " "$file" || { echo "$file builds without $profile" >&2; exit 1; }
  for stage in source "$base" build; do
    while IFS= read -r line; do
      line=${line//'${SERVICE}'/$SERVICE}
      read -r kind arg to <<<"$line"
      case $kind in
        COPY)
          if [ -f "$root/$arg" ]; then install -D -m 644 "$root/$arg" "$src/$to"
          else (cd "$root" && tar --exclude='*_test.go' --exclude=testdata -cf - "$arg") | tar -xf - -C "$src"; fi ;;
        WORKDIR) dir=$tmp$arg ;;
        RUN)
          line=${line#RUN }
          [ "$SERVICE" = "$profiled" ] || line=${line/"$profile "/}
          (cd "$dir" && bash -euc "${line//\/out\//$out/}") ;;
      esac
    done < <(steps "$stage")
  done
  [ "$SERVICE" = anima ] && set -- version || set -- -version
  got=$("$out/service" "$@")
  [[ "$got" = "$SERVICE $VERSION"* ]] || { echo "$SERVICE prints \"$got\", want \"$SERVICE $VERSION\"" >&2; exit 1; }
  if [[ $(go version -m "$out/service") != *-tags=grpcnotrace* ]]; then echo "$SERVICE is built with other tags than those of the Makefile" >&2; exit 1; fi
  if go version -m "$out/service" | grep -q "$root"; then echo "$SERVICE: the path of the build is in the program" >&2; exit 1; fi
  if readelf -d "$out/service" 2>/dev/null | grep -q NEEDED; then echo "$SERVICE is not static" >&2; exit 1; fi
  echo "ok $got, $(du -m "$out/service" | cut -f1) MiB"
}

[ $# -gt 0 ] || set -- $(ls "$root/services") anima
for SERVICE; do
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  check
  rm -rf "$tmp"
done
