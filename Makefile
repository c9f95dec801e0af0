# Each target sets up .venv by itself and never touches the system's Python.
PYTHON ?= python3
BIN := .venv/bin
# One process a core; a file stays in one process, which compiles its programs once.
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile


TASKS := listops text retrieval image pathfinder
PLANS := --plan=table3 --plan=landmarks --plan=ablations
DATA_DIR := $(if $(DATA),--data_dir=$(DATA))
ACCELERATOR := import jax, sys; jax.default_backend() == "cpu" and sys.exit( \
	"error: no accelerator here: .venv/bin/pip install \"jax[cuda13]\" or \"jax[tpu]\"")
DTYPES := float32 bfloat16
SPEED := $(DTYPES:%=results/speed/attention_%) $(DTYPES:%=results/speed/train_%)

.PHONY: train paper speed test test-all test-faults test-parity lint clean

train: .venv/ready ## ListOps, quick preset: a learnt model in minutes on two cores
	$(BIN)/python scripts/train.py --config=configs/listops.py:nystrom,quick \
		--workdir=runs/listops-quick

# Where one sitting ended the next goes on. SWEEP=--max_minutes=8 limits it, and
# REPORT="--remark='image=…'" says what a task's numbers have to be read with.
paper: .venv/ready ## the paper's tables, on an accelerator; DATA=where the data lie
	$(BIN)/python -c '$(ACCELERATOR)'
	for task in $(TASKS); do \
		$(BIN)/python scripts/prepare_data.py --task=$$task $(DATA_DIR); \
	done
	$(BIN)/python scripts/sweep.py --workdir=runs/paper $(PLANS) $(DATA_DIR) $(SWEEP); \
	status=$$?; \
	$(BIN)/python scripts/report.py runs/paper --out=results/paper $(REPORT); \
	exit $$status

speed: $(addsuffix /benchmark.json,$(SPEED)) ## Table 1 and train steps, on an accelerator

results/speed/attention_%/benchmark.json: | .venv/ready
	$(BIN)/python scripts/benchmark.py --out=$(@D) --dtype=$* --batch_size=2 \
		--num_heads=8 --head_dim=64 --option=nystrom.conv_kernel_size=0

results/speed/train_%/benchmark.json: | .venv/ready
	$(BIN)/python scripts/benchmark.py --out=$(@D) --dtype=$* --train_step \
		--option=softmax.dropout_rate=0.0

test: .venv/ready-dev ## the suite, without what is slow
	$(PYTEST) -m "not slow and not parity"

test-all: .venv/ready-dev ## with what is slow
	$(PYTEST) -m "not parity"

test-faults: .venv/ready-dev ## kills, full disks, flipped bits; prints what came of it
	$(BIN)/python -m pytest -m faults -rs

test-parity: .venv/ready-parity ## against PyTorch and transformers
	$(PYTEST) -m parity

lint: .venv/ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

clean: ## runs/ stay
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready: requirements.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-r requirements.txt -e .
	touch $@

.venv/ready-dev: requirements-dev.txt .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-r requirements-dev.txt
	touch $@

.venv/ready-parity: requirements-parity.txt .venv/ready-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-r requirements-parity.txt
	touch $@
