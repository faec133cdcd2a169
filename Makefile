# `make demo` and `make test` need Python 3.11 or newer and nothing else; `make lab` starts real engines.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types unit docs bench lab clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP) ## audit the embedded simulated cluster
	$(BIN)/pdguard demo

test: lint types unit ## everything that needs no real engine

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/pytest -q -n auto --dist loadfile

docs: $(STAMP) ## print docs/checks.md and docs/facts.md from the catalogues
	$(BIN)/python -m tests.docs_pages

bench: $(STAMP) ## measure; never gates
	$(BIN)/pytest -q -m bench -s tests/bench

lab: $(STAMP) ## real SGLang on the CPU: prefill, decode, router; audit them live
	$(BIN)/python -m tests.lab.run

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build
