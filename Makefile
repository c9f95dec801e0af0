# Each target sets up .venv by itself and never touches the system's Python. Of those that
# train, measure and report, RUN=python3 takes a Python that has all they need instead.
# PYTHON=python3.13 VENV=.venv-3.13 sets up another environment, with another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(if $(RUN),,$(VENV)/ready)
RUN ?= $(BIN)/python
export PYTHONPATH := $(CURDIR)$(PYTHONPATH:%=:%)
# Huge pages: fewer page faults on a CPU under Linux.
train paper: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# One process a core. Slow tests of one file, which start processes of their own, stay in one.
PYTEST := $(BIN)/python -m pytest --numprocesses=auto

# Only for `paper` and `speed`. Set ACCELERATOR= where only SLURM's nodes have one.
ACCELERATOR := import jax, sys; jax.default_backend() == "cpu" and sys.exit( \
	"error: no accelerator: .venv/bin/pip install \"jax[cuda13]\" (or jax[cuda12], jax[tpu])")
# Checked before .venv is made: an environment keeps the Python that made it.
NEW_PYTHON := import sys, ensurepip; sys.version_info >= (3, 11) or sys.exit( \
	"error: this is Python " + sys.version.split()[0] + ", and 3.11 or newer is needed: " \
	"name one, as in `make PYTHON=python3.12 train`")

# The attentions, training, and the commands, whose flags for XLA depend on jaxlib.
SHORT := tests/nystrom_test.py tests/attention/nystrom_test.py tests/encoder*_test.py \
	tests/training/step_test.py tests/experiments/train_test.py \
	tests/experiments/xla_flags_test.py tests/experiments/trained_run_test.py

.PHONY: help train paper paper-report speed gpu-check test test-short test-all test-parity lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

train: $(READY) ## train on ListOps with the quick preset, on two CPU cores
	$(RUN) scripts/train.py --config=configs/listops.py:nystrom,quick \
		--workdir=runs/listops-quick

# Runs that failed or were stopped are reported as far as they got; the same command
# goes on with those that were stopped.
# SWEEP=--max_minutes=8 limits the sweep, SWEEP=--retry tries again what failed.
paper: $(READY) ## train and report Table 3, landmarks and ablations, on an accelerator; DATA=folder of the data
	@$(RUN) -c '$(ACCELERATOR)'
	-$(RUN) scripts/prepare_data.py --task=listops --task=text --task=retrieval \
		--task=image --task=pathfinder $(if $(DATA),--data_dir=$(DATA))
	-$(RUN) scripts/sweep.py --workdir=runs/paper --plan=table3 --plan=landmarks \
		--plan=ablations $(if $(DATA),--config.task.data_dir=$(DATA)) $(SWEEP)
	$(MAKE) paper-report

paper-report: $(READY) ## report what `make paper` has trained so far
	$(RUN) scripts/report.py runs/paper --out=results/paper

# Tables that are complete are left out; one that was stopped begins anew.
speed: $(READY) ## measure Table 1 and the steps of every task, on an accelerator; PEERS=--peers
	@$(RUN) -c '$(ACCELERATOR)'
	$(RUN) scripts/benchmark.py --table=paper --out=results/speed $(PEERS)

gpu-check: $(READY) ## check an accelerator in minutes: right numbers, and how fast
	$(RUN) scripts/gpu_check.py --out=runs/gpu-check

test: $(VENV)/ready-dev ## run the tests, without the slow ones
	$(PYTEST) --dist=worksteal -m "not slow and not parity"

test-short: $(VENV)/ready-dev ## run a few test files, as for another Python
	$(PYTEST) --dist=worksteal -m "not slow and not parity" $(SHORT)

test-all: $(VENV)/ready-dev ## run all tests but parity
	$(PYTEST) --dist=loadfile -m "not parity"

test-parity: $(VENV)/ready-parity ## compare with PyTorch and transformers
	$(PYTEST) --dist=loadfile -m parity

lint: $(VENV)/ready-dev ## check style, imports and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

clean: ## remove .venv; keep runs/
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c '$(NEW_PYTHON)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-r requirements.txt -e .
	touch $@

$(VENV)/ready-dev: requirements-dev.txt $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-r requirements-dev.txt
	touch $@

$(VENV)/ready-parity: requirements-parity.txt $(VENV)/ready-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-r requirements-parity.txt
	touch $@
