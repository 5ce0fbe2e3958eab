# Every target is run from the root and needs only Go, git and make, unless its help names
# more. The target postgres installs the server of PostgreSQL for those that need it.
SHELL   := /bin/bash
MODULES := $(shell go list -m -f '{{.Dir}}')
BIN     := $(CURDIR)/.bin
VERSION ?= 0.0.0-dev
# Without this tag grpc contains the debugging pages of x/net/trace, whose templates call
# methods by name: the linker then keeps every method of the program.
TAGS    := grpcnotrace
LDFLAGS := -s -w -X github.com/anima-run/anima/pkg/host.version=$(VERSION)
# All store tests share one private PostgreSQL cluster.
PG      := go run ./pkg/sqldb/sqldbtest/pgcluster --
# The race detector observes only memory that Go allocates, and SQLite allocates its own.
# Instrumented, SQLite takes about half of the tests' processor time.
UNRACED := -gcflags='modernc.org/...=-race=false'
SERVICE ?= loop
# Programs, tests and checks are compiled with the settings of the images, so that a package
# is compiled once for all of them. Only the race detector needs cgo, and its own packages.
export CGO_ENABLED ?= 0
export GOFLAGS := -trimpath -tags=$(TAGS) $(GOFLAGS)

.PHONY: help run demo test race race-ci e2e pg fuzz crash crash-ci crash-long takeovers budget overspend memory histories operations spenders chaos soak day rpc-down sustained replay mutate trace-faults interop interop-ollama bench bench-gateway bench-pair pgo cover lint fmt gen tidy verify image images image-check k8s k8s-dryrun ci build postgres jaeger cluster-up cluster-load cluster-down drill tools
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "%-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build .bin/anima
	@echo "building $(BIN)/anima; the first build compiles everything and takes minutes, the next ones seconds"
	@mkdir -p $(BIN) && go build -ldflags '$(LDFLAGS)' -o $(BIN)/anima ./cmd/anima

run: build ## Start all services in one process and print the URLs
	@$(BIN)/anima up

demo: build ## Run the demo: one complete example, with a check of the result
	@$(BIN)/anima demo

test: postgres ## Run all tests, on SQLite and PostgreSQL
	$(PG) go test work

race: postgres ## Run all tests with the race detector
	CGO_ENABLED=1 $(PG) go test -race $(UNRACED) -timeout 40m work

# Each test of the command line starts all services, which takes four times the processor
# time with the race detector. The services have it in e2e, in one process and in many, so
# of these tests those have it in which the command line itself is concurrent.
RACED := ^Test(Chat|Clock|End|Send|Session|Up|Viewer)
race-ci: postgres # the tests as CI runs them
	CGO_ENABLED=1 $(PG) go test -race $(UNRACED) -timeout 40m $$(go list work | grep -v '/cmd/anima$$')
	CGO_ENABLED=1 go test -race $(UNRACED) -timeout 20m -run '$(RACED)' ./cmd/anima
	go test -timeout 20m -skip '$(RACED)' ./cmd/anima

e2e: postgres ## Run the end-to-end tests, in one process and in many
	$(PG) go test -count=1 ./e2e/...

pg: postgres ## Run the store tests on PostgreSQL
	$(PG) go test -count=1 ./pkg/sqldb/... ./pkg/outbox/... ./services/*/internal/...

fuzz: ## Run all fuzz targets, 10 s each (FUZZTIME=…)
	@tools/fuzz.sh $(or $(FUZZTIME),10s)

soak: ## Make 1,000 model calls in one session at a window of 200,000 tokens (CALLS=…)
	go test -count=1 -timeout 30m -v -run '^TestSoak$$' ./services/loop/internal/sqlstore -calls $(or $(CALLS),1000)

replay: ## Make 10,000 turns, and sessions of every shape, and replay each turn (TURNS=…)
	go test -count=1 -timeout 10m -run '^(TestReplay|TestCrash|TestRefused)' ./services/loop/internal/engine
	set -o pipefail; ANIMA_REPLAY_TURNS=$(or $(TURNS),10000) go test -count=1 -timeout 30m -v -run '^TestReplay' ./e2e | grep -v level=

CRASH := go test -count=1 -timeout 120m -v -run '^(TestCrash|TestTakeoverStopped|TestOwnerDies|TestHeartbeatRestarts)' ./e2e
crash: ## Crash every service at every failpoint, once, and check the result
	set -o pipefail; ANIMA_CRASH=short $(CRASH) | grep -v level=

# CI uses a third of the short form, another one for each commit: three commits use every
# point in every mode. TestOwnerDies is in race.
crash-ci:
	ANIMA_CRASH=ci ANIMA_CRASH_SEED=$$(git rev-list --count HEAD) go test -count=1 -timeout 20m -run '^(TestCrashMatrix|TestCrashMutations)$$' ./e2e

budget: ## Check the cost of a turn against its budget of requests, messages, statements, transactions and allocations
	set -o pipefail; go test -count=1 -v -run '^TestTurnBudget$$' ./e2e | grep -v level=

memory: ## Make 10^6 model calls and compare the memory of the router with that after 10^4 (CALLS=1000000)
	set -o pipefail; ANIMA_MEMORY_CALLS=$(or $(CALLS),1000000) go test -count=1 -timeout 60m -v -run '^TestRouterMemory$$' ./e2e | grep -v level=

overspend: postgres ## Spend the balance of one agent with up to 256 callers, and with a killed replica of the router (CALLS=…)
	set -o pipefail; ANIMA_OVERSPEND_CALLS=$(or $(CALLS),8) $(PG) go test -count=1 -timeout 30m -v -run '^TestOverspend' ./e2e | grep -v level=

histories: postgres ## Run 10,000 random histories of the ledger beside a model, on SQLite and PostgreSQL (HISTORIES=10000)
	$(PG) go test -count=1 -timeout 60m -v -run '^TestHistories$$' ./services/treasury/internal/sqlstore -rapid.checks=$(or $(HISTORIES),10000)

operations: postgres ## Make 3,000 random operations of creators on three agents, twice: without kills, and with 60 kills of processes (OPERATIONS=… KILLS=… SEED=…)
	set -o pipefail; ANIMA_OPERATIONS=$(or $(OPERATIONS),3000) ANIMA_OPERATIONS_KILLS=$(or $(KILLS),60) ANIMA_OPERATIONS_SEED=$(or $(SEED),1) \
	  $(PG) go test -count=1 -timeout 0 -parallel 1 -v -run '^TestOperations' ./e2e | grep -v level=

crash-long: takeovers ## Run the crash matrix at every pass of a failpoint, in every service; writes docs/crash-matrix.md
	set -o pipefail; ANIMA_CRASH=long ANIMA_CRASH_DOC=$(CURDIR)/docs/crash-matrix.md $(CRASH) | grep -v level=

takeovers: ## Resume runs of stopped owners, 10,000 times
	set -o pipefail; ANIMA_TAKEOVERS=10000 go test -count=1 -timeout 60m -v -run '^TestTakeovers$$' ./services/loop/internal/session | grep -v level=
	set -o pipefail; ANIMA_CRASH_STOPS=64 go test -count=1 -timeout 60m -v -run '^TestTakeoverStopped$$' ./e2e | grep -v level=

spenders: postgres ## Spend one account from 64 callers in 10^6 operations, at two processes of treasury that are killed (OPERATIONS=… SEED=…)
	set -o pipefail; ANIMA_SPENDERS_OPERATIONS=$(or $(OPERATIONS),1000000) ANIMA_SPENDERS_SEED=$(or $(SEED),1) \
	  $(PG) go test -count=1 -timeout 0 -v -run '^TestSpendersKilled$$' ./e2e | grep -v level=

chaos: spenders ## Kill the whole suite 200 times under load, at ages up to 10 min; writes docs/chaos.md (KILLS=… FOLDERS=… LEAST=… MOST=… SEED=…)
	set -o pipefail; ANIMA_CHAOS_KILLS=$(or $(KILLS),200) ANIMA_CHAOS_FOLDERS=$(or $(FOLDERS),12) ANIMA_CHAOS_LEAST=$(or $(LEAST),1s) ANIMA_CHAOS_MOST=$(or $(MOST),10m) \
	  ANIMA_CHAOS_SEED=$(or $(SEED),1) ANIMA_CHAOS_DOC=$(or $(DOC),$(CURDIR)/docs/chaos.md) go test -count=1 -timeout 0 -v -run '^TestChaos$$' ./e2e | grep -v level=

day: ## Watch the resources of a process for 24 hours of a fast clock: schedules, mail, goals (HOURS=… SPEED=…)
	go run ./e2e/fastclock -speed $(or $(SPEED),60) -o $(BIN)/fastclock
	@echo 'building with the fast clock; the first build compiles everything'
	set -o pipefail; ANIMA_DAY_HOURS=$(or $(HOURS),24) GOFLAGS='$(GOFLAGS) -overlay=$(BIN)/fastclock/overlay.json' go test -count=1 -timeout 0 -v -run '^TestDay$$' ./e2e | grep -v level=

rpc-down: ## Have the RPC of treasury refuse, hang and lie for 20 minutes each, on a fast clock (SPEED=…)
	go run ./e2e/fastclock -speed $(or $(SPEED),20) -o $(BIN)/fastclock
	@echo 'building with the fast clock; the first build compiles everything'
	set -o pipefail; ANIMA_RPC_DOWN=20m GOFLAGS='$(GOFLAGS) -overlay=$(BIN)/fastclock/overlay.json' go test -count=1 -timeout 0 -v -run '^TestRPCDown$$' ./services/treasury | grep -v level=

sustained: ## Run 16 sessions at 80 % of the capacity of one process for an hour (MINUTES=…)
	set -o pipefail; ANIMA_SUSTAINED_MINUTES=$(or $(MINUTES),60) go test -count=1 -timeout 0 -v -run '^TestSustained$$' ./e2e | grep -v level=

mutate: postgres ## Change safety code, one place at a time, and list the changes that no test detects (N=20 places per target, TARGET=…)
	@mkdir -p $(BIN) && GOWORK=off go -C tools/mutate build -o $(BIN)/mutate .
	$(PG) $(BIN)/mutate -root . -accepted tools/mutate/accepted.txt -n $(or $(N),20) -target '$(TARGET)'

trace-faults: ## Stop services and NATS during 1,000 turns and check every trace, in a real Jaeger (TURNS=…)
	@tools/trace/faults.sh $(or $(TURNS),1000)

interop: postgres ## Test the HTTP surfaces with the official clients for Go and Node, and x402 with the official packages (needs node and npm)
	set -o pipefail; go test -tags $(TAGS),interop -count=1 -timeout 10m -v -run '^(TestSurfaces|TestNodeClients)$$' ./services/inference-router | grep -v level=
	set -o pipefail; go test -tags $(TAGS),interop -count=1 -timeout 10m -v -run '^TestX402Interop$$' ./services/treasury | grep -v level=

interop-ollama: ## Test with a real Ollama and a generated tiny model (OLLAMA=/path/to/ollama)
	@test -n "$(OLLAMA)" -a -x "$(OLLAMA)" || { echo 'OLLAMA is not set: make interop-ollama OLLAMA=/path/to/ollama' >&2; exit 1; }
	set -o pipefail; ANIMA_OLLAMA=$(abspath $(OLLAMA)) go test -tags $(TAGS),interop -count=1 -timeout 10m -v -run '^TestOllama$$' ./e2e | grep -v level=

bench: postgres ## Print the figures of docs/bench.md
	@tools/bench.sh

bench-gateway: ## Print the processor time of a model call over HTTP beside proxies that only forward (ROUNDS=8)
	set -o pipefail; GOFLAGS='$(GOFLAGS) -pgo=$(CURDIR)/deploy/turn.pgo' ANIMA_GATEWAY_ROUNDS=$(or $(ROUNDS),8) go test -count=1 -timeout 20m -v -run '^TestGatewayCost$$' ./e2e | grep -v level=

bench-pair: ## Compare the cost of a turn at another commit and now, in alternating rounds (BASE=commit, ROUNDS=3)
	@test -n "$(BASE)" || { echo 'BASE is not set: make bench-pair BASE=v0.1.0' >&2; exit 1; }
	@tools/bench-pair.sh $(BASE) $(or $(ROUNDS),3)

pgo: ## Write deploy/turn.pgo, the profile with which the images are built, from turns of 1 and 16 sessions
	@tools/pgo.sh

cover: postgres ## Write coverage.html
	$(PG) go test -coverpkg=work -coverprofile=coverage.out work && go tool cover -html=coverage.out -o coverage.html

lint: $(BIN)/golangci-lint $(BIN)/deadcode ## Lint every module and check for functions that nothing calls
	$(BIN)/golangci-lint run $(addsuffix /...,$(MODULES))
	@tools/deadcode.sh $(BIN)/deadcode

fmt: $(BIN)/golangci-lint ## Format every module
	$(BIN)/golangci-lint fmt $(MODULES)

gen: ## Write missing goldens, schemas and generated docs
	go test ./pkg/api ./pkg/bus ./cmd/anima -update
	go test -run '^TestProvidersDoc$$' ./e2e -update

tidy: ## Tidy every go.mod
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy) || exit 1; done
	go work sync

verify: ## Check each module without the workspace: it builds, is tidy, and has the same versions
	@for m in $(MODULES); do echo "verify $${m#$(CURDIR)/}"; \
	  (cd $$m && GOWORK=off go mod tidy -diff && GOWORK=off go vet ./...) || exit 1; done
	@for m in e2e services/inference-router services/treasury; do (cd $$m && GOWORK=off go vet -tags $(TAGS),interop ./...) || exit 1; done
	@cp go.work.sum .go.work.sum.before; go work sync; cmp -s go.work.sum .go.work.sum.before; same=$$?; rm .go.work.sum.before; \
	  [ $$same = 0 ] && git diff --exit-code -- '*go.mod' '*go.sum' go.work || { echo "the go.mod, go.sum or go.work files are out of date: run make tidy"; exit 1; }

image-check: ## Build the program of every image as in the Dockerfile, without docker
	@tools/image-check.sh

image: ## Build one service's image with docker (SERVICE=loop)
	docker build -f deploy/Dockerfile --build-arg SERVICE=$(SERVICE) --build-arg VERSION=$(VERSION) -t anima/$(SERVICE):$(VERSION) .

images: ## Build every image without docker, with digests and SBOMs, into .bin/images
	@GOWORK=off go -C tools/image run . all -version $(VERSION) -o $(BIN)/images

jaeger: ## Build Jaeger and run it on this machine; see also anima up --jaeger
	@GOWORK=off go -C tools/jaeger run . run

CLUSTER := $(BIN)/cluster
DRILL   := $(BIN)/drill
$(CLUSTER) $(DRILL): FORCE
	@mkdir -p $(BIN) && GOWORK=off go -C test build -o $@ ./$(@F)
FORCE:

# The drill runs in the network of the lab and gets the lab's commands. For another
# cluster see test/drill/README.md.
FROM    ?= HEAD~1
LOAD    ?= $(CLUSTER) load {image} {archive}
INSIDE  ?= $(CLUSTER) exec --
BELOW   ?= -node-stop '$(CLUSTER) node kill {node}' -node-start '$(CLUSTER) node start {node}' -load '$(LOAD)' -volumes '$(CLUSTER) volumes' \
	-keda '$(CLUSTER) addon keda -built' -busy 'test/drill/busy.sh {seconds}' -runbooks '$(CLUSTER) runbook' -outside 203.0.113.1:443

cluster-up: $(CLUSTER) ## Start a Kubernetes cluster of three nodes on this machine (needs root; the first start builds it)
	@$(CLUSTER) build core addons nats postgres jaeger && $(CLUSTER) up

cluster-load: $(CLUSTER) ## Load the services' images into the cluster
	@test/drill/images.sh '$(LOAD)' $(BIN)/drill-images

drill: $(CLUSTER) $(DRILL) ## Run the failure drill in the cluster, under load (after cluster-up and cluster-load; STEPS="nats kill" FROM=commit to upgrade from)
	@tools/k8s.sh secrets -o "$(CURDIR)/deploy/k8s/overlays/lab/secrets" -missing
	@$(DRILL) -prepare -from $(FROM) $(STEPS)
	@$(INSIDE) $(DRILL) $(BELOW) -from $(FROM) -junit $(BIN)/drill.xml $(STEPS)

cluster-down: $(CLUSTER) ## Stop the cluster and delete its state
	@$(CLUSTER) down -wipe

tools: ## Test the tools for images, traces, Jaeger and mutations, the lab and the drill
	@for d in tools tools/image test; do (cd $$d && GOWORK=off go vet ./... && GOWORK=off go test -timeout 20m ./...) || exit 1; done

k8s: ## Render and check the Kubernetes manifests
	@tools/k8s.sh

k8s-dryrun: ## Apply the manifests to a real API server, unless they have passed unchanged (needs root; the first run builds it)
	@tools/k8s.sh dryrun -changed

# Each commit fuzzes another third of the packages. The tests use all stored inputs.
ci: verify lint race-ci crash-ci budget tools k8s k8s-dryrun image-check ## Run the checks of CI
	@tools/fuzz.sh 2s $$(git rev-list --count HEAD)/3

postgres: # installs PostgreSQL's server binaries from Debian if there are none
	@tools/postgres.sh

$(BIN)/golangci-lint: tools/lint/go.mod
	GOWORK=off GOBIN=$(BIN) go -C tools/lint install github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(BIN)/deadcode: tools/lint/go.mod
	GOWORK=off GOBIN=$(BIN) go -C tools/lint install golang.org/x/tools/cmd/deadcode
