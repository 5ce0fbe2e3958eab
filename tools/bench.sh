#!/usr/bin/env bash
# Prints the figures of docs/bench.md. Only figures of the same run can be compared,
# because machines differ.
set -euo pipefail
uname -srm; go version; nproc | sed 's/$/ processors/'
(cd pkg && go test -run '^$' -bench . -benchtime "${BENCHTIME:-1s}" ./bus ./sqldb)
(cd services/policy && go test -run '^$' -bench . -benchtime "${BENCHTIME:-1s}" ./...)
(cd services/loop && go test -run '^$' -bench Recall -benchtime 200x ./internal/sqlstore)
(cd services/treasury && go test -run '^$' -bench . -benchtime "${BENCHTIME:-1s}" ./...)
# The cost of a turn in counts, with its budget.
(cd e2e && go test -count=1 -v -run '^TestTurnBudget$' . | grep budget_test)
# The benchmarks of turns are built with the profile, as the images are.
(cd e2e && go test -pgo=../deploy/turn.pgo -run '^$' -bench . -skip Tracing -benchtime "${TURNS:-1000x}" -timeout 20m .)
# Tracing off and on alternately: many pairs, because the difference is small.
(cd e2e && go test -pgo=../deploy/turn.pgo -run '^$' -bench Tracing -benchtime "${TRACING:-10240x}" -timeout 30m .)
