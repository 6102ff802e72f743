# Two targets matter: `make run` and `make test`. Everything they need they install into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# More workers than two cores have something to do: some wait for processes. Stealing leaves no worker idle at the end.
# Compiled sources are kept: every worker, and every process that a test starts, would else parse all of them anew.
# One process more than processors: tests wait a quarter of their time, for screens and for other processes.
WORKERS ?= $(shell $(BIN)/python -c 'import os; print(min((os.cpu_count() or 1) + 1, 5))')
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help run test test-quick test-shuffled format-check lint types contracts pytest fix pictures bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@ $(VENV)/.installed

run: $(VENV)/.installed  ## open the chat: make run MODEL=path/to/model.gguf
	@$(BIN)/jalopy $(if $(MODEL),"$(MODEL)")

test: format-check lint types contracts pytest  ## everything that must hold (tests/README.md says how long it takes)

format-check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

contracts: $(VENV)/.installed-test
	$(BIN)/lint-imports

pytest: $(VENV)/.installed-test  ## all tests and nothing else
	$(PYTEST)

test-quick: $(VENV)/.installed-test  ## the tests that take least, for the loop while working
	$(PYTEST) -m 'not slow'

test-shuffled: $(VENV)/.installed-test  ## all tests in random order: make test-shuffled SEED=1
	$(PYTEST) --random-order-bucket=global $(if $(SEED),--random-order-seed=$(SEED))

fix: $(VENV)/.installed-test  ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pictures: $(VENV)/.installed-test  ## draw the tests' pictures of screens anew
	JALOPY_WRITE_PICTURES=1 $(BIN)/python -m pytest tests/app/tui/test_pictures.py -k 'size or console or colour'
	git diff --stat -- tests/app/pictures

bench: $(VENV)/.installed  ## measure a model: make bench MODEL=path/to/model.gguf
	@$(BIN)/jalopy bench "$(MODEL)"

clean:  ## remove the environment and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
