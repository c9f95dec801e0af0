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

TASKS := listops text retrieval image pathfinder
PLANS := table3 landmarks ablations
ATTENTIONS := softmax nystrom-32 nystrom-64 nystrom-128 nystrom-256 linformer-256 \
	performer-256 reformer-64 longformer-256 bigbird-64 linear identity
DATA_DIR := $(if $(DATA),--data_dir=$(DATA))
SPEED := $(foreach x,attention $(TASKS),$(x)_float32 $(x)_bfloat16)
OF_ATTENTION = --batch_size=2 --num_heads=8 --head_dim=64 --option=nystrom.conv_kernel_size=0
OF_STEP = --train_step --task=$(firstword $(subst _, ,$*)) --option=softmax.dropout_rate=0.0
# Checked by `paper` and `speed`; set ACCELERATOR= where only SLURM's nodes have one.
ACCELERATOR := import jax, sys; jax.default_backend() == "cpu" and sys.exit( \
	"error: no accelerator: .venv/bin/pip install \"jax[cuda13]\", or \"jax[tpu]\"")

# The attentions, training, and the commands, whose flags for XLA depend on jaxlib.
SHORT := tests/nystrom_test.py tests/attention/nystrom_test.py tests/encoder_test.py \
	tests/training/step_test.py tests/experiments/train_test.py \
	tests/experiments/xla_flags_test.py

.PHONY: help train paper paper-report speed test test-short test-all test-parity lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

train: $(READY) ## train on ListOps with the quick preset, on two CPU cores
	$(RUN) scripts/train.py --config=configs/listops.py:nystrom,quick \
		--workdir=runs/listops-quick

# SWEEP=--max_minutes=8 limits the sweep, and the next time goes on where it ended; what
# there is is reported each time. SWEEP=--retry tries again what failed.
paper: $(READY) ## the paper's tables, on an accelerator; DATA=where the data lie
	@$(RUN) -c '$(ACCELERATOR)'
	-$(RUN) scripts/prepare_data.py $(TASKS:%=--task=%) $(DATA_DIR)
	-$(RUN) scripts/sweep.py --workdir=runs/paper $(PLANS:%=--plan=%) \
		$(DATA_DIR:--%=--config.task.%) $(SWEEP)
	$(MAKE) paper-report

paper-report: $(READY) ## report what `make paper` has trained so far
	$(RUN) scripts/report.py runs/paper --out=results/paper

# One table after the other: what a stopped `make speed` has, the next one leaves out.
speed: $(SPEED:%=results/speed/%/benchmark.json) ## Table 1, and steps of every task, on an accelerator; PEERS=--peers

results/speed/%/benchmark.json: | $(READY)
	@$(RUN) -c '$(ACCELERATOR)'
	$(RUN) scripts/benchmark.py --out=results/speed/$*.unfinished $(PEERS) \
		$(ATTENTIONS:%=--attention=%) --dtype=$(lastword $(subst _, ,$*)) \
		$(if $(filter attention_%,$*),$(OF_ATTENTION),$(OF_STEP))
	rm -rf $(@D)
	mv results/speed/$*.unfinished $(@D)

test: $(VENV)/ready-dev ## run the tests, without the slow ones
	$(PYTEST) --dist=worksteal -m "not slow and not parity"

test-short: $(VENV)/ready-dev ## run a few test files, as .ci/run does under later Pythons
	$(PYTEST) --dist=worksteal -m "not slow and not parity" $(SHORT)

test-all: $(VENV)/ready-dev ## run all tests but parity
	$(PYTEST) --dist=loadfile -m "not parity"

test-parity: $(VENV)/ready-parity ## compare with PyTorch and transformers
	$(PYTEST) --dist=loadfile -m parity

lint: $(VENV)/ready-dev ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

clean: ## remove .venv; keep runs/
	rm -rf $(VENV)

$(BIN)/python:
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
