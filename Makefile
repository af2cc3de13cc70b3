# Every task of the project, one line each; CI calls the same ones. `make` alone prints the list.
# Each task sets up .venv from the lock by itself, which is instant when nothing has changed.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
READY := .venv/ready.stamp
PEERS := .venv-peers/ready.stamp
NODE_PEERS := tests/node/node_modules/ready.stamp

# A machine may forbid byte code; start-up is three to four times slower without it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check format docs serve drill drill-runs bench lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): requirements/lock.txt pyproject.toml tools/make_venv.py
	@$(PYTHON) tools/make_venv.py

demo: $(READY) ## kill workers at the worst moments and show that no effect is doubled or lost
	@$(BIN)/tollhouse demo $(ARGS)

$(NODE_PEERS): tests/node/package-lock.json
	@npm ci --prefix tests/node --silent --no-audit --no-fund
	@touch $@

test: $(READY) $(NODE_PEERS) ## run the tests, but for the slow ones (ARGS="tests/gate -k key" narrows)
	@$(BIN)/pytest -n 2 --dist loadgroup -m "not slow" $(ARGS)

test-all: $(READY) $(NODE_PEERS) ## run every test, the slow ones too
	@$(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

check: $(READY) ## format, lint, types, import order, sizes, stray addresses and paths, stale docs
	@$(BIN)/python tools/check.py

format: $(READY) ## format the code and apply the safe lint fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(READY) ## write the generated docs anew from the code
	@$(BIN)/python tools/docs.py $(ARGS)

serve: $(READY) ## run agents and answer over HTTP: tollhouse.yaml, or a sample without key or network
	@$(BIN)/tollhouse serve $(ARGS)

drill: $(READY) ## crash, pause and cut off real processes over many seeds (ARGS="--seeds 50")
	@$(BIN)/tollhouse drill $(ARGS)

drill-runs: $(READY) ## the same for runs, under both drivers, for an hour or so (ARGS="-k temporal")
	@$(BIN)/pytest -n 2 --dist loadgroup -m crash tests/crash/runs $(ARGS)

$(PEERS): requirements/peers.txt
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -qq --require-hashes -r requirements/peers.txt
	@touch $@

bench: $(READY) $(if $(findstring --peers,$(ARGS)),$(PEERS)) ## measure calls per second and commits per call on this machine
	@$(BIN)/tollhouse bench $(ARGS)

lock: $(READY) ## resolve the dependencies anew into requirements/lock.txt (ARGS="--upgrade")
	@$(BIN)/uv pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command "make lock" --quiet $(ARGS) \
		--output-file requirements/lock.txt
	@$(BIN)/uv pip compile requirements/peers.in --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command "make lock" --quiet $(ARGS) \
		--output-file requirements/peers.txt

clean: ## remove .venv, caches and build results
	@rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
