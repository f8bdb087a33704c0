# Everything a person does with a clone is a target of this file. `make` alone lists them.

PYTHON ?= python3
NOTEBOOK := notebooks/01_the_jax_device.ipynb
BIN := .venv/bin
# nbval runs notebooks. The other tests do not import it: that takes half a second in each process.
PYTEST := $(BIN)/pytest -p no:nbval

# Tests compile the same programs again and again: keep them between runs (`make clean` forgets them).
CACHE := JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR=$(CURDIR)/build/jax-cache \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
	JAXTORCH_NATIVE_FOLDER=$(CURDIR)/build/native

# Compiles the fast paths of eager calls. Without a C++ compiler it says so, and calls run in Python.
NATIVE := $(CACHE) $(BIN)/python -m jaxtorch.native

# XLA's compiler at its fastest, because most tests run each program a few times: LLVM optimizes less. What XLA does
# with a program (fusions, layouts, collectives) stays the same.
TESTS := $(CACHE) OMP_NUM_THREADS=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1

# Faster still, for tests of values: a program is one LLVM module instead of up to 32, and its fusions are emitted without
# MLIR. It costs a third less. Single instructions are not wrapped in fusions then, and a scatter is a loop.
VALUES := $(TESTS) XLA_FLAGS="--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"

# Tests of what people see of XLA's programs.
VIEWS := tests/insight tests/magics tests/widgets

# Tests of sharded tensors, with 8 simulated devices. `pytest tests` does not collect these files.
SHARDED := tests/sharding/on_8_devices/[a-z]*.py

# Tests that press Ctrl-C: in processes of their own, where no other test can be hit.
INTERRUPTS := tests/magics/test_ctrl_c.py tests/device/test_interrupts.py tests/dispatch/test_interrupts.py \
	tests/deferred/test_interrupts.py tests/magics/test_cluster.py

# A sample of each folder: what breaks first when something is moved or renamed.
QUICK := tests/test_layers.py tests/test_packages.py tests/test_options.py tests/storage tests/lowerings/test_foreach.py \
	tests/dispatch/test_site.py tests/dispatch/test_hot_path.py tests/device/test_module.py tests/torch_api/test_autograd.py \
	tests/capture/test_scopes.py tests/capture/test_jit.py tests/interop/test_call_jax.py tests/insight/test_status.py \
	tests/insight/test_recompiles.py tests/widgets/test_status.py tests/magics/test_subcommands.py

# The tests of calls and views, which run a second time without the compiled fast paths.
IN_PYTHON := tests/storage tests/dispatch tests/deferred $(addprefix --ignore ,tests/dispatch/test_interrupts.py \
	tests/deferred/test_interrupts.py)

# The tests that `make deferred` runs in each mode.
DEFERRED := tests/storage tests/dispatch tests/torch_api tests/models tests/lowerings tests/deferred \
	$(addprefix --ignore ,tests/dispatch/test_interrupts.py tests/deferred/test_interrupts.py)

NODE_MODULES := widgets/js/node_modules/.package-lock.json

.DEFAULT_GOAL := help
.PHONY: help lab demo quick test wheel browser lint widgets pictures conformance torch-suite fuzz deferred thorough versions docs bench scale soak clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

PORT ?=
HOST ?=
ARGS ?=
lab: .venv/lab.stamp ## open the first notebook in JupyterLab (PORT=8888 HOST=0.0.0.0 ARGS=--no-browser)
	$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" $(if $(PORT),--port=$(PORT)) $(if $(HOST),--ip=$(HOST)) \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(NOTEBOOK) $(ARGS)

demo: .venv/lab.stamp ## run the first notebook without a browser, into build/01_the_jax_device.html
	$(BIN)/python scripts/demo.py $(NOTEBOOK) build

test: .venv/test.stamp build/libtpu build/chromium $(NODE_MODULES) lint ## lint, then run every test, doctest and notebook
	-$(NATIVE)
	$(CACHE) $(PYTEST) --pyargs jaxtorch --doctest-modules -q
	$(CACHE) JAXTORCH_PROGRESS=0 JAXTORCH_LIBTPU=$(CURDIR)/build/libtpu $(BIN)/pytest notebooks -n 2 \
		$$(test -d build/libtpu/libtpu || echo --ignore notebooks/12_will_it_fit_on_a_tpu.ipynb) --dist loadfile --nbval --nbval-sanitize-with notebooks/sanitize.cfg
	$(CACHE) OMP_NUM_THREADS=1 $(PYTEST) $(INTERRUPTS) -n 2 --dist loadfile
	$(VALUES) $(PYTEST) tests -n 2 --dist worksteal $(addprefix --ignore ,$(INTERRUPTS) $(VIEWS) tests/browser tests/wheel)
	JAXTORCH_NATIVE=off $(VALUES) $(PYTEST) $(IN_PYTHON) -n 2 --dist worksteal
	$(TESTS) $(PYTEST) $(VIEWS) -n 2 --dist worksteal $(addprefix --ignore ,$(INTERRUPTS))
	$(VALUES) JAX_NUM_CPU_DEVICES=8 $(PYTEST) $(SHARDED) -n 2 --dist worksteal
	$(CACHE) OMP_NUM_THREADS=1 $(PYTEST) tests/wheel
	$(CACHE) OMP_NUM_THREADS=1 $(PYTEST) tests/browser -n 2 --dist loadfile

wheel: .venv/test.stamp ## build the wheel into build/wheel, and test it in an environment with only its dependencies
	$(BIN)/python -m scripts.wheel build/wheel
	$(CACHE) OMP_NUM_THREADS=1 $(PYTEST) tests/wheel

quick: .venv/test.stamp lint ## lint, types and a sample of each folder's tests: a minute or two
	$(TESTS) $(PYTEST) $(QUICK) -q -n 2 --dist worksteal

browser: .venv/test.stamp build/chromium $(NODE_MODULES) ## the tests of the views in a browser
	$(CACHE) OMP_NUM_THREADS=1 $(PYTEST) tests/browser -n 2 --dist loadfile

lint: .venv/test.stamp ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

widgets: .venv/test.stamp $(NODE_MODULES) ## write the live views' types, check and test their code, and bundle it into widgets/static
	$(CACHE) $(BIN)/python -m scripts.view_types
	cd widgets/js && npm run --silent check && npm test --silent && npm run --silent build

pictures: .venv/test.stamp build/chromium ## redraw docs/images, and check the texts of every view and notebook in both themes, 900 and 1280 px wide (build/pictures)
	$(CACHE) $(BIN)/python -m scripts.pictures docs/images
	$(CACHE) $(BIN)/python -m scripts.sweep build/pictures

conformance: .venv/test.stamp build/libtpu ## PyTorch's own operator tests on the device, into docs/coverage.md (an hour and a half on two cores)
	$(CACHE) $(BIN)/python -m tests.conformance.sweep --coverage docs/coverage.md

FILES ?=
torch-suite: .venv/test.stamp ## PyTorch's own device-generic test files on the device (FILES="~/pytorch/test/test_view_ops.py ...")
	$(CACHE) $(BIN)/python -m tests.torch_suite $(FILES)

fuzz: .venv/test.stamp ## thousands of random programs, on both devices and captured
	$(CACHE) JAXTORCH_VIEW_PROGRAMS=5000 $(PYTEST) tests/storage/test_views.py -k random_programs --timeout 3600 \
		--hypothesis-show-statistics
	$(CACHE) JAXTORCH_CAPTURED_PROGRAMS=300 $(PYTEST) tests/capture/test_programs.py --timeout 7200 \
		--hypothesis-show-statistics
	$(CACHE) JAXTORCH_TRAINING_PROGRAMS=1000 $(PYTEST) tests/capture/test_training_fuzz.py --timeout 7200
	$(CACHE) JAXTORCH_CHANGES=2000 $(PYTEST) tests/capture/test_changes_fuzz.py

deferred: .venv/test.stamp ## random programs, and the tests of the device, in the five modes of deferred execution (an hour)
	$(CACHE) OMP_NUM_THREADS=1 JAXTORCH_DEFERRED_PROGRAMS=300 $(PYTEST) tests/deferred/test_fuzz.py
	for mode in reads calls random steps compiled; do \
		$(CACHE) OMP_NUM_THREADS=1 JAXTORCH_TESTS=all JAXTORCH_DEFERRED=$$mode $(PYTEST) $(DEFERRED) -q -n 2 --dist worksteal || exit 1; \
	done

TABLES ?= tests
thorough: .venv/test.stamp build/libtpu ## all that make test takes a sample of or leaves out (hours; TABLES=tests/capture/changes)
	-$(NATIVE)
	$(CACHE) OMP_NUM_THREADS=1 JAXTORCH_TESTS=all $(PYTEST) $(TABLES) -n 2 --dist worksteal \
		$(addprefix --ignore ,$(INTERRUPTS) tests/browser tests/wheel)
	$(if $(filter tests,$(TABLES)),$(CACHE) OMP_NUM_THREADS=1 JAXTORCH_TESTS=all JAX_NUM_CPU_DEVICES=8 \
		$(PYTEST) $(SHARDED) -n 2 --dist worksteal)

VERSIONS ?=
versions: ## test beside each supported Python, torch and jax, into docs/versions.md (hours; VERSIONS=--sample for a sample)
	$(TESTS) $(PYTHON) scripts/versions.py $(VERSIONS)

docs: .venv/docs.stamp ## the documentation as a site, into build/site
	NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu $(BIN)/mkdocs build --quiet
	@echo build/site/index.html

SOAK ?=
soak: .venv/test.stamp ## long runs that watch for growth, hangs and lost state (two hours; SOAK="shapes --scale 0.1" runs one, shorter)
	JAX_PLATFORMS=cpu OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.soak $(SOAK)

bench: .venv/test.stamp ## time the device, compared with jax.jit and torch's CPU
	-$(BIN)/python -m jaxtorch.native
	JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks

SCALE ?= 1.1B 7B 70B --peer
scale: .venv/test.stamp build/libtpu ## compile training steps of large models for TPUs that this machine does not have (SCALE="1.1B --peer")
	JAX_PLATFORMS=cpu JAXTORCH_LIBTPU=$(CURDIR)/build/libtpu $(BIN)/python -m benchmarks.scale $(SCALE)

clean: ## back to a fresh clone: remove .venv, build/ and every cache
	rm -rf .venv build widgets/js/build widgets/js/node_modules *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# -- the environment ----------------------------------------------------------------------------------------

# `.venv/lab.stamp` and `.venv/test.stamp` say that the extra of that name is installed. setuptools would warn at every
# install that a strict one needs its folder in build/. Notebook 10 needs the extra `parallel` too: ipyparallel's part of
# JupyterLab complains of a missing server when a notebook installs it beside a running JupyterLab.
EXTRAS = $*
.venv/lab.stamp: EXTRAS = lab,parallel
.venv/%.stamp: pyproject.toml requirements/test.txt build/files.txt | $(BIN)/python
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install $(if $(wildcard $@),--quiet) --constraint requirements/test.txt \
		--editable '.[$(EXTRAS)]' --config-settings editable_mode=strict
	@touch $@

# The TPU's compiler, for the tests that compile for one; in a folder that only the compiling process has on its path.
# It is available only for Linux: elsewhere those tests say that it is missing.
build/libtpu: | .venv/test.stamp
	-$(BIN)/python -m pip install --quiet --no-deps --target $@ libtpu==0.0.51

# What bundles the live views and judges their pages; nothing of it is needed to use them.
$(NODE_MODULES): widgets/js/package.json widgets/js/package-lock.json
	cd widgets/js && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

# The browser of the tests in tests/browser; on other systems than Debian's, install Chromium by its own way.
build/chromium:
	@mkdir -p build
	command -v chromium chromium-browser || apt-get install --yes chromium
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$@ -m pip install --quiet --upgrade pip

# A strict editable install is a tree of links to the files there were: another file needs another install. This
# list of files changes (and is written) only when a file comes or goes.
build/files.txt: FORCE
	@mkdir -p build
	@find jaxtorch_kernel magics widgets \( -name __pycache__ -o -path widgets/js \) -prune -o -type f -print | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
