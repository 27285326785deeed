# The environment makes itself: `make run` and `make test` work on a fresh clone.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: run test lint types format env clean

run: $(VENV)/.ready  ## train a small GPT on the documentation inside Python, about a minute
	$(BIN)/headway demo

test: $(VENV)/.ready-test lint types  ## everything CI runs
	$(BIN)/pytest -n 2 --dist loadgroup

lint: $(VENV)/.ready-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.ready-test
	$(BIN)/mypy

format: $(VENV)/.ready-test  ## put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

env: $(VENV)/.ready-test  ## only make the environment

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
