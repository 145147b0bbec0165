# Set-up, serving and tests; every target works on a fresh clone and is fast the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check
PORT ?= 8000
CSRC := $(shell find csrc -type f 2>/dev/null)
CPP_SOURCES := -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'

# Seconds of `make soak`, `make soak-server` and `make fuzz`.
SECONDS ?= 60
# Executions of each target in `make fuzz`, in place of the seconds; its only target; processes that share the count.
COUNT ?=
TARGET ?=
PROCESSES ?= 1
# Runs of the failover simulation in `make soak`; as many as there is time for if it is left out.
SEEDS ?=
# Of the property tests in `make soak`.
SEED ?= $(shell $(PYTHON) -c 'import secrets; print(secrets.randbits(40))')

# Models, peers and figures of `make bench` and `make compare`; `make clean` leaves it alone.
BENCH_DIR ?= .bench

# 1 builds the CUDA kernels without a GPU too, 0 never; by default they are built where there is one.
export SPLITSERVE_CUDA ?=
# Container images like to set it. Without bytecode each of the hundreds of processes that the tests start compiles what
# it imports: 3.2 s of CPU for torch alone in place of 1.5.
unexport PYTHONDONTWRITEBYTECODE
# What was asked for is part of the name, so that asking for something else builds it.
INSTALLED := $(VENV)/.installed$(SPLITSERVE_CUDA)

.PHONY: serve kernels packages test test-all test-worker test-frontend test-rest coverage soak soak-server fuzz bench compare check gpu-wheels gpu-check arm-check \
	gpu-sanitize page-libraries page-browser wheel try-wheel docs docs-serve docs-release release lint types format clean

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' || (echo "Python 3.11.5 or newer is needed" >&2; exit 1)
	$(PYTHON) -m venv $(VENV)
	touch $@

# requirements TABLE KEY: of pyproject.toml, one a line.
REQUIREMENTS := $(BIN)/python -c 'import sys, tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))[sys.argv[1]][sys.argv[2]], sep="\n")'

# The kernels are built here, in view and with tools that stay: in an environment of pip's own nothing is seen of it.
# Packages come meanwhile, by download or from a disk, and are compiled to bytecode where they are first imported.
define INSTALL
	@echo "== 1 of 3: build tools =="
	$(REQUIREMENTS) build-system requires > $(VENV)/build-tools.txt
	$(REQUIREMENTS) project dependencies > $(VENV)/packages.txt
	$(PIP) --quiet -r $(VENV)/build-tools.txt
	@echo "== 2 of 3: kernels, about a minute the first time, and packages meanwhile =="
	$(MAKE) --no-print-directory --jobs 2 kernels packages
	@echo "== 3 of 3: splitserve itself =="
	$(PIP) --quiet --no-build-isolation --no-deps -e .
	touch $@
endef
SOURCES := pyproject.toml setup.py CMakeLists.txt $(CSRC)

$(INSTALLED): $(VENV)/.created $(SOURCES)
	$(INSTALL)

# Parts of what installs; without this make's job server, which is not theirs.
kernels:
	env -u MAKEFLAGS $(BIN)/python setup.py build_ext --inplace

packages:
	$(PIP) --progress-bar off --no-compile -r $(VENV)/packages.txt

# To serve here, the CPU kernels of this machine's processor are enough: less than half of them.
$(INSTALLED)-native: export SPLITSERVE_NATIVE ?= 1
$(INSTALLED)-native: $(VENV)/.created $(SOURCES)
	$(INSTALL)

# Ray and the agent frameworks are not there for every Python and machine; without them their tests are skipped.
# instructor has a folder of its own: it needs an older openai than the others.
$(VENV)/.installed-test: $(INSTALLED)
	@echo "== packages for tests =="
	$(PIP) --no-compile --no-build-isolation -e '.[test,agents,dev,bench,ray]' || \
		$(PIP) --no-compile --no-build-isolation -e '.[test,agents,dev,bench]' || \
		$(PIP) --no-compile --no-build-isolation -e '.[test,dev,bench]'
	-$(PIP) --quiet --no-compile --upgrade --target $(VENV)/instructor 'instructor>=1.17,<2'
	touch $@

# Chromium, for the tests of the page; without one they are skipped.
page-browser:
	.ci/browser

# The page's libraries at the versions that the script names; what it fetches is part of the repository.
page-libraries:
	.ci/page-libraries

# What is published, in dist/: sdist, wheels, and the CUDA kernels' wheel where there is nvcc.
wheel: $(VENV)/.created
	$(PIP) --quiet -r deploy/packages/requirements.txt
	deploy/packages/build $(BIN)/python

# The wheel of this machine as somebody else uses it: a new environment, no compiler, a home that cannot be written; as
# root in a root of its own, if Python is not the system's: make try-wheel PYTHON=/opt/python3.12/bin/python3
try-wheel:
	$(PYTHON) deploy/packages/try_wheel.py

$(VENV)/.installed-docs: $(VENV)/.created deploy/site/requirements.txt
	$(PIP) --quiet -r deploy/site/requirements.txt
	touch $@

# The documentation as a site, in site/; a warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file deploy/site/mkdocs.yml

docs-serve: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --config-file deploy/site/mkdocs.yml

# Adds the site of a version to the branch gh-pages: make docs-release VERSION=0.2.0
docs-release: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --config-file deploy/site/mkdocs.yml --update-aliases $(VERSION) latest

# Version, changelog, commit and tag: make release VERSION=0.2.0
release:
	$(PYTHON) deploy/release/release.py $(VERSION)

# Trains nothing and downloads no model: the demo model ships in the package. What `make test` has built serves as well.
serve: $(or $(wildcard $(INSTALLED)),$(INSTALLED)-native)
	$(BIN)/splitserve serve --port $(PORT)

# Something of every room, in under 10 minutes on 2 free cores.
test: $(VENV)/.installed-test
	$(BIN)/pytest -m 'not slow'

# All tests: about three times as long. Two parts at a time, the longest first, then those that start whole servers, by themselves.
test-all: $(VENV)/.installed-test
	$(MAKE) --jobs 2 --output-sync=target test-rest $(BESIDE) test-worker test-frontend
	$(BIN)/pytest -m system

# Without this make's job server, which is not theirs.
test-worker test-frontend:
	env -u MAKEFLAGS $(BIN)/pytest -m 'not system' tests/$(@:test-%=%)

test-rest:
	env -u MAKEFLAGS $(BIN)/pytest -m 'not system' --ignore tests/worker --ignore tests/frontend

# How much of what decides they cover; counting makes the property tests several times as slow.
coverage: $(VENV)/.installed-test
	$(BIN)/pytest --cov --cov-report=term tests/engine_core tests/frontend

# Random lives of an engine with all bookkeeping checked after every event, failover under simulated faults, then the
# property tests; new seeds in every run, which the output names: `make soak SEED=5` draws the same examples of the
# property tests again, and `make soak SEEDS=100000` plays so many runs of the failover simulation.
soak: $(VENV)/.installed-test
	$(BIN)/python -m tests.engine_core.soak --seconds $(SECONDS)
	$(BIN)/python -m tests.simulation --seconds $(SECONDS) $(if $(SEEDS),--seeds $(SEEDS))
	$(BIN)/pytest -m hypothesis --hypothesis-profile=fresh --hypothesis-seed=$(SEED)

# Random load on the processes of `splitserve serve`: answers compared with those alone, blocks, memory.
soak-server: $(VENV)/.installed-test
	$(BIN)/python -m tests.system.soak --seconds $(SECONDS)

# Mutated frames, requests and model files; what fails is kept, and named with the command that runs it again.
# `make fuzz TARGET=bodies COUNT=1000000 PROCESSES=2` runs so many executions of one target, however long they take.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz $(if $(COUNT),--count $(COUNT),--seconds $(SECONDS)) \
		$(addprefix --target ,$(TARGET)) --processes $(PROCESSES)

# What needs no other engine, in under 10 minutes: two random models end to end, scheduler, kernels, frontend.
bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.compare setup $(BENCH_DIR) --peers none --models tiny,small
	$(BIN)/python -m benchmarks.compare run $(BENCH_DIR) --engines splitserve --models tiny,small --rounds 3 \
		--json $(BENCH_DIR)/bench.json
	$(BIN)/python -m benchmarks.scheduler --json $(BENCH_DIR)/scheduler.json
	$(BIN)/python -m benchmarks.cpu_kernels --json $(BENCH_DIR)/kernels.json
	$(BIN)/python -m benchmarks.cpu_linear --json $(BENCH_DIR)/linear.json
	$(BIN)/python -m benchmarks.frontend --streams 1,64,1000 --json $(BENCH_DIR)/frontend.json

# Every engine on every model. The first time it downloads and builds the peers; one that fails is left out.
compare: $(VENV)/.installed-test
	-$(BIN)/python -m benchmarks.compare setup $(BENCH_DIR)
	$(BIN)/python -m benchmarks.compare run $(BENCH_DIR)
	$(BIN)/python -m benchmarks.compare plot $(BENCH_DIR)/results.json $(BENCH_DIR)/results.svg

# What a GPU machine without a network needs beside torch, in .gpu-wheels and .gpu-wheels-flash-*, which git ignores.
gpu-wheels: $(VENV)/.created
	.ci/gpu-wheels $(BIN)/pip

# The kernels of 64-bit ARM in an emulator (apt-get install g++-aarch64-linux-gnu qemu-user): all tests of the kernels, or
# every Nth of them: make arm-check EVERY=25
EVERY ?= 1
arm-check: $(VENV)/.installed-test
	env -u MAKEFLAGS $(BIN)/python -m pytest -p tests.arm.plugin tests/arm tests/worker/ops --every $(EVERY)

# On a machine with a GPU, with its own Python: tests and kernel benchmark in under 9 minutes.
gpu-check:
	PYTHON=$(PYTHON) .ci/gpu-check

# There, too: the kernels' tests under compute-sanitizer's memcheck, racecheck and synccheck, in under 10 minutes.
gpu-sanitize:
	PYTHON=$(PYTHON) .ci/gpu-check --sanitize

# mypy takes one processor: it runs beside the longest part.
check: BESIDE := types
check: $(VENV)/.installed-test lint test-all

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc $(CPP_SOURCES) | xargs $(BIN)/clang-format --dry-run --Werror

types: $(VENV)/.installed-test
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	find csrc $(CPP_SOURCES) | xargs $(BIN)/clang-format -i

# Packages stay; what uses the kernels builds them again.
clean:
	rm -rf build dist site src/*.egg-info frontend/_lib worker/_lib $(VENV)/.installed*
