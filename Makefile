# Every target makes the environment it needs in .venv; only the first call takes a minute or two.
#   make test                      lint, then the tests without the slow ones
#   make test OPTIONS='-k fuzz'    any option of pytest
#   make slow                      the tests that make test leaves out
#   make mutants                   mistakes that the tests must notice, one at a time
#   make test WORKERS=             in one process with all threads; otherwise one process per core
#   make fuzz MINUTES=5            random fits, and the laws that they obey

PYTHON ?= python3
# Processes of the tests, with one thread each; empty: one process with all threads.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count(), 8))')
OPTIONS ?=
CASES ?= 10000
MINUTES ?= 60

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install -qq -c constraints.txt
PARALLEL := $(if $(WORKERS),-n $(WORKERS))
# Threads of torch times processes must not exceed the cores.
THREADS := $(if $(WORKERS),OMP_NUM_THREADS=1 MKL_NUM_THREADS=1)
# A test that hangs ends the run after ten minutes, and says where it stood.
WATCHDOG := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

.PHONY: demo test quick slow mutants lint format docs bench fuzz oldest newest sdist package clean
.NOTPARALLEL:

demo: .venv/installed-cli,plot
	$(BIN)/python examples/demo.py

test: lint
	$(THREADS) $(BIN)/python -m pytest $(WATCHDOG) $(PARALLEL) $(OPTIONS)

# In less than a minute: the laws of models and solvers, the levels of files, and the example of every estimator.
QUICK := tests/test_laws.py tests/test_new_covariance.py tests/test_layers.py src/mixtura/estimators
quick: .venv/installed-dev
	$(THREADS) $(BIN)/python -m pytest $(WATCHDOG) $(PARALLEL) $(OPTIONS) $(QUICK)

# All that `make test` leaves out.
slow: .venv/installed-slow
	$(THREADS) $(BIN)/python -m pytest $(WATCHDOG) $(PARALLEL) $(OPTIONS) -m slow

# Each mistake of tests/mutants.toml is made in a copy, and must be noticed by the tests named for it.
mutants: .venv/installed-dev
	$(BIN)/python tests/mutants.py $(if $(WORKERS),--workers $(WORKERS))

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Random estimators on random data; no case begins after MINUTES.
fuzz: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --cases $(CASES) --minutes $(MINUTES)

# The documentation site, in build/docs; warnings are errors.
docs: .venv/installed-docs
	rm -rf docs/api # pages of names that are gone would be warnings
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/docs

bench: .venv/installed-bench
	$(BIN)/python -m benchmarks

# The tests with the oldest supported versions of everything, and with the newest there are; environments of their own.
# torch brings CUDA along there: some 5 GB each. SUBSET='tests/test_classifier.py ...' runs a part.
SUBSET ?= tests src
oldest: .venv-oldest/installed
	$(THREADS) .venv-oldest/bin/python -m pytest $(WATCHDOG) -p no:cacheprovider $(OPTIONS) $(SUBSET)

newest: .venv-newest/installed
	$(THREADS) .venv-newest/bin/python -m pytest $(WATCHDOG) -p no:cacheprovider $(OPTIONS) $(SUBSET)

.venv-oldest/installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install -qq -c constraints-oldest.txt hatchling editables
	.venv-oldest/bin/python -m pip install -qq -c constraints-oldest.txt --no-build-isolation -e '.[arrow,cli,dask,plot]' pytest hypothesis pandas
	@touch $@

.venv-newest/installed: pyproject.toml
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install -qq --upgrade hatchling editables
	.venv-newest/bin/python -m pip install -qq --upgrade --no-build-isolation -e '.[arrow,cli,dask,plot]' pytest hypothesis pandas
	@touch $@

# The source distribution, unpacked elsewhere and tested there.
sdist: .venv/installed-dev
	rm -rf build/sdist && mkdir -p build/sdist
	$(BIN)/python -m hatchling build -t sdist -d build/sdist
	tar xzf build/sdist/*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && $(THREADS) PYTHONPATH=src $(CURDIR)/$(BIN)/python -m pytest -p no:cacheprovider $(OPTIONS) $(SUBSET)

# The wheel and the source distribution, in dist, with the checks of the package index.
package: .venv/installed-dev
	$(INSTALL) build twine
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# One stamp per extra. Build backends are installed first, so that they are pinned too: ours, and setuptools for a rival
# without a wheel.
.venv/installed-%: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing mixtura[$*] in .venv"
	$(INSTALL) hatchling editables setuptools wheel
	$(INSTALL) --no-build-isolation -e '.[$*]'
	@touch $@

$(BIN)/pip:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venv-oldest .venv-newest build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
