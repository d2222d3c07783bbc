# Two commands: `make chat` and `make test`. Each sets up .venv first, which costs nothing once it is there.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help chat test test-long ext wheel check lint types imports format guide architectures clients tables pins setup setup-dev

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

chat: setup ## set up and open a chat (ARGS="MODEL_DIR --device cpu" passes options on)
	@exec $(BIN)/exlchat $(ARGS)

# Tests start hundreds of programs; each would compile the package again where bytecode may not be written.
test: setup-dev ## set up and run the tests (ARGS="tests/chat -k title" chooses some)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadgroup $(ARGS)

test-long: setup-dev ## all tests, and of what is tried at random far more: for hours
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadgroup --long --kills 60 --hypothesis-profile=thorough $(ARGS)

ext: setup ## compile the CUDA kernels ahead of time (ARGS="--arch all --force")
	@exec $(BIN)/exlchat build-ext $(ARGS)

wheel: setup ## a wheel with kernels for every supported card, in dist (ARGS="--arch 8.6,8.9")
	@exec $(BIN)/python tools/wheel.py $(ARGS)

check: lint types imports test ## everything CI runs

lint: setup-dev ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup-dev ## mypy, strict, over the package and the tools
	@$(BIN)/mypy
	@$(BIN)/mypy tools

imports: setup-dev ## import-linter: the house's stairs; and no circle between files
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.circles

format: setup-dev ## rewrite the files as ruff wants them
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

guide: setup-dev ## make the corpus, train and pack the bundled model again (needs a CUDA card)
	@$(BIN)/python -m guide.train $(ARGS)

architectures: setup-dev ## test every architecture and write the errors into docs/architectures.md
	@$(BIN)/python -m pytest -q tests/engine/test_families.py -k transformers --error-table docs/architectures.md

clients: setup-dev ## have real clients ask the server and write what they did into docs/clients/README.md
	@$(BIN)/python -m pytest -q tests/server/test_clients.py --client-table docs/clients/README.md

tables: setup-dev ## write the tables of keys, commands and settings into docs
	@$(BIN)/python tools/tables.py

pins: setup-dev ## write constraints.txt from what .venv holds
	@$(BIN)/python tools/pin.py

setup:
	@$(PYTHON) tools/bootstrap.py

setup-dev:
	@$(PYTHON) tools/bootstrap.py --dev
