# Each target sets up .venv by itself and never touches the system's Python.
PYTHON ?= python3
BIN := .venv/bin
# One process a core; a file stays in one process, which compiles its programs once.
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile

.PHONY: train test test-all test-faults test-parity lint clean

train: .venv/ready ## ListOps, quick preset: a learnt model in minutes on two cores
	$(BIN)/python scripts/train.py --config=configs/listops.py:nystrom,quick \
		--workdir=runs/listops-quick

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

clean:
	rm -rf .venv runs

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
