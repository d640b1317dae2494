# make help lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The newest Spark that Spark's own Kafka sink can be fetched for; make test-matrix has the others.
SPARK := 4.2.0
SOURCES := pyproject.toml pyspark_pykafka.py $(shell find spark_kafka_sink -name '*.py')

# Workers of Spark run the Python that PYSPARK_PYTHON names; nothing listens beyond loopback.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export SPARK_LOCAL_IP := 127.0.0.1
# Images for containers often set this; then every worker of Spark compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
# Spark runs the Java of JAVA_HOME; so do the tests, which look for java on the PATH.
JAVA_PATH := $(if $(JAVA_HOME),PATH="$(JAVA_HOME)/bin:$$PATH")

# Where tests, jobs and benchmarks find their modules. Never the root: Spark would import the
# checkout in place of the wheel.
TESTS_PATH := PYTHONPATH=benchmarks:tests:jobs

ifneq ($(filter-out 0 1,$(STREAM)),)
$(error STREAM is '$(STREAM)': expected 1, for streams too, or 0)
endif
ifneq ($(filter-out 0 1,$(KEEP)),)
$(error KEEP is '$(KEEP)': expected 1, to keep the topics on a broker of your own, or 0)
endif
ifneq ($(filter-out 0 1,$(ALL)),)
$(error ALL is '$(ALL)': expected 1, for exactly once and TLS too, or 0)
endif

# Compiled, so it is there only where that is possible; tests say what they did not test without.
INSTALL_KERBEROS = ! command -v krb5-config > /dev/null || $(BIN)/pip install --quiet --disable-pip-version-check --no-compile ".[kerberos]" || echo "The Kerberos library could not be compiled: tests of Kerberos are left out." >&2

COMMA := ,

# pip prints a page where one sentence does: the page stays in a file.
define install
@$(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile $(1) 2> $(@D)/pip.log || { \
	echo "The packages could not be installed ($$(sed -n '/^ *ERROR: /{s///;h;};$${x;p;}' $(@D)/pip.log)): check the network, and run make again. All that pip says is in $(@D)/pip.log." >&2; exit 1; }
endef

# By files, in the order of tests/conftest.py. Tests wait for brokers and JVMs half of the time, so
# that four workers keep two cores busy; with their brokers and Sparks they need up to 13 GB, so a
# machine with less memory runs three. A test that hangs or crashes ends its worker, and would end
# each new one, too.
WORKERS := $(shell awk '/^MemTotal/ {print ($$2 > 15000000) ? 4 : 3}' /proc/meminfo 2> /dev/null || echo 3)
PARALLEL := --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -n $(WORKERS)

# An environment without a pip that works was broken off in the making: it is made again.
define make_environment
@$(1)/bin/python -m pip show --quiet pip > /dev/null 2>&1 || { \
	$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "Python's modules venv and ensurepip are missing: install them (Debian: apt install python3-venv)." >&2; exit 1; }; \
	$(PYTHON) -m venv $(1) || { \
		echo "The virtual environment $(1) could not be made, for what is said above; 'make clean' removes what there is of it." >&2; exit 1; }; }
endef

.DEFAULT_GOAL := help
.PHONY: help broker demo test test-long test-security test-faults test-exactly-once test-matrix test-places test-registry test-lowest check kafka dist mutants soak bench docs links audit clean java jdk python

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/'

demo: java $(VENV)/.demo  ## real flights through Spark into Kafka and back; BOOTSTRAP=host:port for your own broker, with KEEP=1 to keep the topics there, STREAM=1 for streams too, ALL=1 for exactly once and TLS
	@exec $(BIN)/python jobs/demo.py $(if $(BOOTSTRAP),--bootstrap $(BOOTSTRAP)) $(if $(filter 1,$(KEEP)),--keep) $(if $(filter 1,$(STREAM)),--stream) $(if $(filter 1,$(ALL)),--all)

broker: java $(VENV)/.spark  ## Apache Kafka on 127.0.0.1:9092 until Ctrl-C; PORT=n for another port, KAFKA_JARS_MIRROR=url for another Maven repository
	@PYTHONPATH=jobs exec $(BIN)/python -m job.broker $(if $(PORT),--port='$(PORT)')

test: jdk $(VENV)/.test  ## lint and the suite on real brokers, but for what is marked long
	@$(MAKE) --no-print-directory --jobs 2 check kafka
	@$(JAVA_PATH) $(BIN)/pytest $(PARALLEL) -m "not long" --durations 15 $(ARGS)
	@echo "Not tested here: what is marked long (make test-long, make test-security and make test-exactly-once), and what make test-matrix, make test-places, make test-registry, make test-lowest, make test-faults, make soak, make docs and make dist run."

test-long: jdk $(VENV)/.test kafka  ## the tests that are marked long, each with the reason beside it
	@$(JAVA_PATH) exec $(BIN)/pytest $(PARALLEL) -m long --ignore tests/security --ignore tests/exactly_once --ignore tests/places --ignore tests/registry --durations 15 $(ARGS)

test-security: java $(VENV)/.test kafka  ## logins and TLS on clusters of several nodes and versions, from executors, for long, and with faults, and where secrets are left; up to 45 minutes
	@$(JAVA_PATH) exec $(BIN)/pytest $(PARALLEL) -m long --timeout 1200 --durations 15 tests/security tests/spark/test_secrets.py $(ARGS)

# The first steps of make test wait for different things: disk, network, JVMs.
kafka: $(VENV)/.test
	@$(JAVA_PATH) $(TESTS_PATH) $(BIN)/python -m support.brokers.fetch_kafka
	@$(TESTS_PATH) $(BIN)/python -m support.spark.compiled_spark
	@$(JAVA_PATH) $(TESTS_PATH) $(BIN)/python -m support.brokers.class_archives

test-faults: java $(VENV)/.test  ## many random faults of network and brokers, one after another; FAULT_SEED=n repeats a run, ROUNDS=n makes it longer
	@$(JAVA_PATH) $(TESTS_PATH) $(BIN)/python -m support.brokers.fetch_kafka
	@$(JAVA_PATH) FAULT_ROUNDS=$(or $(ROUNDS),150) exec $(BIN)/pytest -s --timeout 7200 tests/integration/test_faults.py tests/integration/test_cluster_faults.py $(ARGS)

# Two workers, file by file. A test that hangs is interrupted by a signal, and the next one runs: by a
# thread, the timeout would end the worker, and pytest-xdist would let the next worker hang there, too.
test-exactly-once: java $(VENV)/.test kafka  ## every case of exactlyOnce, on transaction.version 2 and 1, two files of tests at a time; up to 90 minutes
	@$(JAVA_PATH) ALL_LEVELS=1 exec $(BIN)/pytest --dist loadfile --no-loadscope-reorder -n 2 --timeout 900 --timeout-method signal --durations 15 tests/exactly_once tests/simulation/exactly_once tests/unit/commit tests/unit/commit_client tests/unit/spark/test_exactly_once.py tests/unit/spark/driver/test_saves.py $(ARGS)

test-matrix: java $(VENV)/.test  ## the tests of Spark on each pyspark and Python that is supported and here; ARGS="--spark 4.2 --python 3.13"
	@$(JAVA_PATH) $(TESTS_PATH) $(BIN)/python -m support.brokers.fetch_kafka next
	@$(JAVA_PATH) $(TESTS_PATH) exec $(BIN)/python -m support.programs.matrix $(ARGS)

test-places: java $(VENV)/.test  ## Declarative Pipelines, Databricks' Python and Sail, each in an environment of its own with its Python, where that is here
	@$(JAVA_PATH) $(TESTS_PATH) $(BIN)/python -m support.brokers.fetch_kafka
	@$(JAVA_PATH) $(TESTS_PATH) exec $(BIN)/python -m support.programs.places $(ARGS)

test-registry: java $(VENV)/.test kafka  ## the client of schema registries and jobs of Spark with Apicurio Registry 2.6.13, and with 3.3.3 where there is Java 21 or newer
	@$(JAVA_PATH) $(TESTS_PATH) $(BIN)/python -m support.brokers.apicurio
	@$(JAVA_PATH) REQUIRE_KAFKA=1 exec $(BIN)/pytest --timeout 900 --durations 15 tests/registry $(ARGS)

test-lowest: jdk .venv-lowest/.lowest  ## the unit suite and jobs of Spark on Python 3.11 with the lowest versions that pyproject.toml allows
	@$(TESTS_PATH) .venv-lowest/bin/python -m support.programs.lowest versions
	@$(JAVA_PATH) $(TESTS_PATH) .venv-lowest/bin/python -m support.brokers.fetch_kafka
	@$(JAVA_PATH) .venv-lowest/bin/python -P -m pytest $(PARALLEL) -m "not kafka and not spark and not long" tests/unit $(ARGS)
	@$(JAVA_PATH) REQUIRE_KAFKA=1 .venv-lowest/bin/python -P -m pytest tests/spark/test_columns.py tests/jobs/test_bench.py $(ARGS)

check: $(VENV)/.test  ## format, lint, types, layers, spelling, words
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(TESTS_PATH) $(BIN)/python -m support.house.words

dist: java .venv-dist/.dist  ## the wheel and the sdist of a release in dist/, built twice, and installed on each Python that is supported and here
	@$(JAVA_PATH) $(TESTS_PATH) exec .venv-dist/bin/python -m support.programs.dist

mutants: jdk kafka  ## faults put into the code one by one, and a test that finds each; ARGS="--list", "--only NAME", or "--output FILE" for all such tests
	@$(JAVA_PATH) $(TESTS_PATH) exec $(BIN)/python -m mutants $(ARGS)

soak: $(VENV)/.test  ## the producer in simulated clusters with faults, plain, transactional and with logins that end, jobs with exactly once, its threads in any order and with Ctrl-C, then damaged and random answers, on every core; SEEDS=n FIRST=0 INPUTS=100000 damaged for each decoder, and fewer random
	@$(TESTS_PATH) $(BIN)/python -m simulation --seeds $(or $(SEEDS),200000) --first $(or $(FIRST),0)
	@$(TESTS_PATH) $(BIN)/python -m simulation --transactions --seeds $(or $(SEEDS),50000) --first $(or $(FIRST),0)
	@$(TESTS_PATH) $(BIN)/python -m simulation --sessions --seeds $(or $(SEEDS),20000) --first $(or $(FIRST),0)
	@$(TESTS_PATH) $(BIN)/python -m simulation.exactly_once --seeds $(or $(SEEDS),20000) --first $(or $(FIRST),0)
	@$(TESTS_PATH) $(BIN)/python -m simulation.exactly_once --seeds 4 --versions 500 --first $(or $(FIRST),0)
	@$(TESTS_PATH) $(BIN)/python -m simulation.threads --seeds $(or $(SEEDS),20000) --first $(or $(FIRST),0)
	@$(TESTS_PATH) $(BIN)/python -m simulation.threads --interrupts --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0)
	@FUZZ_EXAMPLES=$(or $(INPUTS),100000) exec $(BIN)/pytest -n auto --timeout 7200 tests/unit/wire/test_decode_fuzz.py tests/unit/wire/test_wire_oracle.py

bench: java .venv-bench/.bench  ## this sink, Spark's own, other clients and the broker's ceiling, side by side; ARGS="--list" names cells
	@$(JAVA_PATH) $(TESTS_PATH) PYSPARK_PYTHON=$(CURDIR)/.venv-bench/bin/python exec .venv-bench/bin/python -m bench.each_cell $(ARGS)

docs: .venv-docs/.docs  ## the pages of docs/ as a site, in build/docs; a link that leads nowhere is an error
	@.venv-docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto --doctree-dir build/doctrees docs build/docs
	@cp build/docs/README.html build/docs/index.html
	@echo "The site is in build/docs: open build/docs/index.html."

links: .venv-docs/.docs  ## asks each site that the pages of docs/ link to whether the page is there; needs the internet
	@.venv-docs/bin/sphinx-build --quiet --builder linkcheck --doctree-dir build/doctrees docs build/links
	@echo "Each page is there: see build/links/output.txt."

audit: .venv-audit/.audit  ## known vulnerabilities of what the package installs; asks PyPI for its advisories
	@$(TESTS_PATH) exec .venv-audit/bin/python -m support.programs.audit

clean:  ## remove the virtual environment and caches of tools
	rm -rf $(VENV) .venv-audit .venv-bench .venv-dist .venv-docs .venv-lowest build/docs build/doctrees build/links .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache

java: python
	@$(PYTHON) jobs/job/java_version.py

# The tests compile programs in Java.
jdk: python
	@$(PYTHON) jobs/job/java_version.py jdk

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { echo "Python 3.11 or newer is missing: install it, or name one with 'make PYTHON=/path/to/python3'." >&2; exit 1; }

# Two makes at once make the environments of a clone one after the other; the second one's make,
# inside the lock, finds what the first one has made. `flock` is not on every machine.
ENVIRONMENTS := $(VENV)/.spark $(VENV)/.demo $(VENV)/.test .venv-lowest/.lowest .venv-audit/.audit .venv-bench/.bench .venv-dist/.dist

ifndef HAS_LOCK
$(ENVIRONMENTS): $(SOURCES)
.venv-docs/.docs: docs/requirements.txt
$(ENVIRONMENTS) .venv-docs/.docs: | python
	@$(PYTHON) jobs/job/lock.py . "waiting for another make that installs something here …" $(MAKE) --silent HAS_LOCK=1 $@
else
# Python compiles what is imported, which is a small part of what is installed.
# The wheel is installed, not the checkout: Spark finds data sources among installed modules only.
# The tests' environment includes the demo's packages, and those include the broker's.
$(VENV)/.spark $(VENV)/.demo $(VENV)/.test: $(VENV)/.%: $(SOURCES) | python
	$(call make_environment,$(VENV))
	@echo "installing spark-kafka-sink[$*] into $(VENV) …"
	$(call install,".[$*]" pyspark==$(SPARK))
	@$(if $(filter test,$*),$(INSTALL_KERBEROS))
	@touch $@ $(if $(filter-out spark,$*),$(VENV)/.spark) $(if $(filter test,$*),$(VENV)/.demo)

.venv-lowest/.lowest: $(SOURCES) | python
	@echo "installing the lowest versions of everything into .venv-lowest …"
	@$(TESTS_PATH) $(PYTHON) -m support.programs.lowest make .venv-lowest
	@touch $@

# The audit covers the packages that users install, with the extras that have wheels, and not the
# packages of the tests.
.venv-audit/.audit: $(SOURCES) | python
	$(call make_environment,.venv-audit)
	@echo "installing spark-kafka-sink[pkcs12,msk,otel] and pip-audit into .venv-audit …"
	$(call install,".[pkcs12$(COMMA)msk$(COMMA)otel]" "pip-audit>=2.10")
	@touch $@

# The site needs nothing of the package.
.venv-docs/.docs: docs/requirements.txt | python
	$(call make_environment,.venv-docs)
	@echo "installing Sphinx into .venv-docs …"
	$(call install,--requirement docs/requirements.txt)
	@touch $@

.venv-dist/.dist: $(SOURCES) | python
	$(call make_environment,.venv-dist)
	@echo "installing spark-kafka-sink[demo], build and twine into .venv-dist …"
	$(call install,".[demo]" pyspark==$(SPARK) "build>=1.4.2" "twine>=7")
	@touch $@

# The benchmark's peers are not in the environment of the tests.
.venv-bench/.bench: $(SOURCES) | python
	$(call make_environment,.venv-bench)
	@echo "installing spark-kafka-sink[bench] into .venv-bench …"
	$(call install,".[bench]" pyspark==$(SPARK))
	@touch $@
endif
