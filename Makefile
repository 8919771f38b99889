# Two commands need nothing but Python 3.11+, pip and make: `make run` and `make test`.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
RESULTS := build/results
# Thousands of processes of ours are started by the tests: with bytecode each takes half the time.
export PYTHONDONTWRITEBYTECODE :=
SUITE = $(BIN)/python tests/run_suite.py $@ $(RESULTS)
PROGRAMS := $(addprefix tests/incidents/test_,$(addprefix agent_,programs.py torch.py silence.py leaks.py) retry_programs.py)

.PHONY: run test setup dev browser machine-room checks lint types layers unit islands coverage incidents chaos programs beside-the-machine \
	meanwhile must-run unkind bench clean

run: setup  ## set up, and run the bundled example under watch
	$(BIN)/oomproof run --name example -- $(BIN)/python examples/train.py
	$(BIN)/oomproof runs

# What waits for the network first; then what no load can change, beside the virtual machine, which takes one processor; then
# the guard against the kernel, which mostly waits, with the trainers in what time it leaves.
test:  ## set up, and pass all tests
	rm -rf $(RESULTS)
	$(MAKE) -j2 machine-room checks
	$(MAKE) beside-the-machine
	$(MAKE) -j3 incidents chaos programs
	$(MAKE) must-run

setup: $(VENV)/.installed

dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed (Debian: apt install python3 python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,ml,data]'
	@touch $@ $(VENV)/.installed

browser:  ## chromium, for the tests that look at pages (they skip without it, and CI fails then)
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -yq --no-install-recommends chromium; } >/dev/null || true

machine-room: browser  ## one after the other: apt has one lock
	$(MAKE) lab

checks: lint layers types

lint: dev
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples

types: dev
	$(BIN)/mypy

layers: dev
	$(BIN)/python tests/layers.py

unit: dev  ## four at a time: they wait for their processes half of the time
	$(SUITE) tests/unit -m "not long" -n 4 --dist loadfile

islands: dev  ## by hand: the core's tests against a copy of the package without each island
	for island in sizing sweeps; do \
		rm -rf build/without && mkdir -p build/without && cp -r src/oomproof build/without/ && rm -r build/without/oomproof/$$island && \
		PYTHONPATH=$(CURDIR)/build/without $(BIN)/python -m pytest tests/unit -q -n 4 --dist loadfile -m "not long" \
			--ignore tests/unit/sizing --ignore tests/unit/sweeps --ignore tests/unit/test_docs.py || exit 1; done

coverage: dev  ## by hand: the same tests at half the speed, and which lines they never reach
	$(BIN)/coverage run -m pytest tests/unit
	$(BIN)/coverage report --skip-covered --sort=cover | tail -25

incidents: dev  ## seven at a time: they wait for their processes most of the time, and assert no seconds
	$(SUITE) tests/incidents $(PROGRAMS:%=--ignore=%) -m "not long" -n 7 --dist worksteal

chaos: dev  ## random faults around real jobs, with fixed seeds (root); bench/chaos.py runs them by the thousand
	$(SUITE) tests/chaos

programs: dev  ## real trainers under watch: they only need time
	nice -n 10 $(SUITE) $(PROGRAMS) -m "not long" -n 2 --dist worksteal

beside-the-machine: dev lab  ## what asserts no seconds; the virtual machine has the processors first
	$(MAKE) -j2 vm-scenarios meanwhile

meanwhile:
	nice -n 19 $(MAKE) unit

unkind: dev  ## by hand: the tests in random order, after a fresh boot, in another time zone, as another user…
	$(BIN)/python tests/unkind.py

must-run: dev
	$(BIN)/python tests/must_run.py tests/must_run.txt $(RESULTS)

bench: dev  ## by hand: measures the guard beside its peers; commit the results
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/output.py
	$(BIN)/python bench/guard.py
	$(BIN)/python bench/soak.py
	$(BIN)/python bench/many_processes.py
	$(BIN)/pytest tests/vm -m long
	$(BIN)/pytest tests/unit -m long
	$(BIN)/pytest tests/incidents -m long
	$(BIN)/python bench/freeze.py
	$(BIN)/python bench/replay.py --minutes 120
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/agent.py
	$(BIN)/python bench/readers.py
	$(BIN)/python bench/top.py
	$(BIN)/python bench/trend.py
	$(BIN)/python bench/leak_kinds.py
	$(BIN)/python bench/false_stops.py
	$(BIN)/python bench/data.py
	$(BIN)/python bench/census.py
	$(BIN)/python bench/system.py

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache

include lab.mk
