# `make run` and `make test` work on a fresh clone: they create the environment first.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: run test fuzz lint types format docs docs-check env clean

run: $(VENV)/.ready  ## train a small GPT on the documentation that ships with Python: a little over a minute
	$(BIN)/headway demo

test: $(VENV)/.ready-test lint types  ## what CI runs
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

fuzz: $(VENV)/.ready-test  ## damaged files, hostile settings, signals and kills: an hour on two cores
	$(BIN)/python -m tests.fuzz

lint: $(VENV)/.ready-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.ready-test
	$(BIN)/mypy --num-workers 2

format: $(VENV)/.ready-test  ## fix lint and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.ready-docs  ## build the pages of docs/ and the reference: open docs/_build/html/index.html
	$(BIN)/sphinx-build -W --keep-going -q -j auto -d docs/_build/cache docs docs/_build/html
	$(BIN)/python docs/_ext/remote_loads.py docs/_build/html

docs-check: $(VENV)/.ready-test  ## run every code block of the docs, also those that need minutes, a GPU or a data set
	$(BIN)/python -m tests.docs

env: $(VENV)/.ready-test  ## create the environment only

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[plots,metrics]'
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build docs/_build docs/reference src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
