# make demo and make test build .venv by themselves; all they need is Python 3.11
# or later with its venv module, and a package index.

PYTHON ?= python3
EPSILON ?= 1
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2

.PHONY: demo test test-slow audit lint docs clean

demo: $(VENV)/.examples
	$(BIN)/python examples/logistic_regression.py --data breast_cancer \
	    --epsilon $(EPSILON) --delta 1e-5 --output demo-output

# A file's tests share fits and compiled programs, so one process runs all of them.
test: $(VENV)/.test
	$(PYTEST) --dist loadfile

test-slow: $(VENV)/.test
	$(PYTEST) -m slow

audit: $(VENV)/.test
	$(PYTEST) -m audit tests/audit

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist demo-output docs/_build .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# One stamp per dependency group: it is renewed when pyproject.toml changes, and a
# second call installs nothing. pip reads dependency groups from 25.1 on.
$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.examples: $(VENV)/.pip pyproject.toml
	$(PIP) install --quiet --editable '.[examples]'
	touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs: $(VENV)/.%: $(VENV)/.examples
	$(PIP) install --quiet --group $*
	touch $@
