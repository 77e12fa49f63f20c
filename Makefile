# `make demo` and `make test` set themselves up; the second time they find the environment ready.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test docs setup lock clean

demo: $(READY)
	$(BIN)/python -m pipelines.demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# The site, in build/site: tables rendered from data/results, links checked.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --no-build-isolation -c requirements.lock -e '.[docs]'
	$(BIN)/python -m pipelines.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

setup: $(READY)

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "c2t needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "c2t needs Python's venv and ensurepip (Debian, Ubuntu: install the package python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Writes requirements.lock anew from the ranges in pyproject.toml, in an environment of its own.
lock:
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet hatchling -e '.[dev]'
	@{ sed -n '/^#/p' requirements.lock; \
		$(VENV)-lock/bin/python -m pip freeze --exclude-editable \
		| grep -v -E '^(nvidia|cuda)' \
		| sed -E -e 's/\+[a-z0-9]+$$//' -e "s/^(triton==.*)/\1; sys_platform == 'linux'/"; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-lock
	find . -name __pycache__ -prune -exec rm -rf {} +
