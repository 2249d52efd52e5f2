# Everything from a fresh clone: needs Python 3.10 or newer, pip, make and a C++ compiler.
# constraints.txt pins what CI and the developers use; the package itself stays open (pyproject.toml).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test faults gpu-tests aarch64 browser lint docs format clean

demo: $(INSTALLED)
	$(BIN)/hmrnn demo

# Two files at a time, in which threads that wait must not keep the other's core; then, alone, what measures time.
test: lint docs browser
	OMP_WAIT_POLICY=passive $(BIN)/pytest --numprocesses 2 --dist loadfile -m 'not faults and not timed and not gpu'
	$(BIN)/pytest -m timed

# The whole fault suite, of which `make test` runs a quick part. The fuzzer is large, so nothing else installs it.
faults: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[faults]'
	$(BIN)/pytest tests/faults tests/explorer/test_visitors.py -m ""

# All tests of the Triton engine: on a GPU if there is one, else in Triton's interpreter (some 5 minutes). `make test`
# runs a quick part of them.
gpu-tests: $(INSTALLED)
	$(BIN)/pytest tests/test_triton.py tests/test_devices.py -m ""

# The native engine for aarch64: cross-compiled, and a few of its tests under qemu.
aarch64: $(INSTALLED)
	.ci/aarch64 $(BIN)/python

# Tests of pages need a real browser. Where it can't be installed, they are skipped.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
		|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; } >/dev/null \
		|| echo "chromium and chromedriver could not be installed: tests of pages will be skipped"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	-$(BIN)/hmrnn build
	touch $@

clean:
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .aarch64
