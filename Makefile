# The two commands of a newcomer are `make demo` and `make test`; each sets itself up in .venv.
# PYTHON=/path/to/python3.12 chooses another interpreter than the first supported one on the PATH.

SHELL := /bin/bash
SOURCES := pyproject.toml setup.py constraints.txt CMakeLists.txt $(wildcard kernels/csrc/*)
export PYTHON

.PHONY: help demo test test-report lint venv bench test-kernels test-export vllm-env test-vllm sanitize clean

help:
	@echo "make demo   a small labelled sweep over real photographs: table, pictures, RUN folder (in ./demo)"
	@echo "make test   the tests, with the coverage figure"
	@echo "make test-report   the report in a real browser (needs Debian's chromium, or another on the PATH)"
	@echo "make lint   ruff (lint and format) and mypy"
	@echo "make bench  every kernel beside every peer, as a table of ratios (sets up .venv-bench, 7 GB)"
	@echo "make test-kernels   the kernels against their peers, Triton in the interpreter and compiled ahead of time"
	@echo "make test-export    published models from small random weights: exported, compared, swept (a quarter of an hour)"
	@echo "make vllm-env       vLLM for the CPU and lmms-eval, in .venv-vllm (4 GB)"
	@echo "make test-vllm      PhysCount's questions asked of a real vLLM with a tiny model, and by a real lmms-eval"
	@echo "make sanitize       the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make venv   only set up .venv with everything for the three above"
	@echo "make clean  remove all that these commands made, .venv included"

demo:
	@.ci/demo

test: .venv/.for-test
	.venv/bin/python -m pytest --cov=tallymill --cov-report=term:skip-covered

test-report: .venv/.for-test
	@.ci/browser
	.venv/bin/python -m pytest tests/browser

lint: .venv/.for-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy src tests

bench: .venv-bench/.ready
	.venv-bench/bin/tallymill bench kernels

test-kernels: .venv-bench/.ready
	.venv-bench/bin/python -m pytest tests/peers
	.venv-bench/bin/python -m pytest tests/gpu
	.venv-bench/bin/python -m tallymill.kernels.triton_aot

test-export: .venv-bench/.ready
	.venv-bench/bin/python -m pytest tests/export

vllm-env: .venv-vllm/.ready

test-vllm: .venv/.for-test .venv-vllm/.ready
	.venv/bin/python -m pytest tests/vllm tests/integrations/lmms_eval

sanitize: .venv/.for-test
	@.ci/sanitize

venv:
	@if ! $(MAKE) --no-print-directory --question .venv/.for-test; then .ci/install cpu,demo,test; fi

# A stamp says that .venv holds what its command needs; the sources are those that need a new build or install.
.venv/.for-demo: $(SOURCES)
	@.ci/install cpu,demo npm

.venv/.for-test: $(SOURCES)
	@.ci/install cpu,demo,test npm

.venv-bench/.ready: pyproject.toml setup.py constraints-bench.txt CMakeLists.txt $(wildcard kernels/csrc/*)
	@.ci/install-bench

.venv-vllm/.ready: constraints-vllm.txt .ci/torchvision_schemas.py
	@.ci/install-vllm

clean:
	rm -rf .venv .venv-bench .venv-vllm build dist demo src/*.egg-info htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f kernels/_native*.so
	find engine kernels exporters runners bench src tests -name __pycache__ -prune -exec rm -rf {} +
