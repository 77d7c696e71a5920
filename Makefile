# Everything a fresh machine needs is done here; the only thing assumed is Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-live lint install install-dev install-rl format bench clean

run: $(VENV)/.installed
	$(BIN)/manyhands train

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2

# Six devices in network namespaces, killed, stopped and cut off; needs root and takes minutes.
test-live: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/live_faults.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/messages.py
	$(BIN)/python benchmarks/simulator.py

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev
install-rl: $(VENV)/.installed-rl

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "manyhands needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,rl]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-rl

$(VENV)/.installed-rl: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[rl]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
