# Every task of the project. `make` alone lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 3
HPA_CASES ?= 2000
PARTS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test real-parts test-hpa test-cluster test-stack check format crds chart metrics-docs bench bench-exporter clean

help: ## list the tasks
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## create .venv and install the project with its development tools

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v[0]}.{v[1]}; name another with: make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: install ## the main job on an embedded cluster; DEMO_ARGS="--for 60 --json demo.json"
	$(BIN)/gpuscale demo $(DEMO_ARGS)

test: install ## all tests that need nothing but Python; PYTEST_ARGS="-k name"
	$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

real-parts: install ## build the real Kubernetes, kwok, Helm and Prometheus that the tests below run; needs Go
	@$(BIN)/python -m tests.realparts.build $(PARTS)

test-hpa: real-parts ## our decisions against Kubernetes' own HPA controller; HPA_CASES=20000
	$(BIN)/python -m tests.realparts.hpa_compare --cases $(HPA_CASES)
	$(BIN)/python -m pytest -q tests/hpa

test-cluster: real-parts ## emulator and operator against a real control plane; PYTEST_ARGS="-k name"
	$(BIN)/python -m pytest tests/cluster $(PYTEST_ARGS)

test-stack: real-parts ## everything together: exporters, Prometheus with our rules, operator, control plane, cloud
	$(BIN)/python -m pytest tests/stack $(PYTEST_ARGS)

check: install ## lint, types, contracts between the parts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/contract

format: install ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: install ## write the custom resource definitions into the chart
	$(BIN)/gpuscale crds --out charts/gpuscale/files/crds

chart: crds ## write all that the chart has from elsewhere: definitions, rules, the dashboard
	mkdir -p charts/gpuscale/files/rules
	cp rules/alerts.yaml rules/recording.yaml charts/gpuscale/files/rules/
	$(BIN)/python -m charts.gpuscale.dashboards.generate

metrics-docs: install ## write docs/metrics.md from the exporter's tables
	$(BIN)/python -m exporter.explain > docs/metrics.md

bench: install ## run the benchmarks; each prints a table and says what it isolates; BENCH_ARGS=--smoke
	@for b in bench/*.py; do echo "== $$b"; $(BIN)/python $$b $(BENCH_ARGS) || exit 1; done

bench-exporter: install ## the exporter beside its peers; BENCH_ARGS="--peer-python PYTHON" names who has nvitop-exporter
	$(BIN)/python bench/exporter.py $(filter --smoke,$(BENCH_ARGS))
	$(BIN)/python bench/peers.py $(BENCH_ARGS)

clean: ## remove what the tasks above made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
