# Everything here works on a fresh machine with Python >= 3.11, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := src tests benchmarks tools
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1

.PHONY: demo test test-fast test-laws test-faults test-offline check web web-check docs figures bench census papers coverage
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(OFFLINE) $(BIN)/headcount demo

# Two workers of one thread each: more threads per worker only make them wait for each other. Each takes half of the files, so that what the
# tests of a file share is computed once, and in the end what the other one has left.
WORKERS := 2
WRAPPER :=
PYTEST = $(OFFLINE) OMP_NUM_THREADS=1 $(WRAPPER) $(BIN)/pytest -n $(WORKERS) --dist worksteal
test: $(STAMP)
	$(PYTEST) $(ARGS)

# Unit tests of rooms and files that need few models, and the laws of gates and cuts on six model families: about 100 s of processor time.
UNIT := tests/core tests/models tests/project/test_forbidden.py tests/importance/test_score_arguments.py \
  $(addprefix tests/data/test_,losses.py metrics.py) \
  $(addprefix tests/pruning/test_,prune_spec.py knapsack.py schedules.py layer_strategies.py)
FAMILIES := bert or gpt2 or llama or t5 or vit or whisper
test-fast: $(STAMP)
	$(PYTEST) $(UNIT) $(ARGS)
	$(PYTEST) tests/laws/test_families.py -k "$(FAMILIES)" $(ARGS)

# The numerical laws once more with other vector instructions, which round differently: AVX2 where `make test` used AVX-512, else none.
CAPABILITY ?= $(shell grep -q avx512f /proc/cpuinfo 2>/dev/null && echo avx2 || echo default)
LAWS := tests/golden tests/core/test_ties.py $(addprefix tests/laws/test_,families.py relevance.py rounding.py left_padding.py importance.py repair_families.py)
test-laws: $(STAMP)
	ATEN_CPU_CAPABILITY=$(CAPABILITY) $(PYTEST) $(LAWS) $(ARGS)

# Faults in full numbers (a crash at every file operation, 300 kills, 200 corrupted files …); rewrites the table of docs/faults.md.
test-faults: $(STAMP)
	rm -rf build/faults
	$(PYTEST) -m faults tests/faults $(ARGS)
	$(OFFLINE) $(BIN)/python tests/faults/figures.py

# The same without a network: only the loopback is there, which torchrun and Ray need.
test-offline: $(STAMP)
	$(BIN)/python tools/offline.py $(MAKE) test

check: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/forbidden.py
	$(BIN)/python tools/unused.py

# The page of the report, from TypeScript to the bundle in the package; only those who change it need Node.
web: web/node_modules/.package-lock.json
	cd web && npm run build

web-check: web/node_modules/.package-lock.json
	cd web && npm run check

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --no-audit --no-fund

# The site of the documentation, in build/site; a broken link fails, which it would not with --quiet: that drops warnings before they are counted.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The figures of the method pages; takes a quarter of an hour and goes on after a stop.
figures: $(STAMP)
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python tools/figures.py

bench: $(STAMP)
	$(OFFLINE) $(BIN)/python benchmarks/gates.py

# Examines every model class of transformers; rewrites its rows, docs/census.md and the counts in README.md. Goes on after a stop.
census: $(STAMP)
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/census.py --workers 2 $(ARGS)

# The experiments of the six papers on embedded models, by the commands that users have; rewrites docs/papers. Goes on after a stop.
papers: $(STAMP)
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python tools/papers.py $(ARGS)

# How often verdicts, intervals and roles err, by simulation; rewrites the tables of docs/statistics.md. About ten minutes of processor time; goes on after a stop.
coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tools/measure_coverage.py $(ARGS)

# torch first, by itself, so that its pin decides before any other requirement does.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt torch
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[test,check,docs,onnx,ray]'
	touch $@
