# Two commands do all the set-up: `make demo` and `make test`. They need Python, make, Java 17+ and the package index.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
STAMP := $(VENV)/.installed
ARCHIVE := $(VENV)/spark.jsa
LOWEST ?= .venv-lowest
LOWEST_STAMP := $(LOWEST)/.installed
JAX ?= .venv-jax
JAX_STAMP := $(JAX)/.installed
BACKEND_TESTS := trainer/test_worker.py trainer/test_corrections.py trainer/test_programs.py trainer/test_kept.py trainer/test_factories.py trainer/test_metric_sums.py \
	engine/test_in_process.py conformance/test_conformance.py conformance/test_drawn.py integration/test_on_backend.py
JAX_TESTS ?= $(addprefix tests/,trainer/test_jax.py trainer/test_jax_cache.py trainer/test_jax_loop.py \
	$(BACKEND_TESTS))
TORCH ?= .venv-torch
TORCH_STAMP := $(TORCH)/.installed
TORCH_TESTS ?= $(addprefix tests/,trainer/test_torch.py trainer/test_torch_buffers.py \
	trainer/test_torch_generator.py trainer/test_torch_loop.py $(BACKEND_TESTS))
NEXT ?= .venv-next
NEXT_STAMP := $(NEXT)/.installed
NEXT_TESTS ?= $(addprefix tests/,trainer conformance engine model tuning ensembles)
ELEPHAS := .venv-elephas
ELEPHAS_STAMP := $(ELEPHAS)/.installed
LOWEST_TESTS ?= $(addprefix tests/,spark rows engine model stages integration ensembles tuning trainer compat distkeras)

# pip would compile every module of TensorFlow: Python compiles those that are imported, once. Where it may not write what it has compiled,
# as in many containers, each process compiles them again (docs/performance.md): empty is "it may".
PIP_OPTIONS := --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=

# Executors run the Python of this environment; TensorFlow speaks up for errors only, and looks for no GPU.
export PYSPARK_PYTHON := $(BIN)/python
export TF_CPP_MIN_LOG_LEVEL ?= 3
export CUDA_VISIBLE_DEVICES ?= -1

# Tests of DataFrames that are not bound to classic sessions; tests/conftest.py leaves the others out.
CONNECT_TESTS ?= $(addprefix tests/,connect integration/test_frame_fit.py integration/test_ml_conventions.py \
	model/test_frame_predictions.py rows/test_examples.py rows/test_prediction_columns.py rows/test_records.py \
	rows/test_valid_rows.py stages)

.PHONY: help docs demo test test-slow test-connect test-lowest test-next test-jax test-torch lint examples faults bench clean machine postgresql chromium

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

machine:
	@$(PYTHON) tools/check_machine.py

$(STAMP): pyproject.toml
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install $(PIP_OPTIONS) -e '.[dev]'
	@touch $(STAMP)

demo: machine $(STAMP) ## train on real MNIST images over local Spark, beside plain Keras
	@mkdir -p out
	@$(BIN)/python examples/demo.py 2>out/demo.log || { cat out/demo.log; exit 1; }

lint: $(STAMP) ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: machine $(STAMP) lint ## lint, then all tests but the slow ones
	$(BIN)/python -m pytest -m "not slow" -n 4

postgresql: ## a database for the slow tests, by apt-get; no-op where it is, a line where it cannot be installed
	@$(PYTHON) tools/postgresql.py

chromium: ## a browser for the slow tests, likewise
	@$(PYTHON) tools/chromium.py

# Java's classes for the clusters and scripts, which start a hundred JVMs.
$(ARCHIVE): $(STAMP) tools/class_archive.py
	@$(BIN)/python tools/class_archive.py $@

test-slow: machine $(STAMP) $(ARCHIVE) postgresql chromium ## clusters, killed executors, big shards, examples, a database, a browser
	$(BIN)/python -m pytest -m slow -n 3

# Spark takes a free port for its Connect server if it is told that it is tested.
test-connect: machine $(STAMP) ## the tests of DataFrames over Spark Connect (test-slow has a selection)
	ELEPHAS_LIKE_CONNECT=1 SPARK_TESTING=1 $(BIN)/python -m pytest -p no:xdist $(CONNECT_TESTS)

$(LOWEST_STAMP): pyproject.toml tools/lowest.py
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade pip
	$(PYTHON) tools/lowest.py >$(LOWEST)/pins.txt
	$(LOWEST)/bin/python -m pip install $(PIP_OPTIONS) -c $(LOWEST)/pins.txt -e '.[dev]'
	@touch $(LOWEST_STAMP)

# Old packages warn about each other, and an old hypothesis about what Python's collector was told not to look at (tests/conftest.py);
# that is no failure here.
test-lowest: export PYSPARK_PYTHON := $(abspath $(LOWEST))/bin/python
test-lowest: machine $(LOWEST_STAMP) ## Spark 3.5 and the lowest version of every other dependency: what touches them (Python 3.11)
	$(LOWEST)/bin/python -m pytest -m "not slow" -n 2 -W ignore::DeprecationWarning -W ignore::FutureWarning \
		-W ignore::hypothesis.errors.HypothesisWarning $(LOWEST_TESTS)

# A nightly build has the package `keras`, too: the one that others ask for goes.
$(NEXT_STAMP): pyproject.toml
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv --clear $(NEXT)
	$(NEXT)/bin/python -m pip install --quiet --upgrade pip
	$(NEXT)/bin/python -m pip install $(PIP_OPTIONS) -e '.[dev]'
	$(NEXT)/bin/python -m pip uninstall --quiet --yes keras
	$(NEXT)/bin/python -m pip install $(PIP_OPTIONS) --pre --no-deps --force-reinstall keras-nightly
	@touch $(NEXT_STAMP)

test-next: machine $(NEXT_STAMP) ## the Keras of tomorrow, a nightly build: fast tests that touch Keras, without Spark
	$(NEXT)/bin/python -m pytest -m "not slow and not spark" -n 4 $(NEXT_TESTS)

$(JAX_STAMP): pyproject.toml
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv --clear $(JAX)
	$(JAX)/bin/python -m pip install --quiet --upgrade pip
	$(JAX)/bin/python -m pip install $(PIP_OPTIONS) -e '.[dev-jax]'
	@touch $(JAX_STAMP)

test-jax: export PYSPARK_PYTHON := $(abspath $(JAX))/bin/python
test-jax: export KERAS_BACKEND := jax
test-jax: machine $(JAX_STAMP) ## Keras on JAX, in an environment without TensorFlow
	$(JAX)/bin/python -m pytest -n 2 $(JAX_TESTS)

# Where the package index has a build of PyTorch without CUDA, that one: it is a tenth of the size.
$(TORCH_STAMP): pyproject.toml tools/cpu_build.py
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv --clear $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --upgrade pip
	$(TORCH)/bin/python tools/cpu_build.py torch >$(TORCH)/pins.txt
	$(TORCH)/bin/python -m pip install $(PIP_OPTIONS) -c $(TORCH)/pins.txt -e '.[dev-torch]'
	@touch $(TORCH_STAMP)

test-torch: export PYSPARK_PYTHON := $(abspath $(TORCH))/bin/python
test-torch: export KERAS_BACKEND := torch
test-torch: machine $(TORCH_STAMP) ## Keras on PyTorch, likewise
	$(TORCH)/bin/python -m pytest -n 2 $(TORCH_TESTS)

docs: $(STAMP) ## the site of docs/ in out/site, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo out/site/index.html

faults: ## the table of faults, written anew into docs/fault-tolerance.md
	@$(PYTHON) tools/faults.py --write

$(ELEPHAS_STAMP):
	$(PYTHON) -m venv --clear $(ELEPHAS)
	$(ELEPHAS)/bin/python -m pip install --quiet 'elephas>=7.3,<8'
	@touch $(ELEPHAS_STAMP)

bench: machine $(STAMP) $(ELEPHAS_STAMP) ## this library, Keras, Elephas and the limit in turn: hours; goes on where it stopped
	$(BIN)/python benchmarks/bench.py --elephas $(ELEPHAS)/bin/python
	$(BIN)/python benchmarks/bench.py --report

clean: ## what was built here
	rm -rf $(VENV) $(LOWEST) $(NEXT) $(JAX) $(TORCH) $(ELEPHAS) build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
