# Levelrail is developed with this file: "make" alone says what there is. Each target installs the Debian packages that it
# needs and does not find, so a bare Debian machine with make, git and Go 1.21 or later is enough.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# One set of build flags for packages and tests, so that both share the build cache: Caddy alone takes minutes to compile.
# The tags leave out storage back ends of Caddy that nothing here uses.
override GOFLAGS := $(strip $(filter-out -trimpath -buildvcs=% -tags=%,$(GOFLAGS)) -trimpath -buildvcs=false -tags=nobadger,nomysql,nopgx)
export GOFLAGS
export CGO_ENABLED ?= 0

GOTEST := go run ./test/slow --
# Everything that needs neither root nor the network, and what it is made of.
UNIT = $$(go list ./... | grep -v '^github.com/levelrail/levelrail/test/') ./test/parsers
# Where goroutines meet: the request path, the store, and what watches them.
RACED = ./raftstore/... ./controlplane/... ./caddymodule/... ./agent/... ./client/...

.PHONY: help
help: ## say what there is to make
	@echo 'make TARGET, where TARGET is one of'
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  %-14s %s\n", $$1, $$2}'
	@echo
	@echo 'Caches: the Go build cache; /var/cache/levelrail-test (clean Debian roots, engines, weights; LEVELRAIL_TEST_CACHE);'
	@echo '/var/cache/levelrail-build (the packager; LEVELRAIL_CACHE). CONTRIBUTING.md has more.'

.PHONY: demo
demo: need-root ## install on a clean Debian host, deploy a model and ask it, with every command shown; STAY=1 leaves the host up (root)
	@go run ./test/demo $(if $(STAY),-stay)

.PHONY: test
test: need-root ## all tests: test-unit, test-race and test-host; goes on after a failure, ends with all of them (root)
	@test/all

.PHONY: test-unit check-format check-vet check-unit
test-unit: check-format check-vet check-unit ## format, vet and unit tests: neither root nor GPU nor network, under a minute once compiled
check-format:
	@AGAIN='make check-format' test/stage 'format' test/format
check-vet: need-go
	@AGAIN='make check-vet' test/stage 'vet' go vet ./...
check-unit: need-go
	@AGAIN='make check-unit' test/stage 'unit tests' $(GOTEST) $(UNIT)

.PHONY: test-race
test-race: need-go ## the same tests under the race detector, for the request path, the store and the agent
	@test/need gcc libc6-dev
	@AGAIN='make test-race' CGO_ENABLED=1 test/stage 'race detector' $(GOTEST) -race $(RACED)

# The pattern reaches the shell as it was written: make would expand its dollar signs.
.PHONY: test-one
test-one: need-go $(if $(filter ./test/%,$(PACKAGE)),need-root deb) ## one test, in a way that repeats: PACKAGE=./agent RUN='^TestDeploy$' (COUNT=10, RACE=1)
	@$(if $(RACE),test/need gcc libc6-dev)
	@$(if $(RACE),CGO_ENABLED=1) $(GOTEST) $(if $(RACE),-race) -count=$(or $(COUNT),1) -timeout=30m -run '$(subst ','\'',$(value RUN))' $(or $(PACKAGE),./...)

.PHONY: test-long
test-long: need-go ## a suite that takes too long for make test: SUITE=name; without it, what there is
	@test/long $(SUITE)

.PHONY: fuzz
fuzz: need-go ## each fuzzer for FUZZTIME=10m, one after another, with counts (FUZZ=pattern: those alone)
	@FUZZTIME='$(or $(FUZZTIME),10m)' FUZZ='$(FUZZ)' test/fuzz/run

.PHONY: test-host
test-host: need-root $(if $(HAVE_DEBS),,deb) ## tests on booted Debian 12, 13 and 14 hosts with real engines (root)
	@AGAIN='test/fixtures/get all' test/stage 'roots, engines, weights' test/fixtures/get all
	@AGAIN='make test-host' test/stage 'host tests' $(GOTEST) -count=1 -timeout=45m ./test/...

.PHONY: test-engines
test-engines: need-root ## the engines alone, with real weights, in the sandbox that units give them (root)
	@test/stage 'roots, engines, weights' test/fixtures/get all
	@test/stage 'engine tests' $(GOTEST) -count=1 -timeout=20m ./test/engines/... ./test/host/...

.PHONY: deb
deb: need-go ## the Debian packages, into dist/
	@AGAIN='make deb' test/stage 'packages' packaging/build

.PHONY: bench
bench: need-go ## benchmarks: of packages, then the gateway against plain Caddy, as ratios (FULL=1: twenty minutes)
	@test/stage 'package benchmarks' go test -run '^$$' -bench . $(UNIT)
	@test/stage 'gateway against plain Caddy' go run ./test/bench/gateway $(if $(FULL),,-quick)

.PHONY: bench-gateway
bench-gateway: need-go ## the gateway against plain Caddy, with the ten-minute soak; the last line is JSON (QUICK=1: four minutes; CHECK=1: fails below a floor)
	@go run ./test/bench/gateway $(if $(QUICK),-quick) $(if $(CHECK),-check)

.PHONY: lint
lint: need-go ## what a reviewer would say first: format, vet, staticcheck, shellcheck
	@test/need shellcheck
	@test/stage 'format' test/format
	@test/stage 'vet' go vet ./...
	@test/stage 'staticcheck' go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	@test/stage 'shellcheck' test/format shell

.PHONY: clean
clean: ## delete dist/ and bin/; caches stay
	@rm -rf dist bin

.PHONY: need-go need-root
need-go:
	@command -v go >/dev/null || { echo 'this needs Go 1.21 or later, which fetches the version that go.mod names by itself: https://go.dev/dl/'; exit 1; }
need-root: need-go
	@[ "$$(id -u)" = 0 ] || { echo 'this boots Debian hosts in namespaces, which needs root: sudo make $(MAKECMDGOALS)'; exit 1; }
