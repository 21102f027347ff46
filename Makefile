# Common uses:
#   make demo      the main job on this machine: 2 slices x 2 hosts train on real text, one host is killed
#   make test      unit and local tests (under 5 minutes)
#   make e2e       drills on this machine and on a real kind cluster: hosts, nodes, controllers killed (as root; about
#                  25 minutes, and 25 more the first time, when the environment is built)
#   make e2e-all   the same, and the drills marked `extended` (about 50 minutes)
#   make e2e-local those with processes of this machine only (8 minutes; needs neither root nor Docker)
#   make e2e-compiler  estimates against XLA's compiler for TPUs (2 minutes, and 700 MB of libtpu the first time)
#   make check     what CI checks first: format, lint, spelling, types, layers
#   make format    let ruff fix what it can
#   make lock      resolve the pinned versions anew, with the SHA-256 of every file, after a change of constraints.txt
#   make golden    write golden manifests and generated docs anew after a wanted change
#   make install   put everything into .venv (every target above does it when needed)
#   make clean     remove what the targets above made
#
# Variables: PYTHON (python3.11 or newer), PYTEST_ARGS.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests that leave out what needs an object store unless fake-gcs-server is there, as it is in the environment of e2e.
WITH_BUCKET := tests/storage tests/cli/test_outputs.py tests/jobs/test_output.py tests/render/test_unpack.py

ON_KIND := $(sort $(wildcard e2e/test_kind*.py))

# A process that dies ends the run: xdist may wait for ever for the one that comes in its place.
PARALLEL := --max-worker-restart 0 --numprocesses

# CI leaves out the drills marked `extended`: each repeats most of another one. `make e2e-all` runs them too.
SELECTED := not extended

# XLA's compiler for TPUs, which no other test has to find (docs/results.md): 700 MB.
TPU := $(VENV)/tpu

# A line for each test, whole when it is written: two runs write at once.
DRILLS = $(PARALLEL) 1 --verbose --timeout 1200 --maxfail 5 -m "$(SELECTED)"

.DEFAULT_GOAL := help
.PHONY: help install demo test e2e e2e-all e2e-kind e2e-here e2e-local e2e-compiler check format lock golden clean

help:  ## show this
	@sed -n 's/^#\( \{0,1\}\)/\1/p' Makefile | sed '/^$$/q'

install: $(STAMP)

# Only wheels whose SHA-256 is in the list are installed: nothing that the index adds or replaces later, and no setup.py.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --quiet
LOCKED := $(PIP) --require-hashes --only-binary :all:

$(STAMP): pyproject.toml requirements/development.txt
	@echo "==> installing into $(VENV) (a few minutes the first time: JAX is large)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: Python 3.11 or newer is needed, $(PYTHON) is older" >&2; echo "  next: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(LOCKED) --requirement requirements/development.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
	@echo "==> installed: $$($(BIN)/xpk --version)"

demo: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m e2e.demo

test: $(STAMP)
	@echo "==> unit and local tests"
	@$(BIN)/python -m pytest -m "not slow" $(PARALLEL) 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# The drills on kind go one after another and leave a core to the others.
e2e: $(STAMP)
	@echo "==> the environment of the drills on kind (built once, then cached)"
	@set -e; exports=$$(e2e/environment/up); eval "$$exports"; \
	  $(MAKE) --no-print-directory --keep-going --jobs 2 e2e-kind e2e-here; \
	  echo "==> the slow ones among the local tests"; \
	  $(BIN)/python -m pytest -m "slow$(if $(SELECTED), and $(SELECTED))" $(PARALLEL) 2 --dist worksteal $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory e2e-compiler

e2e-all:
	@$(MAKE) --no-print-directory SELECTED= e2e

e2e-compiler: $(TPU)/.installed
	@echo "==> XLA's compiler for TPUs: what it says of programs, and whether estimates are near it"
	@PYTHONPATH=$(CURDIR)/$(TPU) $(BIN)/python -m pytest tests/trainer/test_trainer_aot.py --verbose $(PYTEST_ARGS)

$(TPU)/.installed: requirements/tpu.txt | $(STAMP)
	@echo "==> installing libtpu (700 MB)"
	@$(LOCKED) --no-deps --target $(TPU) --upgrade --requirement requirements/tpu.txt
	@touch $@

e2e-kind:
	@echo "==> drills with real pods and controllers"
	@$(BIN)/python -m pytest $(ON_KIND) $(DRILLS) $(PYTEST_ARGS)

e2e-here:
	@echo "==> drills with real processes, a real object store, GKE's emulator"
	@$(BIN)/python -m pytest $(filter-out $(ON_KIND),$(wildcard e2e/test_*.py)) $(WITH_BUCKET) $(DRILLS) $(PYTEST_ARGS)

e2e-local: $(STAMP)
	@echo "==> drills with real processes"
	@$(BIN)/python -m pytest e2e/test_recovery.py --timeout 900 $(PYTEST_ARGS)

check: $(STAMP)
	@echo "==> format"; $(BIN)/ruff format --check --quiet . || { echo "  next: make format" >&2; exit 1; }
	@echo "==> lint"; $(BIN)/ruff check --quiet .
	@echo "==> spelling"; $(BIN)/codespell xpk workloads tests e2e bench docs manifests *.md Makefile pyproject.toml
	@echo "==> types"; $(BIN)/mypy
	@echo "==> layers"; PYTHONPATH=workloads $(BIN)/lint-imports

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --only-binary :all: --generate-hashes \
  --no-annotate --no-header --constraint constraints.txt
IMAGE := --extra trainer --extra tokenizer --extra gcs --extra ray

lock: $(STAMP)
	@$(LOCK) pyproject.toml $(IMAGE) --extra kubernetes --extra gke --extra dev --output-file requirements/development.txt
	@$(LOCK) pyproject.toml $(IMAGE) --output-file requirements/image.txt
	@echo libtpu | $(LOCK) --no-deps --output-file requirements/tpu.txt -

golden: $(STAMP)
	@XPK_UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/render tests/docs tests/trainer/test_trainer_shardings.py --quiet

clean:
	rm -rf $(VENV) demo-output dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
