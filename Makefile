# Two targets matter: `make run` and `make test`. Everything they need they install into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# More workers than two cores have something to do: some wait for processes. Stealing leaves no worker idle at the end.
# Compiled sources are kept: every worker, and every process that a test starts, would else parse all of them again.
# Two processes more than processors: tests wait a third of their time, for screens and for other processes.
WORKERS ?= $(shell $(BIN)/python -c 'import os; print(min((os.cpu_count() or 1) + 2, 6))')
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help run install test test-all test-rest test-shuffled format-check lint types contracts pytest fix packs lock pictures readme-pictures bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Says itself, in one line, what is missing on this machine; where there is no Python, uv brings one.
define install
@if command -v $(PYTHON) >/dev/null 2>&1; then $(PYTHON) .ci/bootstrap.py $(VENV) $(1); \
elif command -v uv >/dev/null 2>&1; then uv run --no-project --python '>=3.10' .ci/bootstrap.py $(VENV) $(1); \
else echo "jalopy: there is no $(PYTHON) (Debian, Ubuntu: sudo apt install python3-venv; or install uv)" >&2; exit 1; fi
endef

$(VENV)/.installed: pyproject.toml
	$(call install,.)
	@touch $@

$(VENV)/.installed-test: pyproject.toml
	$(call install,'.[test]')
	@touch $@ $(VENV)/.installed

run: $(VENV)/.installed  ## open the chat: make run MODEL=path/to/model.gguf
	@$(BIN)/jalopy $(if $(MODEL),"$(MODEL)")

install:  ## put jalopy on the PATH, by uv or pipx
	@if command -v uv >/dev/null 2>&1; then uv tool install --force .; \
	elif command -v pipx >/dev/null 2>&1; then pipx install --force .; \
	else echo "jalopy: neither uv nor pipx is installed (Debian, Ubuntu: sudo apt install pipx)" >&2; exit 1; fi

# Three minutes on two cores without anything compiled: the fast tests, and a cheap one of each slow file.
test: format-check lint types contracts $(VENV)/.installed-test  ## checks, fast tests and smoke tests: for every change
	$(PYTEST) -m 'not slow or smoke'
	@echo "All is well: the checks and tests passed."

test-rest: $(VENV)/.installed-test  ## the slow tests that make test leaves out
	$(PYTEST) -m 'slow and not smoke'

test-all: test test-rest  ## everything: before a release

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

test-shuffled: $(VENV)/.installed-test  ## all tests in random order: make test-shuffled SEED=1
	$(PYTEST) --random-order-bucket=global $(if $(SEED),--random-order-seed=$(SEED))

fix: $(VENV)/.installed-test  ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

packs: $(VENV)/.installed  ## build the machine code that is linked instead of compiled, as far as it is stale
	@$(BIN)/python -m engine.build_ahead

lock:  ## write the versions that the workflows install (needs uv)
	(head -1 .ci/lock.txt; uv pip compile -q pyproject.toml --extra test --universal --no-annotate --no-header) > .ci/lock.new
	mv .ci/lock.new .ci/lock.txt

pictures: $(VENV)/.installed-test  ## draw the tests' pictures of screens again
	JALOPY_WRITE_PICTURES=1 $(BIN)/python -m pytest tests/app/tui/test_pictures.py -k 'size or console or colour'
	git diff --stat -- tests/app/pictures

readme-pictures: $(VENV)/.installed-test  ## draw the README's pictures (MODEL=path/to/model.gguf)
	$(BIN)/python -m tests.programs.readme_pictures "$(MODEL)"
	git diff --stat -- docs/pictures

bench: $(VENV)/.installed  ## measure a model: make bench MODEL=path/to/model.gguf
	@$(BIN)/jalopy bench "$(MODEL)"

clean:  ## remove the environment and what tools left
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
