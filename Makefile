# `make` alone lists what there is. `make test` and `make demo` each do everything on a fresh machine.
PYTHON ?= python3
VENV := .venv
comma := ,
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.installed-demo
DOCS_INSTALLED := $(VENV)/.installed-docs
PACKAGE_INSTALLED := $(VENV)/.installed-package
INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints.txt
# Of Triton's packages there are those for Linux alone.
TRITON := $(if $(filter Linux,$(shell uname -s)),$(comma)triton)
BUILD_KERNELS := $(BIN)/python -P anymax/kernels/build.py
ASAN_FOLDER := $(CURDIR)/build/asan
# Further arguments for pip, as for another package index.
PIP_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help test test-kernels coverage demo docs lint format kernels package asan fuzz learn clean

help:
	@echo "make test      install into .venv, build the kernels, then lint, check types and run the tests"
	@echo "make test-kernels  every test of every kernel, those of Triton in its interpreter too; takes long"
	@echo "make demo      install into .venv, build the kernels, then train a language model (about two minutes)"
	@echo "make docs      install what it needs into .venv, then build the documentation site into build/docs"
	@echo "make coverage  run the tests and list the lines they miss; takes longer"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff fix and format the code"
	@echo "make kernels   compile the CPU kernels where their sources are newer; fails without a C++ compiler"
	@echo "make package   build the wheel and the sdist into dist/, and use each in an empty environment"
	@echo "make asan      run the kernel tests under the address sanitizer"
	@echo "make fuzz      resume and open 10,000 run folders that were changed at random (about half an hour)"
	@echo "make learn     train translators to copy and to reverse, three seeds of each (about three minutes)"
	@echo "make clean     remove what was built; .venv stays"
	@echo
	@echo "PYTHON=python3.12 chooses the Python of a new .venv, CXX=clang++ the compiler, PIP_ARGS goes to pip"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "anymax needs Python 3.11 or newer, this is " \
		+ sys.version.split()[0] + "; name another with make PYTHON=...")'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "Installing anymax and what it needs into $(VENV); the first time takes a few minutes"
	@$(INSTALL) -e ".[demo,dev,hf,images,plot,peers,report,tensorboard$(TRITON)]"
	@touch $@ $(DEMO_INSTALLED)

# What the demo needs, and no tools of developers.
$(DEMO_INSTALLED): pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "Installing anymax and what the demo needs into $(VENV); the first time takes a few minutes"
	@$(INSTALL) -e ".[demo]"
	@touch $@

# What the site needs: the API reference imports every package with public names, that for Hugging Face too.
$(DOCS_INSTALLED): pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "Installing anymax and what the site needs into $(VENV); the first time takes a few minutes"
	@$(INSTALL) -e ".[docs,hf]"
	@touch $@

# Without a compiler the torch reference serves, so `test` and `demo` continue; with one, a test fails unless the kernels load.
test: $(INSTALLED)
	@$(BUILD_KERNELS) || true
	@$(MAKE) --no-print-directory lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

# Also the contracts in Triton's interpreter, and all that is compiled for GPUs.
test-kernels: $(INSTALLED)
	@$(BUILD_KERNELS) || true
	ANYMAX_TEST_KERNELS=all OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile tests/kernels \
		tests/contracts/test_kernel.py tests/contracts/test_attention.py

coverage: $(INSTALLED)
	$(BIN)/pytest --cov=anymax --cov-report=term:skip-covered

demo: $(DEMO_INSTALLED)
	@$(BUILD_KERNELS) || true
	$(BIN)/anymax train

# Needs no network once installed. A warning, as of a link that leads nowhere, is an error.
docs: $(DOCS_INSTALLED)
	$(BIN)/sphinx-build -q -W --keep-going -n -d build/doctrees docs build/docs
	@cp build/docs/README.html build/docs/index.html
	@echo "Open build/docs/index.html"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

kernels: $(INSTALLED)
	@$(BUILD_KERNELS)

$(PACKAGE_INSTALLED): pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "Installing anymax and what builds its package into $(VENV); the first time takes a few minutes"
	@$(INSTALL) -e ".[package]"
	@touch $@

package: $(PACKAGE_INSTALLED)
	$(BIN)/python -m tests.package.installs $(PIP_ARGS)

# Python leaks at exit by design. The C++ runtime is loaded first too, or the sanitizer would not find its exceptions.
asan: $(INSTALLED)
	@$(BUILD_KERNELS) $(ASAN_FOLDER) -fsanitize=address -g -O1
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 ANYMAX_KERNEL_FOLDER=$(ASAN_FOLDER) $(BIN)/pytest tests/kernels \
		tests/contracts/test_kernel.py

fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.training.run_folder.fuzzed_runs --cases 10000

learn: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.training.tasks.learned

clean:
	rm -rf build dist anymax.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f anymax/kernels/libanymax-*
	find anymax tests -name __pycache__ -type d -prune -exec rm -rf {} +
