# The short commands. Each sets up what it needs, once, in .venv; a stamp in
# .venv/.stamps says that a step is done, and what it depends on makes it stale.

PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
# Most tests wait for ranks half of their time: three processes keep two cores busy.
TEST_PROCESSES ?= 3
# The Python of the machine for which `make gpu-kit` collects wheels.
GPU_PYTHON ?= 3.12
# Of `make faults`: `make faults FAULTS='--seed 7 --faults 200 --where local'`.
FAULTS ?= --faults 1000

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The set-up's steps each use all cores themselves.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --no-input --disable-pip-version-check
# pip's long talk, cut to a line per package.
SHORT := | sed -un -E 's/^ *((Downloading|Building|Installing|Successfully) .*)/    \1/p'
JLPM := cd labextension && jlpm
# The front end is a step of its own here: pip need not build it again.
export SKIP_JUPYTER_BUILDER := 1
# pip copies the built front end to where JupyterLab looks. A link in the place
# of the copy follows every rebuild; pip must not find it, it would write through it.
LINK := $(VENV)/share/jupyter/labextensions/gradient-workbench
install_editable = rm -rf $(LINK) && \
    $(PIP) install --no-build-isolation --editable '.[$(1)]' $(SHORT) && \
    rm -rf $(LINK) && ln -s "$(CURDIR)/workbench/labextension" $(LINK)
export PYTHON
export PATH := $(CURDIR)/$(BIN):$(PATH)

FRONTEND := $(shell find labextension/src labextension/style labextension/scripts -type f 2>/dev/null) \
            $(wildcard labextension/tsconfig.json labextension/install.json \
              workbench/locale/*/LC_MESSAGES/*.po)
HOROVOD_BUILD := $(shell find workbench/horovod_build -name '*.py' -o -name '*.cc' -o -name '*.h')
LAB_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help demo lab test check lint docs bench faults fuzz soak truth audit dist matrix pictures gpu-kit gpu-check cuda-build clean

help:  ## say what there is
	@echo "make TARGET, of:"
	@sed -n -E 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' Makefile | expand -t 12
	@echo "Variables: TORCH_VERSION=$(TORCH_VERSION) PYTHON=$(PYTHON) TEST_PROCESSES=$(TEST_PROCESSES) FAULTS='$(FAULTS)'"

demo: $(STAMPS)/ready  ## set up, train on two ranks from a notebook, print what communication costs
	@echo "==> running notebooks/01-quickstart.ipynb on two ranks (under a minute)"
	@$(BIN)/workbench demo

lab: $(STAMPS)/ready  ## set up, open JupyterLab on the quickstart
	@$(BIN)/jupyter lab $(LAB_ROOT) notebooks/01-quickstart.ipynb

check: lint  ## lint, and run the tests that start no ranks, VMs or servers: two minutes
	@echo "==> fast tests, a process per core (a minute)"
	@.ci/limit 240 $(BIN)/python -m pytest -q -n auto --dist loadfile --maxfail 10 --timeout 20 \
	    -m "not slow and not timing and not browser and not soak" \
	    $$($(BIN)/python tests/support/slow_tests.py)

test: $(STAMPS)/ready $(STAMPS)/dev $(STAMPS)/test-packages  ## run the tests: Python, notebook, browser, TypeScript: 20 minutes
	@$(BIN)/python .ci/python-tests $(TEST_PROCESSES)
	@echo "==> tests: TypeScript (half a minute)"
	@.ci/limit 180 bash -c '$(JLPM) test'

fuzz: $(STAMPS)/ready $(STAMPS)/dev  ## look for inputs that break a reader: 2,000 for each property, hours
	@$(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile \
	    --hypothesis-profile=long tests/properties

audit: $(STAMPS)/node-modules $(STAMPS)/dev  ## ask PyPI and npm for known vulnerabilities (needs the internet)
	@echo "==> pip-audit, in an environment of its own"
	@test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit && \
	    $(VENV)/audit/bin/python -m pip --quiet install 'pip-audit>=2.7'; }
	@$(BIN)/python -m pip list --format freeze --exclude-editable \
	    | grep -v -i -E '^(horovod|gradient-workbench)==' >$(VENV)/audit/installed.txt
	@$(VENV)/audit/bin/pip-audit --no-deps --disable-pip --requirement $(VENV)/audit/installed.txt
	@echo "==> the front end's packages"
	@$(JLPM) npm audit --recursive --environment production

lint: $(STAMPS)/frontend $(STAMPS)/dev  ## run all linters and type checkers
	@echo "==> ruff, mypy, language, stylelint, prettier, eslint"
	@.ci/limit 300 bash -euc '$(BIN)/ruff check; $(BIN)/ruff format --check; $(BIN)/mypy; $(BIN)/python .ci/language; $(JLPM) lint:check'

docs: $(STAMPS)/ready $(STAMPS)/docs  ## build the documentation into build/docs
	@echo "==> documentation (about two minutes, most of it to execute the example notebooks)"
	@$(BIN)/python -m sphinx -b html -W --keep-going --quiet -d build/doctrees docs build/docs
	@echo "    build/docs/index.html"

bench: $(STAMPS)/ready $(STAMPS)/dev  ## run the benchmarks, each against its peer or limit; a missed bound is a failure
	@echo "==> benchmarks (an hour, on a quiet machine)"
	@$(BIN)/python -m tests.bench

soak: $(STAMPS)/ready $(STAMPS)/dev $(STAMPS)/test-packages $(STAMPS)/docs  ## run what `make test` leaves out: long tests, documentation, random faults: 90 minutes
	@.ci/soak $(TEST_PROCESSES) --faults 100

faults: $(STAMPS)/ready $(STAMPS)/dev $(STAMPS)/test-packages  ## play random faults on ranks here and on test VMs, write docs/proof/faults.md: an hour
	@$(BIN)/python -m tests.soak --out docs/proof/faults.md $(FAULTS)

truth: $(STAMPS)/ready $(STAMPS)/dev $(STAMPS)/test-packages  ## compare all figures with independent measurements, write docs/proof/truth.md
	@echo "==> figures against independent measurements (10 minutes, on a quiet machine, as root on Linux)"
	@$(BIN)/python -m tests.truth

pictures: $(STAMPS)/ready $(STAMPS)/dev $(STAMPS)/test-packages  ## take pictures of what the browser tests see, into build/pictures
	@echo "==> browser tests, with pictures for people to judge (some minutes)"
	@SCREENSHOTS="$(CURDIR)/build/pictures" $(BIN)/python -m pytest -q tests/browser
	@echo "    build/pictures"

gpu-kit: $(STAMPS)/dev  ## collect in build/gpu-kit what `make gpu-check` needs on a machine without network
	@PYTHON=$(BIN)/python tests/gpu/make-kit build/gpu-kit $(GPU_PYTHON)

cuda-build: $(STAMPS)/dev  ## start ranks with a PyTorch for CUDA, and check that they could use a GPU (downloads some GB)
	@$(BIN)/python tests/gpu/cuda_build.py build/cuda

gpu-check:  ## check this project on a GPU, without a network, with build/gpu-kit: 8 minutes; writes build/gpu-report
	@PYTHON=$(PYTHON) tests/gpu/run build/gpu-kit

dist: $(STAMPS)/frontend $(STAMPS)/dev  ## build the packages for notebooks and for VMs into dist/
	@rm -rf dist
	@PYTHON="$(CURDIR)/$(BIN)/python" .ci/build-packages dist
	@$(BIN)/python -m twine check --strict dist/*
	@ls -l dist

matrix: $(STAMPS)/frontend $(STAMPS)/dev  ## try other versions and front ends, write docs/proof/matrix.md (an hour)
	@$(BIN)/python -m tests.matrix

clean:  ## remove what make made (the cache of Horovod wheels in ~/.cache stays)
	rm -rf $(VENV) workbench/labextension workbench/widgets/static labextension/lib \
	    labextension/node_modules labextension/.yarn labextension/coverage \
	    labextension/tsconfig.tsbuildinfo docs/tutorials/*.ipynb .pytest_cache .hypothesis .mypy_cache \
	    .ruff_cache build dist
	find workbench tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The set-up, step by step.

$(STAMPS)/venv: .ci/system-packages
	@.ci/system-packages build
	@echo "==> a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch-$(TORCH_VERSION): $(STAMPS)/venv
	@echo "==> PyTorch $(TORCH_VERSION) (about a minute; a CUDA build downloads some GB)"
	@rm -f $(STAMPS)/torch-*
	@$(PIP) install "torch==$(TORCH_VERSION)" $(SHORT)
	@touch $@

$(STAMPS)/tools: pyproject.toml .ci/node $(STAMPS)/venv
	@echo "==> JupyterLab and the build tools (about a minute)"
	@$(PIP) install 'jupyterlab>=4.4,<5' 'hatchling>=1.21' 'hatch-jupyter-builder>=0.9' \
	    'jupyter-builder>=1.2' editables $(SHORT)
	@.ci/node $(VENV)
	@touch $@

$(STAMPS)/node-modules: labextension/package.json labextension/yarn.lock | $(STAMPS)/tools
	@echo "==> the front end's packages (about a minute)"
	@$(JLPM) install --immutable
	@touch $@

$(STAMPS)/frontend: $(STAMPS)/node-modules $(FRONTEND)
	@echo "==> building the front end (about half a minute)"
	@$(JLPM) build:prod
	@touch $@

$(STAMPS)/package: pyproject.toml workbench/_version.py $(STAMPS)/torch-$(TORCH_VERSION) | $(STAMPS)/tools $(STAMPS)/frontend
	@echo "==> this package and what it depends on (about a minute)"
	@$(call install_editable,notebooks)
	@touch $@

$(STAMPS)/horovod: $(HOROVOD_BUILD) $(STAMPS)/torch-$(TORCH_VERSION) | $(STAMPS)/package
	@echo "==> Horovod for this PyTorch (2 to 4 minutes on two cores; seconds from the cache)"
	@$(BIN)/workbench build-horovod
	@touch $@

$(STAMPS)/ddp: workbench/rank/backends/native_group.cc $(STAMPS)/torch-$(TORCH_VERSION) | $(STAMPS)/package
	@echo "==> what times DDP's buckets (half a minute; seconds from the cache)"
	@$(BIN)/workbench build-ddp
	@touch $@

$(STAMPS)/ready: $(STAMPS)/package $(STAMPS)/frontend $(STAMPS)/horovod $(STAMPS)/ddp
	@touch $@

$(STAMPS)/dev: pyproject.toml $(STAMPS)/package
	@echo "==> what tests and linters use (half a minute)"
	@$(call install_editable,dev)
	@touch $@

$(STAMPS)/docs: pyproject.toml $(STAMPS)/package
	@echo "==> what builds the documentation (half a minute)"
	@$(call install_editable,docs)
	@touch $@

$(STAMPS)/test-packages: .ci/system-packages $(STAMPS)/dev
	@.ci/system-packages build test
	@touch $@
