# SPDX-License-Identifier: Apache-2.0
# Two commands matter: `go run ./cmd/weir demo` and `make test`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# The binary is static; only the race detector needs cgo.
export CGO_ENABLED = 0
LINT_VERSION  := v2.14.0
H2SPEC_VERSION := v2.2.1+incompatible
PEBBLE_VERSION := v2.10.3
GRPC_VERSION := v1.85.0
CONFORMANCE_VERSION := v1.0.7
WS_VERSION := 8.23.0
CADDY_VERSION := v2.11.4
BIN := $(CURDIR)/bin

.PHONY: help build image deps deps-long test vet lint unit bench-once e2e test-long bench faults soak bench-micro fuzz vuln generate clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

build: ## the static binary, bin/weir
	go build -trimpath -o $(BIN)/weir ./cmd/weir

ENGINE ?= $(shell command -v podman || command -v docker)
image: ## the container image, weir:latest, by podman or docker (ENGINE)
	@test -n "$(ENGINE)" || { echo "neither podman nor docker is here: install one, or give ENGINE=" >&2; exit 1; }
	$(ENGINE) build -f packaging/container/Containerfile -t weir:latest .

deps: ## install what the tests need and the machine lacks (Debian packages; as root)
	@scripts/deps.sh

test: deps build vet lint unit bench-once e2e ## everything CI runs: under 20 minutes

vet: ## go vet, all build tags
	go vet ./...
	go vet -tags long,bench ./test/... ./bench/...

lint: $(BIN)/golangci-lint-$(LINT_VERSION) ## the linters of .golangci.yml
	$(BIN)/golangci-lint-$(LINT_VERSION) run --timeout 10m ./...

$(BIN)/golangci-lint-$(LINT_VERSION):
	GOBIN=$(BIN) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(BIN)/golangci-lint $@

unit: ## all package tests under the race detector, fuzz corpora and vectors included
	CGO_ENABLED=1 go test -race -timeout 8m $$(go list ./... | grep -v -e /test$$ -e /bench/)
	go test -timeout 5m ./balance ./internal/sim # have what the race detector would make ten times slower, for one goroutine

bench-once: ## each micro-benchmark once, so that none rots
	go test -run '^$$' -bench . -benchtime 1x -timeout 5m $$(go list ./... | grep -v -e /test$$ -e /bench) | grep -vE '^(PASS$$|goos:|goarch:|pkg:|cpu:)|no test files'

e2e: build $(BIN)/pebble $(BIN)/h2spec $(BIN)/interop/server $(BIN)/conformance/referenceserver $(BIN)/ws/package.json ## the built binary against real clients and backends, one short case of each promise
	WEIR=$(BIN)/weir go test -count=1 -parallel 4 -timeout 15m ./test/...

deps-long: deps ## and what the long cases need beside it
	@scripts/deps.sh long

test-long: deps-long build $(BIN)/pebble $(BIN)/h2spec $(BIN)/interop/server $(BIN)/conformance/referenceserver $(BIN)/ws/package.json ## the long cases
	WEIR=$(BIN)/weir go test -count=1 -tags long -timeout 80m -v ./test/...

bench: deps build $(BIN)/caddy ## weir beside nginx, HAProxy and Caddy; 9 rounds in alternation; saved under bench/results, with the table for README.md
	WEIR=$(BIN)/weir CADDY=$(BIN)/caddy go run ./bench
	go run ./bench -table bench/results/latest.json

faults: deps build ## faults injected into weir, nginx and HAProxy: saved under bench/results, tables of docs/resilience.md
	WEIR=$(BIN)/weir go run ./bench/faults -out bench/results/faults
	go run ./bench/faults -page write

SOAK ?= 1h
SEED ?= $(shell date +%s)
soak: build ## all faults and all changes at random, by SEED, for SOAK (1h), and what must hold whatever happens
	WEIR=$(BIN)/weir SOAK=$(SOAK) SEED=$(SEED) go test -count=1 -timeout 0 -run '^TestSoak$$' -v ./test

$(BIN)/h2spec: # the cases of HTTP/2's RFC
	GOBIN=$(BIN) go install github.com/summerwind/h2spec/cmd/h2spec@$(H2SPEC_VERSION)

$(BIN)/interop/server: # gRPC's own client and server of interoperability tests
	GOBIN=$(BIN)/interop go install google.golang.org/grpc/interop/client@$(GRPC_VERSION) google.golang.org/grpc/interop/server@$(GRPC_VERSION)

$(BIN)/conformance/referenceserver: # the cases of gRPC, gRPC-Web and Connect
	GOBIN=$(BIN)/conformance go install connectrpc.com/conformance/cmd/{connectconformance,grpcserver,referenceserver}@$(CONFORMANCE_VERSION)

$(BIN)/ws/package.json: # npm's WebSockets; without npm the tests with them are left out
	mkdir -p $(BIN)/ws
	if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(BIN)/ws ws@$(WS_VERSION); fi

$(BIN)/pebble: # an ACME authority, and a name server for it
	GOBIN=$(BIN) go install github.com/letsencrypt/pebble/v2/cmd/pebble@$(PEBBLE_VERSION)
	GOBIN=$(BIN) go install github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@$(PEBBLE_VERSION)

$(BIN)/caddy:
	GOBIN=$(BIN) go install github.com/caddyserver/caddy/v2/cmd/caddy@$(CADDY_VERSION)

bench-micro: ## the micro-benchmarks with figures
	go test -run '^$$' -bench . -benchmem ./balance/ ./pool/ ./internal/...

FUZZTIME ?= 10m
fuzz: ## each fuzz target for FUZZTIME (10m)
	@scripts/fuzz.sh $(FUZZTIME)

vuln: ## known vulnerabilities in what is linked
	go run golang.org/x/vuln/cmd/govulncheck@latest ./...

generate: ## rewrite generated documents
	go generate ./...

clean: ## remove what was built
	rm -rf $(BIN)
