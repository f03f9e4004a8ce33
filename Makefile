# Everything a developer or CI does here. `make help` lists it. What a target needs and the machine lacks it builds or
# installs, says so, and keeps outside this folder (COMPASS_CACHE, default ~/.cache/compass).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Static programs, the same everywhere; only the race detector needs a C compiler (hack/test).
export CGO_ENABLED := 0
export GOFLAGS := -buildvcs=false
export COMPASS_CACHE ?= $(HOME)/.cache/compass
export PATH := $(COMPASS_CACHE)/bin:$(PATH)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE ?= localhost/compass:dev

# What takes more than a line is a script of the target's name below hack/; its second line says what it does.
SCRIPTS := $(notdir $(wildcard $(addprefix hack/,run demo demo-down e2e e2e-* sim chaos bench bench-*)))

.PHONY: help
help: ## what can be made
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@for script in $(SCRIPTS); do sed -n "2s/^# $$script: */$$(printf '  %-14s ' $$script)/p" hack/$$script; done

.PHONY: $(SCRIPTS)
$(SCRIPTS):
	@hack/$@

.PHONY: build
build: ## the programs, static, in bin/
	go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ ./cmd/...

.PHONY: image
image: build ## the image as an archive, without Docker: build/image.tar
	@hack/image build/image.tar $(IMAGE) bin/manager bin/compass

.PHONY: docker-build
docker-build: build ## the image with Docker, from bin/, without a network
	install -D -m 644 /etc/ssl/certs/ca-certificates.crt bin/etc/ssl/certs/ca-certificates.crt
	docker build --target bin -t $(IMAGE) .

.PHONY: test
test: ## everything that one machine can prove: real Postgres, real NATS, real API server
	@hack/test

.PHONY: test-short
test-short: ## pure code and twins: no services, seconds
	@hack/test short

.PHONY: test-versions
test-versions: ## the store again, on Postgres 18 and through PgBouncer
	@hack/test versions

.PHONY: reqs
reqs: ## which requirements no test holds
	@go run ./hack/checks reqs

.PHONY: generate
generate: ## everything that is generated, from its source
	@hack/generate

.PHONY: lint
lint: ## linters for Go and shell, import rules, forms of the ledgers
	@hack/lint

.PHONY: verify
verify: ## what a change must pass beside its tests: generated files are up to date, lint finds nothing, the chart installs what config/ does
	@hack/generate --check
	@hack/check-chart
	@hack/lint

.PHONY: vuln
vuln: ## known vulnerabilities in what we import (asks the Go vulnerability database)
	@hack/tools/install govulncheck >/dev/null
	govulncheck ./...

.PHONY: tools
tools: ## the pinned tools, in COMPASS_CACHE/bin
	@hack/tools/install

.PHONY: cluster-up
cluster-up: ## a real single-node Kubernetes on this machine (root); prints its kubeconfig
	@hack/cluster/up

.PHONY: cluster-down
cluster-down: ## end it and remove all that it kept
	@hack/cluster/down

.PHONY: clean
clean: ## remove what was built in this folder
	rm -rf bin build
