#!/usr/bin/env bash
# Packs the images of the services and of the drill's load, and imports them on every node
# of the lab.
#   images.sh LAB FOLDER
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
lab=$1 dir=$2
mkdir -p "$dir"
(cd "$root/tools/image" && GOWORK=off go run . all -version "${VERSION:-0.0.0-dev}" -o "$dir")
(cd "$root" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$dir/load" ./e2e/load)
(cd "$root/tools/image" && GOWORK=off go run . pack -t k8slab.local/anima/load:lab -entrypoint /load -user 65532 -o "$dir/load.tar" "$dir/load:/load:0755")
for s in heartbeat inference-router loop policy social treasury load; do
  "$lab" load "k8slab.local/anima/$s:lab" "$dir/$s.tar"
done
