# From a fresh clone: `make run` needs Python 3.11+ and nothing else, `make test` Debian packages too.

PYTHON ?= python3
PORT ?= 8000
ARGS ?=
MINUTES ?= 10
SEED ?=
VENV := .venv
RUN_READY := $(VENV)/.ready-to-run
TEST_READY := $(VENV)/.ready-to-test

.DEFAULT_GOAL := help
.PHONY: help run test chaos check clean

help: ## This list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 8

run: $(RUN_READY) ## A chat in the browser: make run PORT=8000
	@exec $(VENV)/bin/python manage.py serve --port $(PORT)

test: $(TEST_READY) ## The whole suite, twice: SQLite with Valkey, MariaDB with Redis. ARGS="tests/foo.py -k bar"
	@$(VENV)/bin/python scripts/test.py $(ARGS)

chaos: $(TEST_READY) ## Break everything at random and look what is left. MINUTES=10 SEED=1
	@$(VENV)/bin/python -m tests.faults --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

check: $(TEST_READY) ## Format, lint, types, Django's checks, migrations, imports
	@sh scripts/check.sh

clean: ## Remove the virtual environment and caches; var/ with your chats stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(RUN_READY): requirements/base.txt
	@$(PYTHON) scripts/venv.py $(VENV) requirements/base.txt
	@touch $@

$(TEST_READY): requirements.txt $(wildcard requirements/*.txt) scripts/system-packages.sh tests/js/package-lock.json
	@sh scripts/system-packages.sh $(PYTHON)
	@npm ci --prefix tests/js --silent --no-audit --no-fund
	@$(PYTHON) scripts/venv.py $(VENV) requirements.txt
	@touch $@ $(RUN_READY)
