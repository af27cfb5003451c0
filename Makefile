# Two commands do everything:  make quickstart   make test
# Settings: PYTHON (3.11 or newer), VENV, TORCH_INDEX_URL (for example PyTorch's CPU index), PYTEST_ARGS.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX_URL ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
SETUP := pyproject.toml constraints.txt
READY := $(VENV)/.headwater-ready
DEV_READY := $(VENV)/.headwater-dev-ready

.PHONY: quickstart test lint soak install dev help
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up $(VENV) and run recipes/quickstart.yaml on the CPU"
	@echo "make test         set up the development tools, check style and types, run all tests"
	@echo "make lint         style and types only"
	@echo "make soak         the long tests (many kills, long streams)"

quickstart: $(READY)
	$(BIN)/headwater run recipes/quickstart.yaml

# Everything runs even if style or types are wrong, and pytest last, so that the output ends with its summary.
test: $(DEV_READY)
	@code=0; $(MAKE) --no-print-directory lint || code=1; \
	echo '$(BIN)/python -m pytest -m "not soak" $(PYTEST_ARGS)'; \
	$(BIN)/python -m pytest -m "not soak" $(PYTEST_ARGS) || code=1; exit $$code

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(DEV_READY)
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

install: $(READY)
dev: $(DEV_READY)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: '$(PYTHON)' is not on this machine. Headwater needs Python 3.11 or newer;" >&2; \
	  echo "      name yours: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $$($(PYTHON) --version) is too old. Headwater needs Python 3.11 or newer;" >&2; \
	  echo "      name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make virtual environments: its venv module is missing" >&2; \
	  echo "      (on Debian and Ubuntu it is the package python3-venv)." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that no other package pulls another build of it.
$(READY): $(SETUP) | $(BIN)/python
	$(PIP) install $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch==2.13.0
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV_READY): $(READY)
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
