# Common uses:
#   make demo      train on this machine: 2 slices x 2 hosts, real text, one host is killed
#   make test      run unit and local tests (5 minutes on two quiet cores)
#   make fuzz      try 100,000 hostile inputs: options, files, answers of servers (XPK_FUZZ_EXAMPLES; make test tries 3,200)
#   make simulate  let simulated clusters live for 50,000 hours, and check what must always hold (XPK_SIMULATED_HOURS)
#   make mutation  change modules that make decisions in small ways, and check that tests notice (MODULE=, MOST=, SEED=)
#   make e2e       run drills, here and on a real kind cluster, that kill hosts, nodes and controllers (as root; about
#                  25 minutes, and 25 more the first time to build the environment)
#   make e2e-all   run what takes too long for CI, one after another, and write docs/long-runs.md (about 12 hours)
#   make e2e-local run only the drills with local processes (8 minutes; needs neither root nor Docker)
#   make e2e-compiler  compare estimates with XLA's TPU compiler (2 minutes, and 700 MB of libtpu the first time)
#   make chaos     inject every kind of fault into local runs, and write docs/chaos.md (as root; about an hour)
#   make newest    run the trainer's tests with the newest supported JAX and the newest Python here (4 minutes)
#   make bench     run the short benchmarks (about 20 minutes), write docs/performance.md, and list the long ones
#   make gate      compare startup times with the stored ratios, as CI does
#   make check     check format, lint, spelling, prose, types, layers and workflows, as CI does first
#   make docs      build the documentation site in site/; a broken link fails
#   make man       write man pages of all commands to build/man; `MANPATH=build/man man xpk-workload-create` shows one
#   make format    apply ruff's format and fixes
#   make audit     check the workflows, and all pinned versions for known vulnerabilities (asks the index and, with GH_TOKEN,
#                  GitHub; `not checked` if they do not answer)
#   make release   build wheel, sdist, SBOMs, provenance and SHA256SUMS of the commit in dist/, reproducibly; uploads nothing
#   make lock      resolve the pinned versions, with the SHA-256 of every file, after a change of constraints.txt
#   make golden    regenerate golden manifests and generated docs after an intended change
#   make install   install everything into .venv (every target above does it when needed)
#   make clean     remove what the targets above have created
#
# Variables: PYTHON (python3.11 or newer), PYTEST_ARGS, TAG (of make release: refuse another version).

PYTHON ?= python3
# Bytecode is kept also where the environment forbids it: tests start hundreds of processes, each would compile anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests with cases that need fake-gcs-server; the environment of e2e provides it, elsewhere they are skipped.
WITH_BUCKET := tests/storage tests/cli/workload/test_outputs.py tests/jobs/output/test_folder.py tests/render/test_unpack.py

ON_KIND := $(sort $(wildcard e2e/test_kind*.py))

# A dead worker ends the run: xdist may wait forever for its replacement.
PARALLEL := --max-worker-restart 0 --numprocesses

# CI skips drills marked `extended`: each repeats most of another one. `make e2e-all` includes them.
SELECTED := not extended

# CI also skips the slow tests of the mathematics of models, meshes and steps: `make test` tests each family, and no host or
# pod can change them. `make e2e-all` includes them, as does `make e2e-slow SELECTED=`.
MATHEMATICS := tests/trainer/models tests/trainer/parallel tests/trainer/test_translation.py \
  $(addprefix tests/trainer/data/, test_packed_pairs.py test_packing.py) \
  $(addprefix tests/trainer/step/, test_gradient_reduction.py test_programs.py test_shares.py test_update_sharding.py)

# Folder of XLA's TPU compiler (libtpu, 700 MB), separate so that no other test imports it (docs/results.md).
TPU := $(VENV)/tpu

# The newest releases of JAX need a newer Python than the oldest that is supported.
NEWEST := $(VENV)/newest
NEWEST_PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 $$(ls -d ~/.pyenv/versions/3.1[2-9].*/bin/python3 2> /dev/null | sort -rV); do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null && { echo $$python; break; }; done)

# cosmic-ray has an environment of its own, with those packages that `make mutation` uses: one of the others is no wheel.
MUTATION := $(VENV)/mutation
MUTATES := cosmic-ray attrs parso pyyaml stevedore

# MkDocs has an environment of its own: nothing else needs its packages.
DOCS := $(VENV)/docs

# So have releases, which few packages should be able to change, and the audit.
RELEASE := $(VENV)/release
AUDIT := $(VENV)/audit

# --verbose prints one complete line for each test, because two runs write at the same time.
DRILLS = $(PARALLEL) 1 --verbose --timeout 1200 --maxfail 5 -m "$(SELECTED)"

.DEFAULT_GOAL := help
.PHONY: help install demo test fuzz simulate mutation chaos e2e e2e-all e2e-kind e2e-here e2e-slow e2e-here-and-slow e2e-local e2e-compiler newest environments bench gate check docs man audit release format lock golden clean

help:
	@sed -n 's/^#\( \{0,1\}\)/\1/p' Makefile | sed '/^$$/q'

install: $(STAMP)

# Install only wheels whose SHA-256 is listed: no later changes of the index, and no setup.py.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --quiet
LOCKED := $(PIP) --require-hashes --only-binary :all:

$(STAMP): pyproject.toml requirements/development.txt
	@echo "==> installing into $(VENV) (a few minutes the first time: JAX is large)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: requires Python 3.11 or newer, $(PYTHON) is older" >&2; echo "  hint: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(LOCKED) --requirement requirements/development.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
	@echo "==> installed: $$($(BIN)/xpk --version)"

demo: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m e2e.demo

# Five, because tests that wait run beside those that compute (tests/conftest.py): with four, the cores are idle for a tenth of the time.
test: $(STAMP)
	@echo "==> unit and local tests"
	@$(BIN)/python -m pytest -m "not slow" --ignore tests/architecture $(PARALLEL) 5 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

fuzz: $(STAMP)
	@echo "==> hostile inputs"
	@XPK_FUZZ_EXAMPLES=$${XPK_FUZZ_EXAMPLES:-100000} $(BIN)/python -m pytest tests/fuzz --timeout 7200 $(PARALLEL) 4 \
	  --dist load $(PYTEST_ARGS)

simulate: $(STAMP)
	@$(BIN)/python -m tests.simulation --hours $${XPK_SIMULATED_HOURS:-50000}
	@$(BIN)/python -m tests.simulation.checkpoints
	@$(BIN)/python -m tests.simulation.membership
	@$(BIN)/python -m tests.simulation.placement

mutation: $(MUTATION)/.installed
	@$(MUTATION)/bin/python -m tools.mutation --python $(BIN)/python $(MODULE:%=--module %) $(MOST:%=--most %) $(SEED:%=--seed %)

$(MUTATION)/.installed: requirements/mutation.txt | $(STAMP)
	@$(PYTHON) -m venv $(MUTATION)
	@$(MUTATION)/bin/python -m pip install --disable-pip-version-check --progress-bar off --quiet \
	  --require-hashes --only-binary :all: --no-deps --requirement requirements/mutation.txt
	@touch $@

chaos: $(STAMP)
	@echo "==> every kind of fault on local hosts"
	@PATH="$${XPK_E2E_CACHE:-$$HOME/.cache/xpk-e2e}/bin:$$PATH" $(BIN)/python -m e2e.matrix --platform local

# Drills on kind run one after another and leave a core to the other drills, and then to the slow tests. These take longer
# in three processes than in two: threads that carry collectives spin while those that they wait for have no CPU.
e2e: $(STAMP)
	@echo "==> environment of the drills on kind (built once, then cached)"
	@set -e; exports=$$(e2e/environment/up); eval "$$exports"; \
	  $(MAKE) --no-print-directory --keep-going --jobs 2 e2e-kind e2e-here-and-slow
	@$(MAKE) --no-print-directory e2e-compiler

e2e-all: $(STAMP)
	@$(BIN)/python -m e2e.long_runs

e2e-compiler: $(TPU)/.installed
	@echo "==> estimates against XLA's TPU compiler"
	@PYTHONPATH=$(CURDIR)/$(TPU) $(BIN)/python -m pytest tests/trainer/estimate/test_aot.py --verbose $(PYTEST_ARGS)

$(TPU)/.installed: requirements/tpu.txt | $(STAMP)
	@echo "==> installing libtpu (700 MB)"
	@$(LOCKED) --no-deps --target $(TPU) --upgrade --requirement requirements/tpu.txt
	@touch $@

e2e-kind:
	@echo "==> drills with real pods and controllers"
	@$(BIN)/python -m pytest $(ON_KIND) $(DRILLS) $(PYTEST_ARGS)

e2e-here:
	@echo "==> drills with real processes, a real object store and the GKE emulator"
	@$(BIN)/python -m pytest $(filter-out $(ON_KIND),$(wildcard e2e/test_*.py)) $(WITH_BUCKET) $(DRILLS) $(PYTEST_ARGS)

e2e-slow:
	@echo "==> slow local tests"
	@$(BIN)/python -m pytest -m "slow$(if $(SELECTED), and $(SELECTED))" $(if $(SELECTED),$(MATHEMATICS:%=--ignore %)) \
	  $(PARALLEL) 2 --dist worksteal $(PYTEST_ARGS)

e2e-here-and-slow:
	@status=0; for target in e2e-here e2e-slow; do $(MAKE) --no-print-directory $$target || status=1; done; exit $$status

e2e-local: $(STAMP)
	@echo "==> drills with real processes"
	@$(BIN)/python -m pytest e2e/test_recovery.py --timeout 900 $(PYTEST_ARGS)

newest:
ifeq ($(NEWEST_PYTHON),)
	@echo "==> no Python newer than 3.11 found: not tested with a newer JAX"
else
	@$(MAKE) --no-print-directory $(NEWEST)/.installed
	@echo "==> the trainer with $$($(NEWEST)/bin/python -c 'import jax, platform; print("JAX", jax.__version__, "on Python", platform.python_version())')"
	@$(NEWEST)/bin/python -m pytest tests/trainer -m "not slow" $(PARALLEL) 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
endif

$(NEWEST)/.installed: requirements/newest.txt | $(STAMP)
	@echo "==> installing the newest JAX for $(NEWEST_PYTHON)"
	@$(NEWEST_PYTHON) -m venv $(NEWEST)
	@$(NEWEST)/bin/python -m pip install --disable-pip-version-check --progress-bar off --quiet \
	  --require-hashes --only-binary :all: --requirement requirements/newest.txt
	@touch $@

environments: $(DOCS)/.installed $(TPU)/.installed $(if $(NEWEST_PYTHON),$(NEWEST)/.installed)

# Each needs at most a few minutes and nothing but this machine; bench/README.md describes all.
SHORT_BENCHES := startup commands
PARTS := reform_member performance
LONG_BENCHES := $(filter-out $(SHORT_BENCHES) $(PARTS),$(patsubst bench/%/__main__.py,%,$(wildcard bench/*/__main__.py)) \
  $(patsubst bench/%.py,%,$(shell grep -l "__main__" bench/*.py)))

bench: $(STAMP)
	@set -e; for name in $(SHORT_BENCHES); do echo "==> $$name"; $(BIN)/python -m bench.$$name; done
	@echo "==> docs/performance.md"; $(BIN)/python -m bench.performance
	@echo "==> long benchmarks, not run (bench/README.md):"
	@for name in $(sort $(LONG_BENCHES)); do echo "  python -m bench.$$name"; done

gate: $(STAMP)
	@echo "==> startup next to the stored ratios"
	@$(BIN)/python -m bench.startup --gate --runs 9

check: $(STAMP)
	@echo "==> format"; $(BIN)/ruff format --check --quiet . || { echo "  next: make format" >&2; exit 1; }
	@echo "==> lint"; $(BIN)/ruff check --quiet .
	@echo "==> spelling"; $(BIN)/codespell xpk workloads tests e2e bench docs examples tools manifests *.md Makefile pyproject.toml
	@echo "==> prose"; $(BIN)/python -m tools.prose
	@echo "==> types"; $(BIN)/mypy
	@echo "==> layers"; PYTHONPATH=workloads $(BIN)/lint-imports
	@echo "==> rules of the code base"; $(BIN)/python -m pytest --quiet tests/architecture
	@echo "==> workflows"; $(BIN)/zizmor --quiet --pedantic --offline .github

docs: $(DOCS)/.installed
	@echo "==> documentation"
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs --quiet build --strict --clean

audit: $(AUDIT)/.installed $(STAMP)
	@echo "==> workflows"; $(BIN)/zizmor --quiet --pedantic $(if $(GH_TOKEN),,--offline) .github
	@echo "==> known vulnerabilities"; $(BIN)/python -m tools.audit $(AUDIT)/bin/pip-audit requirements/*.txt

# TAG comes from the environment: make would run what a tag's name has in $().
release: $(RELEASE)/.installed
	@$(RELEASE)/bin/python -m tools.release --tag "$${TAG:-}"

$(DOCS)/.installed $(RELEASE)/.installed $(AUDIT)/.installed: $(VENV)/%/.installed: requirements/%.txt
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --progress-bar off --quiet \
	  --require-hashes --only-binary :all: --requirement $<
	@touch $@

man: $(STAMP)
	@$(BIN)/python -m tools.man_pages build/man/man1

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

ANNOTATED_LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --only-binary :all: --generate-hashes \
  --no-header --constraint constraints.txt
LOCK := $(ANNOTATED_LOCK) --no-annotate
IMAGE := --extra trainer --extra tokenizer --extra images --extra translation --extra detection --extra gcs --extra ray
RUNTIME := $(IMAGE) --extra kubernetes --extra gke --extra mcp --extra serve

lock: $(STAMP)
	@$(LOCK) pyproject.toml $(RUNTIME) --extra dev --output-file requirements/development.txt
	@$(LOCK) pyproject.toml $(IMAGE) --output-file requirements/image.txt
	@$(LOCK) pyproject.toml --output-file requirements/base.txt
	@$(ANNOTATED_LOCK) pyproject.toml $(RUNTIME) --extra tpu --output-file requirements/extras.txt
	@printf '%s\n' 'cyclonedx-python-lib[json-validation]' hatchling | $(LOCK) --output-file requirements/release.txt -
	@echo uv | $(LOCK) --output-file requirements/publish.txt -
	@echo pip-audit | $(LOCK) --output-file requirements/audit.txt -
	@echo mkdocs-material | $(LOCK) --output-file requirements/docs.txt -
	@printf '%s\n' $(MUTATES) | $(LOCK) --no-deps --output-file requirements/mutation.txt -
	@$(subst 3.11,3.12,$(filter-out --constraint constraints.txt,$(LOCK))) pyproject.toml --extra trainer --extra tokenizer --extra images --extra translation --extra detection --extra gcs --extra dev \
	  --output-file requirements/newest.txt
	@echo libtpu | $(LOCK) --no-deps --output-file requirements/tpu.txt -

golden: $(STAMP)
	@XPK_UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/render tests/docs tests/trainer/parallel/test_shardings.py --quiet

clean:
	rm -rf $(VENV) demo-output site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
