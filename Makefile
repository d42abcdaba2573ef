# make demo    the whole paper in miniature: outputs/demo/report.html
# make test    every test            make lint    ruff, mypy
#
# Settings: PYTHON=python3.12   VENV=.venv   TORCH_INDEX_URL=https://...  (where torch comes from)
#           TEST_ARGS="-n 2 -k agent"   (arguments of pytest)
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu
TEST_ARGS ?= -n auto --maxprocesses 4

python := $(VENV)/bin/python
pip := $(python) -m pip --disable-pip-version-check --quiet
stamp := $(VENV)/.stamp
sources := pyproject.toml constraints.txt

.PHONY: help demo test lint clean
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(stamp)-openmoji
	@$(python) -m eval demo --out outputs/demo

test: $(stamp)-dev
	@OMP_NUM_THREADS=1 $(python) -m pytest $(TEST_ARGS)

lint: $(stamp)-dev
	@$(python) -m ruff check .
	@$(python) -m mypy

clean:
	rm -rf $(VENV) outputs build dist *.egg-info

# Each step leaves a stamp when it is done, so an interrupted installation goes on where it stopped.
$(stamp)-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "error: $(PYTHON) -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@touch $@

# torch first: without a CUDA device its CPU build, a tenth of the size of the one that brings CUDA along.
$(stamp)-torch: $(stamp)-python
	@if [ -n "$(TORCH_INDEX_URL)" ]; then \
	  echo "installing $(TORCH) from $(TORCH_INDEX_URL)"; \
	  $(pip) install "$(TORCH)" --index-url "$(TORCH_INDEX_URL)"; \
	elif [ "$$(uname -s)" != Linux ] || nvidia-smi >/dev/null 2>&1; then \
	  echo "installing $(TORCH)"; $(pip) install "$(TORCH)"; \
	else \
	  echo "installing $(TORCH) for the CPU (TORCH_INDEX_URL=... chooses another build)"; \
	  $(pip) install "$(TORCH)+cpu" 2>/dev/null || $(pip) install "$(TORCH)" --index-url $(CPU_INDEX) 2>/dev/null \
	    || $(pip) install "$(TORCH)"; \
	fi
	@touch $@

$(stamp)-openmoji: $(stamp)-torch $(sources)
	@echo "installing unify-agent"
	@$(pip) install -c constraints.txt -e '.[openmoji]'
	@touch $@

$(stamp)-dev: $(stamp)-torch $(sources)
	@echo "installing unify-agent with its test tools"
	@$(pip) install -c constraints.txt -e '.[openmoji,tensorboard,wandb,lora,demo,deepspeed,dev]'
	@touch $@
