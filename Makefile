# make demo and make test build .venv by themselves; all they need is Python 3.11
# or later with its venv module, and a package index.

PYTHON ?= python3
EPSILON ?= 1
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Also where Python is told to keep no byte code: pytest rewrites every test, which is a
# third of what it takes to find them.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2
QUICK := not slow and not audit and not thorough
THOROUGH := thorough and not slow and not audit
NEITHER_LONG := not slow and not audit
UNOPTIMIZED := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false \
    --xla_cpu_parallel_codegen_split_count=1

# The environments of make matrix: their interpreters, and what pip is held to.
# MATRIX_TESTS=tests/test_result.py runs these alone.
MATRIX := matrix-lowest matrix-arviz0 matrix-newest
MATRIX_TESTS ?=
PYTHON_lowest ?= python3.11
PYTHON_arviz0 ?= python3.11
# The newest one that starts: a version manager may have names that do not.
PYTHON_newest ?= $(shell for minor in 14 13 12 11; do \
    python3.$$minor -V > /dev/null 2>&1 && echo python3.$$minor && break; done)
CONSTRAINTS_lowest := $(PYTHON_lowest) tests/_lowest.py
CONSTRAINTS_arviz0 := echo 'arviz<1'
CONSTRAINTS_newest := true
GROUPS_newest := --group frames

.PHONY: demo test test-thorough test-slow audit lint docs dist bench foreign matrix clean

demo: $(VENV)/.examples
	$(BIN)/python examples/logistic_regression.py --data breast_cancer \
	    --epsilon $(EPSILON) --delta 1e-5 --output demo-output

# A file's tests share fits and compiled programs, so one process runs all of them.
# Most of the time goes into compiling programs that run once. A program that XLA does
# not optimise means the same up to rounding, so the tests get those, but for the tests
# whose subject is what the compiled program does: they are marked `optimized`. Nor is a
# program split, which lets threads share its compilation: both cores have tests to run.
# A jaxlib refuses to start with a flag that it does not know, so each is tried by itself.
define unoptimized
flags="$$XLA_FLAGS"; \
	for flag in $(UNOPTIMIZED); do \
	    XLA_FLAGS="$$flag" $(BIN)/python -c 'import jax; jax.devices()' 2> /dev/null \
	        && flags="$$flags $$flag"; \
	done; \
	XLA_FLAGS="$$flags" $(PYTEST) --dist loadfile
endef

test: $(VENV)/.test
	$(PYTEST) --dist loadfile -m '$(QUICK) and optimized' \
	    $$(grep -rl --include='test_*.py' 'mark.optimized' tests)
	$(unoptimized) -m '$(QUICK) and not optimized'

# Fits that are compared with references, and more models and settings for what each
# mechanism of privacy has in `make test` with one or two. CI runs both. Sums over the few
# rows of tests are compiled by the older generators of code (`jit_of_rows`); what holds
# of them is tested again with those that sums over many rows have.
test-thorough: $(VENV)/.test
	$(PYTEST) --dist loadfile -m '$(THOROUGH) and optimized' \
	    $$(grep -rl --include='test_*.py' 'mark.optimized' tests)
	$(PYTEST) --dist loadfile --as-of-many-rows \
	    -m 'optimized and not slow and not audit' \
	    $$(grep -rl --include='test_*.py' 'mark.optimized' tests)
	$(unoptimized) -m '$(THOROUGH) and not optimized' \
	    $$(grep -rlE --include='test_*.py' 'mark.(thorough|quick)' tests)

test-slow: $(VENV)/.test
	$(PYTEST) -m slow

audit: $(VENV)/.test
	$(PYTEST) -m audit tests/audit

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

# Notebooks run while pages are read, two at a time.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -j 2 -b html docs docs/_build/html

dist: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# Part by part: what has ended is kept. Other packages get environments of their own.
bench: $(VENV)/.examples
	$(BIN)/python benchmarks/run_all.py

# Fits what has no record yet, so that it can be stopped and goes on. References, which
# need funsor for discrete latents, are made by `benchmarks/foreign.py reference`.
foreign: $(VENV)/.examples
	$(BIN)/python benchmarks/foreign.py fit

.PHONY: $(MATRIX)

matrix: $(MATRIX)

# All that make test and make test-thorough run, each test once, compiled as there. pytest
# ends with 5 where it has no test to run.
$(MATRIX): matrix-%: .venv-matrix/%/.made
	$(PYTEST) --dist loadfile -m '$(NEITHER_LONG) and optimized' $(MATRIX_TESTS) \
	    || test $$? -eq 5
	$(unoptimized) -m '$(NEITHER_LONG) and not optimized' $(MATRIX_TESTS)
$(MATRIX): BIN = .venv-matrix/$(@:matrix-%=%)/bin

.venv-matrix/%/.made: pyproject.toml tests/_lowest.py
	mkdir -p $(@D)
	$(PYTHON_$*) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --upgrade 'pip>=25.1'
	$(CONSTRAINTS_$*) > $(@D)/constraints.txt
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet \
	    --constraint $(@D)/constraints.txt --editable '.[examples,formulas,tables]' \
	    --group test $(GROUPS_$*)
	touch $@

clean:
	rm -rf $(VENV) .venv-matrix .venv-peers build dist demo-output docs/_build .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# One stamp per dependency group: it is renewed when pyproject.toml changes, and a
# second call installs nothing. pip reads dependency groups from 25.1 on.
$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.examples: $(VENV)/.pip pyproject.toml
	$(PIP) install --quiet --editable '.[examples,formulas,tables]'
	touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(VENV)/.examples
	$(PIP) install --quiet --group $*
	touch $@
