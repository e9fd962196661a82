# Commands for a clone of the repository. `make quickstart` and `make test` set up what they need, once.
#
#   make quickstart          a small policy learns to use a tool: SFT, then GRPO, into runs/quickstart
#   make quickstart SEED=1   the same from another seed, into runs/quickstart-1
#   make frozen-lake         the second built-in experiment, into runs/frozen_lake; takes SEED, too
#   make test                ruff, mypy and pytest
#   make bench               tokens per second of the sampling engine
#   make clean               remove the virtual environment and caches; runs/ stays
#
# PYTHON is the interpreter to build on (3.11 or 3.12), VENV where the virtual environment goes.

PYTHON ?= python3 python3.12 python3.11
VENV ?= .venv
SEED ?= 0
BIN := $(VENV)/bin

.PHONY: help quickstart frozen-lake test bench clean bubblewrap

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

# $(call train,CONFIG): run a config; every seed but 0 has a run folder of its own.
train = $(BIN)/agentjax train --config=$(1) \
	$(if $(filter-out 0,$(SEED)),--config.seed=$(SEED) --config.run_dir=runs/$(1)-$(SEED))

quickstart: $(VENV)/.installed | bubblewrap
	@$(call train,quickstart)

frozen-lake: $(VENV)/.installed | bubblewrap
	@$(call train,frozen_lake)

test: export JAX_PLATFORMS ?= cpu
test: $(VENV)/.installed-dev | bubblewrap
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q

bench: $(VENV)/.installed
	$(BIN)/agentjax bench rollout --preset agentic

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# $(call apt,PACKAGE): install a Debian or Ubuntu package, or say that it is needed.
apt = { \
	if ! command -v apt-get >/dev/null || { [ "$$(id -u)" != 0 ] && ! command -v sudo >/dev/null; }; then \
		echo "Please install $(1), then run make again." >&2; exit 1; \
	fi; \
	echo "Installing $(1) with apt-get"; \
	sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	$$sudo apt-get update -qq; \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $(1) >/dev/null; }

# What tools run in.
bubblewrap:
	@command -v bwrap >/dev/null || $(call apt,bubblewrap)

$(VENV)/.installed: pyproject.toml
	$(make_venv)
	@echo "Installing AgentJAX into $(VENV), which takes a minute or two the first time"
	@$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(make_venv)
	@echo "Installing AgentJAX with its development tools into $(VENV), which takes a minute or two the first time"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed

# Make the virtual environment on the first of $(PYTHON) that is a supported Python, unless it is there.
supported = import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))
define make_venv
@if ! $(BIN)/pip --version >/dev/null 2>&1; then \
	for python in $(PYTHON) none; do $$python -c '$(supported)' 2>/dev/null && break; done; \
	if [ $$python = none ]; then \
		echo "AgentJAX needs Python 3.11 or 3.12, which is none of: $(PYTHON). Name one: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	$$python -c 'import ensurepip' 2>/dev/null || $(call apt,python3-venv) || exit 1; \
	$$python -m venv --clear $(VENV); \
fi
endef
