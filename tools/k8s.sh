#!/usr/bin/env bash
# Renders every overlay and checks the objects; no cluster and no kubectl needed.
set -euo pipefail
root=$PWD
GOWORK=off go run -C tools/k8scheck . "$root"/deploy/k8s/overlays/*
