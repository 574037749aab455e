# Every command a contributor needs; `make help` reads the comments behind the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .canopy/venvs/peers
INFINITY := .canopy/venvs/infinity
DEPLOY := .canopy/venvs/deploy
AUDIT  := .canopy/venvs/audit
# Executions of a fuzz target; the page of results is written for the full number only.
RUNS   ?= 1000000
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo up status down test test-unit test-integration lint format types bench bench-quick peers test-failures deploy-check tensorrt-check fuzz audit schema lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): requirements/client.txt requirements/locks/client.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 13) or sys.exit(f"Python {v[0]}.{v[1]} is not supported: run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements/client.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $(STAMP)

setup: $(STAMP) ## Create the client environment (.venv)

demo: $(STAMP) ## Start the stack, index the example corpus, ask three questions, stop the stack
	$(BIN)/canopy demo

up: $(STAMP) ## Start evidence server, critic server and Milvus Lite
	$(BIN)/canopy up

status: $(STAMP) ## Show what runs and whether it answers
	$(BIN)/canopy status

down: $(STAMP) ## Stop what `make up` started
	$(BIN)/canopy down

test: $(STAMP) ## All tests, against the real servers
	$(BIN)/python -m pytest tests

test-unit: $(STAMP) ## Tests that need only Python (under 30 s)
	$(BIN)/python -m pytest tests/unit

test-integration: $(STAMP) ## Tests against the real servers
	$(BIN)/python -m pytest tests/integration

lint: $(STAMP) ## Ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## Format and fix what Ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## mypy --strict on every package
	$(BIN)/mypy

bench: $(STAMP) peers ## Write docs/results/performance.md: the served method beside its peers (half an hour)
	$(BIN)/python -m benchmarks.run --write

bench-quick: $(STAMP) peers ## The same with short runs (under five minutes)
	$(BIN)/python -m benchmarks.run --quick --write

$(PEERS)/.installed: benchmarks/peers/requirements.txt benchmarks/peers/lock.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements.txt
	@touch $@

$(INFINITY)/.installed: benchmarks/peers/infinity.txt benchmarks/peers/infinity-lock.txt
	$(PYTHON) -m venv --clear $(INFINITY)
	$(INFINITY)/bin/python -m pip install --quiet --requirement benchmarks/peers/infinity.txt
	@touch $@

peers: $(PEERS)/.installed $(INFINITY)/.installed ## Create the environments of benchmarks.peers (1.7 and 1.4 GB)

$(DEPLOY)/.installed: requirements/deploy.txt requirements/locks/deploy.txt
	$(PYTHON) -m venv --clear $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --quiet --requirement requirements/deploy.txt
	@touch $@

test-failures: $(STAMP) ## Break each part under load, then soak for ten minutes; writes docs/results/failures.md (25 min)
	$(BIN)/python -m benchmarks.failures --write

deploy-check: $(DEPLOY)/.installed ## Check chart, images and compose file without a cluster; writes docs/results/deploy.md (0.8 GB)
	$(DEPLOY)/bin/python -m pytest tests/unit/deploy
	$(DEPLOY)/bin/python kubernetes/report.py --write

$(VENV)/.fuzz: $(STAMP) requirements/fuzz.txt requirements/locks/fuzz.txt
	$(BIN)/python -m pip install --quiet --requirement requirements/fuzz.txt
	@touch $@

fuzz: $(VENV)/.fuzz ## Fuzz every decoder (an hour; RUNS=10000 for a minute); writes docs/results/fuzz.md
	PYTHONPATH=tests/fuzz $(BIN)/python -m canopy_fuzz --runs $(RUNS) \
		$(if $(filter 1000000,$(RUNS)),--write,--seconds 5)

$(VENV)/.tensorrt: $(STAMP) requirements/tensorrt.txt requirements/locks/tensorrt.txt
	$(BIN)/python -m pip install --quiet --requirement requirements/tensorrt.txt
	@touch $@

tensorrt-check: $(VENV)/.tensorrt ## Compile every exported graph for four generations of GPUs, without one (0.24 GB)
	$(BIN)/python -m pytest tests/integration/test_tensorrt_check.py

$(AUDIT)/.installed: requirements/audit.txt requirements/locks/audit.txt
	$(PYTHON) -m venv --clear $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --requirement requirements/audit.txt
	@touch $@

audit: $(AUDIT)/.installed ## Every locked version: known vulnerabilities, and the sums of its files (asks the network)
	$(AUDIT)/bin/python requirements/audit.py

schema: $(STAMP) ## Write the published JSON schemas again
	$(BIN)/python -m canopy_backend.schema docs/schema
	$(BIN)/python -m canopy_client.schema docs/schema

lock: $(STAMP) ## Write the client lock file from what is installed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements/locks/client.txt

clean: ## Remove environments, models and state of this checkout
	rm -rf .venv .canopy .mypy_cache .ruff_cache .hypothesis
