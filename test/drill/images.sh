#!/usr/bin/env bash
# Packs the images of the services and of the drill's load, and imports them in a cluster.
#   images.sh COMMAND FOLDER
# COMMAND is the drill's flag -load: {image} and {archive} are replaced.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
load=$1 dir=$2 names=k8slab.local/anima
mkdir -p "$dir"
(cd "$root/tools/image" && GOWORK=off go run . all -version "${VERSION:-0.0.0-dev}" -prefix "$names" -tag lab -o "$dir")
(cd "$root" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$dir/load" ./e2e/load)
(cd "$root/tools/image" && GOWORK=off go run . pack -t "$names/load:lab" -entrypoint /load -user 65532 -o "$dir/load.tar" "$dir/load:/load:0755")
load=${load//'{image}'/'"$image"'} load=${load//'{archive}'/'"$archive"'}
for s in heartbeat inference-router loop policy social treasury load; do
  image=$names/$s:lab archive=$dir/$s.tar sh -c "$load"
done
