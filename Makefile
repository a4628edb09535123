# Everything runs in .venv. A machine needs Python 3.11 or newer with venv, and make; the rest comes as wheels.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
# Bytecode is kept, and not beside the source: a test starts many processes, and compiling takes most of the start.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/bytecode

.PHONY: setup demo test quick check bench chaos soak mutants compose-test clean

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/gagar demo

# More workers than cores: tests of processes wait more than they compute. Those that judge time run alone, after the others.
WORKERS ?= 3
test: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder -m "not alone"
	$(BIN)/pytest -m alone

# What needs no process beside it: the unit tests, and the contract tests in memory.
quick: $(STAMP)
	$(BIN)/pytest -n 2 --no-loadscope-reorder --quick tests/unit tests/contract

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# PART=verdict, engine or stream; without, all of them.
bench: $(STAMP)
	$(BIN)/python -m tests.bench $(PART)

# The whole stream under fire, against the same undisturbed; GROUPS from 125 on, BROKERS=3 for a cluster.
GROUPS ?= 500
SEED ?= 1
BROKERS ?= 1
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --groups $(GROUPS) --seed $(SEED) --brokers $(BROKERS)

# A long run under fire alone, which judges the memory of every stage as well.
soak: GROUPS = 60000
soak: $(STAMP)
	$(BIN)/python -m tests.chaos --groups $(GROUPS) --seed $(SEED) --brokers $(BROKERS) --fire-only

# Breaks the rules of the stream's runtime one by one, in a copy: RULE="words" for those that name them.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(if $(RULE),"$(RULE)")

# The compose files on this machine's Docker engine, as root; STEPS=30 for a longer run, CLUSTER=1 for three brokers.
STEPS ?= 20
compose-test: $(STAMP)
	$(BIN)/python -m tests.compose --steps $(STEPS) $(if $(CLUSTER),--cluster) $(if $(CA_BUNDLE),--ca-bundle $(CA_BUNDLE))

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache

$(STAMP): pyproject.toml requirements/uv.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: python: expected 3.11 or newer as $(PYTHON), got $$($(PYTHON) --version 2>&1); name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: python: expected $(PYTHON) with the modules venv and ensurepip, got none; on Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes requirements/uv.txt requirements/dev.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation -e .
	@touch $@
