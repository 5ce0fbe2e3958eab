#!/bin/sh
# Keeps the processors of this machine busy for a time, with twice as many loops as there
# are processors. The loops remain in the process group, whose end ends them.
#   busy.sh SECONDS
for _ in $(seq $((2 * $(nproc)))); do
  timeout --foreground "$1" sh -c 'while :; do :; done' &
done
wait
