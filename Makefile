# `make demo` and `make test` are all there is to know. Each sets up .venv, builds what changed, and runs.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PY := $(VENV)/bin/python

.PHONY: demo test lint build clean

demo: build
	$(PY) -m pyptx_ops demo

test: lint
	$(PY) -m pytest

lint: build
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# The launcher beside its sources, then the kernels; both do only what changed.
build: $(VENV)/.installed
	$(PY) setup.py --quiet build_ext --inplace
	$(PY) -m pyptx_ops.build

$(VENV)/.installed: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "wanted Python 3.10 or newer, got $$($(PYTHON) --version 2>&1); set PYTHON=..." >&2; exit 1; }
	@missing=""; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	$(PYTHON) -c 'import os, sys, sysconfig as s; \
	  sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' || missing="$$missing python3-dev"; \
	command -v c++ >/dev/null || command -v g++ >/dev/null || missing="$$missing g++"; \
	test -z "$$missing" || { echo "missing here; run: apt-get install$$missing" >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(PY) -m pip install --quiet "setuptools>=77" wheel ninja nvidia-cuda-nvcc "$(TORCH)"
	$(PY) -m pip install --quiet --no-build-isolation --editable ".[demo,test]" "$(TORCH)"
	touch $@

clean:
	rm -rf build dist $(VENV) pyptx_ops/artifacts pyptx_ops/_launch*.so pyptx_ops/_sim*.so *.egg-info .*_cache
